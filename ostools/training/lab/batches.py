"""The prompts of a training step, out of the seed and the step alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ostools.training.lab.config import LabConfig
from ostools.training.lab.prompts import BOS, EOS, IDS, LETTERS, PAD, LabTask

_LONGEST_ANSWER = 6  # digits and the end: a count below 100,000


def batch_at(config: LabConfig, step: int) -> tuple[Int[np.ndarray, "row pos"], Float[np.ndarray, "row pos"]]:
    """The prompts of a step, with their answers, filled up on the right; and 1 where a token is one of an answer.

    They depend on the seed, the lengths and the tasks alone: models of one seed are trained on the same prompts whatever
    their positions, depth and windows, and a resumed run on those of an uninterrupted one.

    Half of the sequences are bits with a density of ones that is uniform on [0, 1]; half are one bit again and again, in which
    the bit that is asked for is the other one every second time.
    """
    draw = np.random.default_rng([config.seed, step])
    lengths = draw.choice(config.longest, size=config.batch, p=_chances(config.longest, config.length_power)) + 1
    ids = np.full((config.batch, int(lengths.max()) + 2 + _LONGEST_ANSWER), IDS[PAD])
    answered = np.zeros(ids.shape, dtype=np.float32)
    used = 0
    for row, length in enumerate(lengths.tolist()):
        question = config.tasks[int(draw.integers(len(config.tasks)))]
        answer = LabTask(question).key(items := _items(draw, question, length))
        text = [BOS, *items, LETTERS[question], *answer, EOS]
        ids[row, : len(text)] = [IDS[token] for token in text]
        answered[row, length + 2 : len(text)] = 1.0
        used = max(used, len(text))
    return ids[:, :used], answered[:, :used]


@lru_cache
def _chances(longest: int, power: float) -> Float[np.ndarray, " length"]:
    weights = np.arange(1, longest + 1) ** -power
    return weights / weights.sum()


def _items(draw: Any, question: str, length: int) -> list[str]:
    if draw.random() < 0.5:
        return [str(int(bit)) for bit in draw.random(length) < draw.random()]
    bit = int(draw.integers(2))
    found = [str(bit)] * length
    if question != "count" and draw.random() < 0.5:
        found[0 if question == "first" else -1] = str(1 - bit)
    return found
