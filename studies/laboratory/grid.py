"""The grid: positions, windows, depth and other changes, each with everything else equal, over seeds; a shared cell is trained
once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from studies.laboratory.config import LabConfig

SEEDS = (0, 1, 2)
BASE = LabConfig()
POSITIONS: tuple[dict[str, Any], ...] = (
    {"positions": "none"},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "alibi"},
    {"positions": "rope"},
    {"positions": "rope", "rope_base": 100.0},
)
WINDOWS = (4, 8, 16, 32, 64)
DEPTHS = (1, 2, 8, 16)
"""Beside the 4 layers of `BASE`; the deepest last, as it takes longest."""

CHANGES: tuple[dict[str, Any], ...] = (
    {"dtype": "bfloat16"},
    {"positions": "none", "dtype": "bfloat16"},
    {"norm": "post"},
    {"window": 16, "sinks": 1},
)
"""One change of the training or of the block each, of cells that are there without it."""


def grid() -> list[LabConfig]:
    """Every cell once, the most telling first: positions, windows, depth, other changes; within each, seed by seed."""
    changes = [
        *((seed, settings) for seed in SEEDS for settings in POSITIONS),
        *((seed, {"window": window}) for seed in SEEDS for window in WINDOWS),
        *((seed, {"n_layers": depth}) for depth in DEPTHS for seed in SEEDS),
        *((seed, settings) for seed in SEEDS for settings in CHANGES),
    ]
    return list(dict.fromkeys(replace(BASE, **settings, seed=seed) for seed, settings in changes))
