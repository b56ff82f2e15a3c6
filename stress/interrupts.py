"""Ctrl-C at any line of the code that places or removes hooks: none is left, the lock is free, and
the numbers are as before.

A case draws a block of hooks, or a whole measurement, and one of the lines that it ran through, at
one of the times it did.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from tests.checkpoints import tiny_model
from tests.hooks.test_lock import IDS, LEFT, free

CASES = 250
_MEASURED: dict[str, Callable[[Any], object]] = {
    "sensitivity": lambda model: ost.sensitivity(model, _prompt(model), linearisations=["frozen"]),
    "attention": lambda model: ost.attention(model, _prompt(model)),
}


OURS = str(Path(inspect.getfile(hooks)).parent)
THEIRS = ("transformer_lens/hook_points.py", "torch/utils/hooks.py", "contextlib.py")
"""What our code calls while it places hooks."""


Line = tuple[str, int]


class Tracer:
    """Counts how often each line of the hooks' code runs, and raises KeyboardInterrupt at one of
    these times.
    """

    def __init__(self, line: Line | None = None, hit: int = 0) -> None:
        self.line, self.hit = line, hit
        self.hits: Counter[Line] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        name = frame.f_code.co_filename
        if not (name.startswith(OURS) or name.endswith(THEIRS)):
            return None
        text = linecache.getline(name, frame.f_lineno).strip()
        # Python looks for signals at calls, jumps back and function starts: never between `try` and
        # what follows it, nor before a lock of C is given back.
        if event == "line" and not text.startswith(("try:", "finally:", "with _GUARD:")):
            line = (name, frame.f_lineno)
            self.hits[line] += 1
            if line == self.line and self.hits[line] == self.hit:
                raise KeyboardInterrupt
        return self


def traced(work: Callable[[], object], tracer: Tracer) -> None:
    """Do the work, which an interrupt may end."""
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def run_interrupted(model: TransformerBridge, name: str, tracer: Tracer) -> None:
    """Enter the block, run the model, leave the block; what runs inside it is not traced."""
    before = sys.gettrace()

    def work() -> None:
        with LEFT[name](model):
            sys.settrace(before)
            model(IDS)
            sys.settrace(tracer)

    traced(work, tracer)


def is_clean(model: TransformerBridge) -> bool:
    points = [
        point for point in model.hook_dict.values() if point.fwd_hooks or point._forward_hooks
    ]
    return not (points or hooks.active_edits(model))


def _prompt(model: Any) -> ost.Prompt:
    return ost.Prompt.from_ids(model, IDS[0])


def run(cases: int, seed: int) -> int:
    """How many interrupts left something behind."""
    chosen, failures = random.Random(seed), 0
    names = [*LEFT, *_MEASURED]
    for place, name in enumerate(names):
        dtype = torch.float64 if name == "exact_arithmetic" else torch.float32
        model: Any = tiny_model("llama", dtype=dtype, d_model=16, n_layers=1, fresh=True)
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
