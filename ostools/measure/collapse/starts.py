"""Where along its lengths a pair is hidden, and which lengths decide from where on it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ostools.measure.collapse.readings import VECTOR
from ostools.results import Frame

TOP_TOKEN, IDENTICAL = "top-token", "identical-logits"
ONE_CURVE = ["task", "pair", "seed", "dtype", "site", "layer"]
"""What a curve over lengths is one of."""


@dataclass(frozen=True)
class Hidden:
    """One curve: at which of its `lengths`, ascending, the pair is hidden.

    `key`: the values of `ONE_CURVE`. `below`: below the noise of v, or the same to the last bit; at the sites "top-token" and
    "identical-logits" whether that is the same. `below_of_pair`: the same for the noise of y - y*; None at those two sites.
    """

    key: tuple[Any, ...]
    lengths: list[int]
    below: list[bool]
    below_of_pair: list[bool] | None


def is_hidden(distance: Any, noise: Any, computed: Any) -> Any:
    """Which rows are hidden: the float64 `distance` is below the noise, or the two came out as the same numbers."""
    return (distance < noise) | (computed == 0)


def hidden_curves(table: Frame, reference: str, per: str = VECTOR, norm: str = "l2") -> Iterator[Hidden]:
    """Every curve of a `Collapse`'s table but those of the `reference` dtype, and of rows without their float64 distance."""
    table = table[(table["per"] == per) & (table["norm"] == norm) & (table["dtype"] != reference)]
    table = table[table["float64_distance"].notna()].sort_values(by="length", kind="stable")
    for key, group in table.groupby(ONE_CURVE, sort=False):
        *curve, site, layer = key
        lengths, distance = group["length"].tolist(), group["float64_distance"]
        below, of_pair = (
            is_hidden(distance, group[noise], group["mean"]).tolist() for noise in ("noise", "pair_noise")
        )
        yield Hidden(key, lengths, below, of_pair)
        if site == "logits":
            for said, column in ((TOP_TOKEN, "same_top_token"), (IDENTICAL, "identical_logits")):
                yield Hidden((*curve, said, layer), lengths, group[column].tolist(), None)


def deciding(curves: Iterable[Hidden]) -> set[tuple[str, int, int]]:
    """(pair, seed, length) of the lengths that decide a collapse length: the last one that is not hidden, and the next."""
    found = set()
    for curve in curves:
        _, pair, seed, *_ = curve.key
        for below in (curve.below, curve.below_of_pair or curve.below):
            behind = max((index + 1 for index, is_hidden in enumerate(below) if not is_hidden), default=0)
            found |= {(pair, seed, n) for n in curve.lengths[max(behind - 1, 0) : behind + 1]}
    return found
