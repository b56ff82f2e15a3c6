"""Ctrl-C at any line of the code that places or removes hooks: none is left, the lock is free, and
the numbers are as before.

A case draws a block of hooks, or a whole measurement, and one of the lines that it ran through, at
one of the times it did.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import ostools as ost
from tests.checkpoints import tiny_model
from tests.hooks.test_lock import (
    IDS,
    LEFT,
    Tracer,
    dtype_of,
    free,
    is_clean,
    run_interrupted,
    traced,
)

CASES = 500
_MEASURED: dict[str, Callable[[Any], object]] = {
    "sensitivity": lambda model: ost.sensitivity(model, _prompt(model), linearisations=["frozen"]),
    "attention": lambda model: ost.attention(model, _prompt(model)),
}


def _prompt(model: Any) -> ost.Prompt:
    return ost.Prompt.from_ids(model, IDS[0])


def run(cases: int, seed: int) -> int:
    """How many interrupts left something behind."""
    chosen, failures = random.Random(seed), 0
    names = [*LEFT, *_MEASURED]
    for place, name in enumerate(names):
        model: Any = tiny_model("llama", dtype=dtype_of(name), d_model=16, n_layers=1, fresh=True)
        expected = model(IDS)
        work = (
            partial(traced, partial(_MEASURED[name], model))
            if name in _MEASURED
            else partial(run_interrupted, model, name)
        )
        work(everywhere := Tracer())
        for _ in range(len(range(place, cases, len(names)))):
            line, hits = chosen.choice(sorted(everywhere.hits.items()))
            work(Tracer(line, chosen.randint(1, hits)))
            gc.collect()  # a block that its `with` never reached ends when nobody holds it any more
            if not (is_clean(model) and free(model) and torch.equal(model(IDS), expected)):
                print(f"interrupts: {name}, at {line}: the model is not what it was")
                failures += 1
                break
    return failures
