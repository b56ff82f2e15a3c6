"""Which prompts a probe is trained on and which it is tested on. Those of one group are never on both sides.

Three tests, which answer three questions and are never mixed:

- "same lengths": other sequences of the lengths that the probe was trained on;
- "interpolated": other sequences, of lengths between those that it was trained on;
- "extrapolated": other sequences, longer than all that it was trained on (the upper third of the lengths).

A task that draws nothing has one sequence a length: its groups are the lengths, and the first test does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ostools.ground.errors import InputError

SAME, BETWEEN, BEYOND = "same lengths", "interpolated", "extrapolated"
TESTS = (SAME, BETWEEN, BEYOND)
FOLDS = 3
FEWEST_GROUPS, FEWEST_LENGTHS = 6, 5
"""Groups for an interval at 95%, and lengths for a test between and beyond them."""


@dataclass(frozen=True)
class Split:
    """One probe: the test it is for, and the numbers of the prompts that it is trained on and tested on."""

    test: str
    train: Int[np.ndarray, " trained"]
    held_out: Int[np.ndarray, " tested"]


def splits(lengths: Int[np.ndarray, " prompt"], groups: Int[np.ndarray, " prompt"], is_random: bool) -> list[Split]:
    """Every probe's prompts. `is_random`: groups are drawn sequences (seeds); else each length is a group of its own.

    Raises `InputError` for too few groups or lengths.
    """
    distinct_lengths, rank = np.unique(lengths, return_inverse=True)
    distinct_groups, group = np.unique(groups, return_inverse=True)
    _require_enough(len(distinct_groups), len(distinct_lengths), is_random)
    inner = (rank > 0) & (rank < len(distinct_lengths) - 1)
    upper = rank >= len(distinct_lengths) - max(1, len(distinct_lengths) // FOLDS)
    masks: list[tuple[str, np.ndarray, np.ndarray]] = []
    for fold in range(FOLDS):
        everywhere = np.full(len(rank), True)
        in_fold, out_of_fold = (group % FOLDS == fold, group % FOLDS != fold) if is_random else (everywhere, everywhere)
        left_out = inner & (rank % FOLDS == fold)
        if is_random:
            masks.append((SAME, out_of_fold, in_fold))
        masks.append((BETWEEN, out_of_fold & ~left_out, in_fold & left_out))
        if is_random or fold == 0:
            masks.append((BEYOND, out_of_fold & ~upper, in_fold & upper))
    return [
        Split(test, np.flatnonzero(train), np.flatnonzero(held_out))
        for test, train, held_out in masks
        if train.any() and held_out.any()
    ]


def _require_enough(groups: int, lengths: int, is_random: bool) -> None:
    if lengths < FEWEST_LENGTHS:
        raise InputError(
            f"expected at least {FEWEST_LENGTHS} lengths, so that some lie between and beyond those of training, found "
            f"{lengths}; for example range(4, 33, 4)"
        )
    if groups < FEWEST_GROUPS:
        what, example = ("seeds", "seeds=range(12)") if is_random else ("lengths", "lengths=range(1, 33)")
        raise InputError(
            f"expected at least {FEWEST_GROUPS} {what}, each a sequence of its own, found {groups}: of fewer there is no "
            f"interval; for example {example}"
        )
