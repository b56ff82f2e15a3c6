"""One thread at a time on a model, and no hook left behind: not by a thread that ended, nor by
Ctrl-C at any line.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.hooks import HookError, lock
from ostools.hooks.freeze import HeldParts, holding
from tests.checkpoints import tiny_model
from tests.sets import quick

IDS = torch.tensor([[2, 40, 50, 60, 61]])


def free(model: TransformerBridge) -> bool:
    """Whether another thread gets the model at once."""

    def taken() -> bool:
        with hooks.locked(model):
            return True

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(taken).result(timeout=5)


@pytest.fixture
def one() -> TransformerBridge:
    return tiny_model("llama", seed=1)


def test_edits_of_one_thread_do_not_reach_another(one: TransformerBridge) -> None:
    threads = 3

    def logits(factor: float) -> Tensor:
        with torch.no_grad(), hooks.scale_scores(one, factor), hooks.capture(one, "pattern"):
            return one(IDS)

    factors = [0.5 + 0.1 * number for number in range(threads)]
    expected = [logits(factor) for factor in factors]
    barrier = threading.Barrier(threads)

    def many(factor: float) -> list[Tensor]:
        barrier.wait()
        return [logits(factor) for _ in range(5)]

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(many, factors))
    for logits_of_one, number in zip(found, expected, strict=True):
        assert all(torch.equal(one_pass, number) for one_pass in logits_of_one)
    assert free(one)


def test_a_pass_of_another_thread_does_not_run_through_a_hook(one: TransformerBridge) -> None:
    with hooks.capture(one, "z") as record, ThreadPoolExecutor(1) as pool:
        expected = one(IDS)
        captured = record["z"][0].clone()
        with pytest.raises(
            HookError, match=r"opened the block of this hook.*hooks\.locked\(model\)"
        ):
            pool.submit(one, IDS[:, :3]).result()
        assert torch.equal(record["z"][0], captured)
        assert torch.equal(one(IDS), expected)


def test_a_thread_that_ended_inside_its_block_leaves_nothing() -> None:
    model = tiny_model("llama", fresh=True)
    expected, kept = model(IDS), []

    def leave() -> None:
        block: Any = hooks.scale_scores(model, 0.5)
        kept.append(block)
        block.__enter__()

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert hooks.active_edits(model)
    assert free(model)
    assert hooks.active_edits(model) == ()
    assert torch.equal(model(IDS), expected)
    del kept[:]


LEFT: dict[str, Callable[[TransformerBridge], Any]] = {
    "capture": lambda model: hooks.capture(model, "z", "pattern"),
    "scale_scores": lambda model: hooks.scale_scores(model, 0.5),
    "frozen": lambda model: hooks.frozen(model, activations=True),
    "holding": lambda model: holding(model, [HeldParts(attention=True)]),
    "gated": lambda model: hooks.gated(model, [hooks.Head(0, 1)], torch.ones(1)),
    "upcast": lambda model: hooks.upcast(model, ["attention", "norms"]),
    "exact_arithmetic": hooks.exact_arithmetic,
    "rounded": lambda model: hooks.rounded(model, "residual", "bfloat16"),
    "in_strips": lambda model: hooks.in_strips(model, 2),
}
"""A block of every kind of hook: at hook points, on modules, in the place of a module's forward."""


def dtype_of(name: str) -> torch.dtype:
    return {"upcast": torch.bfloat16, "exact_arithmetic": torch.float64}.get(name, torch.float32)


@pytest.mark.parametrize("name", LEFT)
def test_clear_removes_what_was_left(name: str) -> None:
    model = tiny_model("llama", dtype=dtype_of(name), fresh=True)
    weights = [id(weight) for weight in model.parameters()]
    expected = model(IDS)
    block = LEFT[name](model)
    block.__enter__()
    hooks.clear(model)
    assert hooks.active_edits(model) == ()
    assert hooks.active_strips(model) is None
    assert torch.equal(model(IDS), expected)
    assert [id(weight) for weight in model.parameters()] == weights
    assert free(model)
    del block
    assert free(model)


# Ctrl-C at any line of the code that places or removes hooks leaves none behind.


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
