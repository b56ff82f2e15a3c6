"""A block's pattern in strips of queries: cut out of the whole pattern, or made again each time from queries and keys.

A long prompt's pattern is made again by the model's own attention (`hooks.in_strips`), one strip at a time, at every walk over
the strips: heads x strip x n numbers in place of heads x n^2, for one more product of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hooks import StripAttention
from ostools.measure.formulas.scores import ScoresCheck

Pattern = Float[Tensor, "head query key"]


@dataclass(frozen=True)
class Strip:
    """Some queries and the keys that any of them sees: what lies outside (the future, a window's past) is never touched.

    `answer`: alpha_ij slope_ij, how the pattern's scores answer; None where the pattern is held constant.
    """

    queries: slice
    keys: slice
    pattern: Pattern
    answer: Pattern | None


def strip_bounds(queries: int, size: int | None = None) -> list[tuple[int, int]]:
    """Strips of `size` queries; four by default: what a causal pattern takes is then 5/8 of the full square."""
    size = size or max(32, -(-queries // 4))
    return [(start, min(start + size, queries)) for start in range(0, queries, size)]


def whole_strips(pattern: Pattern, slope: Pattern | None) -> list[Strip]:
    """The strips of a pattern that is there as a whole."""
    visible = (pattern != 0).any(0)
    strips = []
    for start, stop in strip_bounds(pattern.shape[1]):
        queries = slice(start, stop)
        columns = visible[queries].any(0).nonzero().flatten().tolist() or [0]
        keys = slice(columns[0], columns[-1] + 1)
        strip_pattern = pattern[:, queries, keys].contiguous()
        strips.append(
            Strip(queries, keys, strip_pattern, None if slope is None else strip_pattern * slope[:, queries, keys])
        )
    return strips


Slopes = Callable[[slice, Pattern, ScoresCheck | None], Pattern]
"""d score_ij / d (q_i . k_j) of some queries and all keys up to their last one, from their scores; seen by the check."""


@dataclass(frozen=True)
class RemadeStrips:
    """The strips of the queries `rows`, made anew at every walk; the edits that are active then act on them.

    `slopes`: None where the pattern is held constant.
    """

    attention: StripAttention
    rows: slice
    size: int
    dtype: torch.dtype
    slopes: Slopes | None

    def __iter__(self) -> Iterator[Strip]:
        for start, stop in self._bounds:
            yield self._strip(start, stop, None)

    def check(self, layer: int) -> None:
        """Every strip's scores and pattern are what the formulas say; else `InputError`."""
        check = ScoresCheck(layer)
        for start, stop in self._bounds:
            self._strip(start, stop, check)
        check.require()

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        return strip_bounds(self.rows.stop - self.rows.start, self.size)

    @torch.no_grad()
    def _strip(self, start: int, stop: int, check: ScoresCheck | None) -> Strip:
        queries = slice(self.rows.start + start, self.rows.start + stop)
        scores, pattern = (tensor[0] for tensor in self.attention.strip(queries.start, queries.stop))
        visible_keys = (pattern != 0).any(0).any(0).nonzero().flatten().tolist() or [0]
        keys = slice(visible_keys[0], visible_keys[-1] + 1)
        strip_pattern, answer = pattern[..., keys].to(self.dtype).contiguous(), None
        if self.slopes is not None:
            slope = self.slopes(queries, scores, check)
            if check is not None:
                check.see_pattern(scores, pattern, self.dtype)
            answer = strip_pattern * slope[..., keys]
        return Strip(slice(start, stop), keys, strip_pattern, answer)
