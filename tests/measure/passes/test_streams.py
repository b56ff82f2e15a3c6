"""Passes whose logits nobody reads make none; a hook of the user's still sees those that it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hooks
from ostools.measure.passes.contexts import no_logits, run_from
from ostools.models import view_in
from ostools.models.lazy_cast import LazyCast
from ostools.models.precision import casting
from tests.checkpoints import OTHERS, TEXT_FAMILIES, Family, tiny_model
from tests.families import SLOW

IDS = torch.tensor([[3, 9, 4, 17]])


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *(family for family in OTHERS if family not in SLOW)])
def test_no_logits_and_the_same_y(family: Family) -> None:
    model = tiny_model(family)
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        embedded = model.input_to_embed(IDS)[0]
        run_from(model, embedded)
        y = record["final_norm"]
        logits = run_from(model, embedded, logits_to_keep=no_logits(model))
    assert logits.shape[1] == 0
    assert torch.equal(record["final_norm"], y)


def test_no_number_of_an_unembedding_that_is_cast_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", dtype=torch.bfloat16, fresh=True)
    made: list[int] = []

    def counted(make: Callable[[LazyCast], Tensor]) -> Callable[[LazyCast], Tensor]:
        def numbers(self: LazyCast) -> Tensor:
            made.append(max(self.shape))
            return make(self)

        return numbers

    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)
    for name in ("dense", "_for_once"):
        monkeypatch.setattr(LazyCast, name, counted(getattr(LazyCast, name)))
    seen = view_in(model, torch.float64)
    with torch.no_grad():
        seen(IDS, logits_to_keep=no_logits(seen))
        assert int(model.cfg.d_vocab) not in made
        seen(IDS, logits_to_keep=1)
    assert int(model.cfg.d_vocab) in made


@pytest.mark.parametrize("where", ["hook point", "unembedding", "inner model", "bridge"])
def test_a_hook_that_waits_for_logits_sees_the_last_token(where: str) -> None:
    model, seen = tiny_model("gemma", fresh=True), []

    def look(logits: Tensor, *rest: Any, **more: Any) -> None:
        seen.append(tuple(logits.shape))

    if where == "hook point":
        with torch.no_grad(), model.hooks(fwd_hooks=[("unembed.hook_out", look)]):
            model(IDS, logits_to_keep=no_logits(model))
    else:
        inner = model.original_model
        module = {"unembedding": inner.lm_head, "inner model": inner, "bridge": model}[where]
        handle = module.register_forward_hook(lambda module, args, out: look(getattr(out, "logits", out)))
        with torch.no_grad():
            model(IDS, logits_to_keep=no_logits(model))
        handle.remove()
    assert seen == [(1, 1, int(model.cfg.d_vocab))]
