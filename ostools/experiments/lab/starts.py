"""From where on a decoder of the laboratory hides its pair for good: the definition by which its stored tables were made.

A decoder is measured at every length, so one number says it. Real models have ranges (`theory.hidden_ranges`).
"""

from __future__ import annotations

from collections.abc import Sequence


def collapse_start(below: Sequence[bool], lengths: Sequence[int], margin: int = 32) -> int | None:
    """The smallest n0 such that `below` holds at every length n >= n0; None where that is not shown.

    `below[i]`: at `lengths[i]` the distance is below the rounding noise. The lengths from n0 on have to be consecutive
    and reach n_max >= max(2 n0, n0 + margin): without that, chance at the end of the range would report a collapse.
    `lengths` ascending.
    """
    start = None
    for index in reversed(range(len(lengths))):
        consecutive = index == len(lengths) - 1 or lengths[index + 1] == lengths[index] + 1
        if not below[index] or not consecutive:
            break
        start = lengths[index]
    if start is None or lengths[-1] < max(2 * start, start + margin):
        return None
    return start
