"""Exact or estimated: what `method="auto"` means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ostools.measure.jacobian.estimate import default_directions, first_passes

# Exact numbers need no interval: they are worth this many times the passes of an estimate.
_WORTH = 16


@dataclass(frozen=True)
class Choice:
    """The method, and the reason in words for whoever asked for "auto"."""

    method: Literal["exact", "estimate"]
    reason: str


def choose_method(d_model: int, *, exact_fits: bool, directions: int | None = None) -> Choice:
    """Exact, unless it does not fit into memory or takes more than 16 times the passes that the estimate needs.

    Passes: d_model against four for every direction of the basis, both times the same pass; with the default directions the
    line runs at d_model 1024. `exact_fits`: the exact run has a plan within the memory, its rows in a file if need be.
    """
    passes = first_passes(default_directions(d_model) if directions is None else directions)
    if not exact_fits:
        return Choice("estimate", "the exact Jacobians do not fit into the memory")
    if d_model > _WORTH * passes:
        return Choice("estimate", f"{passes} passes at first in place of {d_model}")
    return Choice("exact", f"{d_model} passes are at most {_WORTH} times the estimate's {passes}")
