"""Ctrl-C at any line of the code that places or removes hooks leaves none behind."""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import lock
from tests.checkpoints import tiny_model
from tests.hooks.test_lock import IDS, LEFT, dtype_of, free
from tests.sets import quick

OURS = str(Path(inspect.getfile(hooks)).parent)
THEIRS = ("transformer_lens/hook_points.py", "torch/utils/hooks.py", "contextlib.py")
"""What our code calls while it places hooks."""


Line = tuple[str, int]


class Tracer:
    """Counts how often each line of the hooks' code runs, and raises KeyboardInterrupt at one of these times."""

    def __init__(self, line: Line | None = None, hit: int = 0) -> None:
        self.line, self.hit = line, hit
        self.hits: Counter[Line] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        name = frame.f_code.co_filename
        if not (name.startswith(OURS) or name.endswith(THEIRS)):
            return None
        text = linecache.getline(name, frame.f_lineno).strip()
        # Python looks for signals at calls, jumps back and function starts: never between `try` and what follows it, nor before
        # a lock of C is given back.
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
    points = [point for point in model.hook_dict.values() if point.fwd_hooks or point._forward_hooks]
    is_held = model in lock._LOCKS and lock._LOCKS[model].blocks
    return not (points or is_held or hooks.active_edits(model) or hooks.active_strips(model))


@pytest.mark.parametrize("name", quick(LEFT, "capture", "rounded"))
def test_an_interrupt_at_any_line_leaves_the_model_clean(name: str) -> None:
    """The first and the last time that each line runs."""
    model = tiny_model("llama", dtype=dtype_of(name), d_model=16, n_layers=1, fresh=True)
    expected = model(IDS)
    weights = [id(weight) for weight in model.parameters()]
    run_interrupted(model, name, everywhere := Tracer())
    assert len(everywhere.hits) > 50
    for line, hits in everywhere.hits.items():
        for hit in {1, hits}:
            run_interrupted(model, name, Tracer(line, hit))
            if not is_clean(model):
                gc.collect()  # a block that its `with` never reached ends when nobody holds it any more
            assert is_clean(model), (linecache.getline(*line), line, hit)
    assert [id(weight) for weight in model.parameters()] == weights
    assert free(model)
    assert torch.equal(model(IDS), expected)
