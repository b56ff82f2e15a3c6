"""One thread at a time on a model; and `clear` removes what was left."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.hooks import HookError
from ostools.hooks.freeze import HeldParts, holding
from tests.checkpoints import tiny_model

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


LEFT: dict[str, Callable[[TransformerBridge], Any]] = {
    "capture": lambda model: hooks.capture(model, "z", "pattern"),
    "scale_scores": lambda model: hooks.scale_scores(model, 0.5),
    "frozen": lambda model: hooks.frozen(model, activations=True),
    "holding": lambda model: holding(model, [HeldParts(attention=True)]),
    "gated": lambda model: hooks.gated(model, [hooks.Head(0, 1)], torch.ones(1)),
    "exact_arithmetic": hooks.exact_arithmetic,
    "rounded": lambda model: hooks.rounded(model, "residual", "bfloat16"),
}
"""A block of every kind of hook: at hook points, on modules, in the place of a module's forward."""


@pytest.mark.parametrize("name", LEFT)
def test_clear_removes_what_was_left(name: str) -> None:
    dtype = torch.float64 if name == "exact_arithmetic" else torch.float32
    model = tiny_model("llama", dtype=dtype, fresh=True)
    weights = [id(weight) for weight in model.parameters()]
    expected = model(IDS)
    block = LEFT[name](model)
    block.__enter__()
    hooks.clear(model)
    assert hooks.active_edits(model) == ()
    assert torch.equal(model(IDS), expected)
    assert [id(weight) for weight in model.parameters()] == weights
    assert free(model)
    del block
    assert free(model)
