"""Representations in which the code of an answer is known."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.probes.captured import Place
from ostools.measure.probes.scores import Labelled, rows_of, said_by_probes
from ostools.results import Frame

HERE = Place(2, "residual", 1)


def asked(target: str = "number", lengths: int = 9, seeds: int = 12, classes: int = 41, drawn: bool = True) -> Labelled:
    """Every length with every seed; labels that no length and no seed tells."""
    n = [length for length in range(1, lengths + 1) for _ in range(seeds if drawn else 1)]
    seed = [seed for _ in range(lengths) for seed in range(seeds if drawn else 1)]
    labels = np.random.default_rng(3).integers(classes, size=len(n)).tolist()
    return Labelled.of(n, seed, seed if drawn else n, labels, target, drawn)


def probed(given: Labelled, rows: Float[Tensor, "prompt d"], controls: tuple[str, ...] = ("none", "shuffled")) -> Frame:
    """One row a test and control, by their names."""
    said = said_by_probes(given, {HERE: rows}, controls).assign(dtype="float32")
    return rows_of(said).set_index(["test", "control"])


def noise(given: Labelled, d: int, seed: int = 0) -> Float[Tensor, "prompt d"]:
    return torch.randn(len(given.labels), d, generator=torch.Generator().manual_seed(seed)).double()
