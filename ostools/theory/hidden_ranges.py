"""Ranges of lengths at which a pair is hidden, by a rule that was fixed before anything was measured.

`IN_A_ROW` tried lengths in a row at which the pair is hidden make a range. Two such rows are one range where fewer than
`IN_A_ROW` tried lengths lie between them: a single length apart by chance does not end it. So at least half of a range's
tried lengths are hidden, and `HiddenRange` counts them. Fewer hidden lengths in a row are chance, and no range.

Cost: one pass over the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

IN_A_ROW = 8
"""How many tried lengths in a row make a range, and how many have to follow one to end it."""


@dataclass(frozen=True)
class HiddenRange:
    """One range of lengths: `first` and `last`, `lengths_tried` from one to the other, and at how many of these
    the pair is `hidden` (at both ends it is). `following`: how many longer lengths were tried."""

    first: int
    last: int
    lengths_tried: int
    hidden: int
    following: int

    @property
    def open(self) -> bool:
        """Whether the range goes on to the longest length tried."""
        return self.following == 0


def hidden_ranges(hidden: Sequence[bool], lengths: Sequence[int]) -> list[HiddenRange]:
    """The ranges of a curve, the shortest lengths first; `hidden[i]`: whether the pair is hidden at `lengths[i]`, ascending."""
    spans: list[tuple[int, int]] = []
    for is_hidden, run in groupby(range(len(lengths)), key=lambda index: bool(hidden[index])):
        indices = list(run)
        if not is_hidden or len(indices) < IN_A_ROW:
            continue
        start, end = indices[0], indices[-1]
        if spans and start - spans[-1][1] - 1 < IN_A_ROW:
            start = spans.pop()[0]
        spans.append((start, end))
    return [
        HiddenRange(
            first=lengths[start],
            last=lengths[end],
            lengths_tried=end - start + 1,
            hidden=sum(map(bool, hidden[start : end + 1])),
            following=len(lengths) - 1 - end,
        )
        for start, end in spans
    ]
