"""Patterns made again in strips give the derivatives that whole patterns give, in every family, linearisation and edit."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from hooks import strips as attention_in_strips
from ostools.ground.errors import InputError
from ostools.measure.formulas.forward import forward
from ostools.measure.jacobian.sensitivity import LINEARISATIONS
from ostools.measure.passes import contexts as passes
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import Prompt
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model
from tests.measure.jacobian.dense import assert_close, by_autograd, by_formulas
from tests.sets import quick

IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70, 71, 9, 33, 41])  # 11: a prime
LONG = 4  # queries a strip


def in_strips(model: TransformerBridge, ids: torch.Tensor, linearisation: str, size: int = LONG) -> torch.Tensor:
    with hooks.in_strips(model, size), true_arithmetic(model):
        return by_formulas(model, ids, linearisation, chunk=7)


EDITS = {
    "none": lambda model: nullcontext(),
    "window": lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
    "sink": lambda model: hooks.mask_scores(model, lambda query, key: (key == 0) | (query - key < 2)),
    "temperature": lambda model: hooks.scale_scores(model, 1.7),
    "log n": lambda model: hooks.scale_scores(model, lambda query: (query + 2.0).log()),
    "shared edge": lambda model: hooks.ablate_edges(model, [(0, 1, 7, 4), (1, 0, 10, 0)], method="renormalise"),
}


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma2", "gpt2"))
@pytest.mark.parametrize("linearisation", LINEARISATIONS)
def test_every_row_in_strips_is_autograds(family: Family, linearisation: str) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float64, n_layers=3)
    assert_close(in_strips(model, IDS, linearisation), by_autograd(model, IDS, linearisation), 1e-9)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", quick(["gemma2", "gemma3", "gpt2"], "gemma2"))
def test_edits_are_in_the_derivative_of_strips(edit: str, family: Family) -> None:
    model = tiny_model(family, seed=6, dtype=torch.float64)
    with EDITS[edit](model):
        for linearisation in ("full", "frozen"):
            assert_close(in_strips(model, IDS, linearisation), by_autograd(model, IDS, linearisation), 1e-9)


@pytest.mark.parametrize("size", quick([1, 2, 10, 11, 50], 1, 10))
def test_strips_of_any_size_and_a_prompt_of_one_token(size: int) -> None:
    model = tiny_model("gemma2", seed=5, scale=4.0, dtype=torch.float64)
    for ids in (IDS, IDS[:1]):
        assert_close(in_strips(model, ids, "full", size), by_autograd(model, ids, "full"), 1e-8)


def long(monkeypatch: pytest.MonkeyPatch, heads: int, pos: int, element: int) -> None:
    """Make a prompt of `pos` tokens long, in strips of `LONG` queries."""
    monkeypatch.setattr(passes, "WHOLE_PATTERN_BYTES", 0)
    monkeypatch.setattr(passes, "STRIP", LONG * heads * pos * element)


@pytest.mark.parametrize("method", ["exact", pytest.param("sketch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64])
@pytest.mark.parametrize("family", quick(["gemma2", "gpt2"], "gpt2"))
def test_long_prompts_are_measured_and_certified_as_short_ones(
    family: Family, dtype: torch.dtype, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family, seed=1, dtype=dtype)
    prompt = Prompt.from_ids(model, IDS)
    asked = {"linearisations": LINEARISATIONS, "layers": (0, 1), "method": method}
    short = ost.sensitivity(model, prompt, **asked)
    long(monkeypatch, 4, len(IDS), dtype.itemsize)
    found = ost.sensitivity(model, prompt, **asked)
    columns = ["operator_lower", "frobenius_norm", "frobenius_upper"]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-8
    for name in columns:
        assert_close(torch.tensor(found.frame[name]), torch.tensor(short.frame[name]), tolerance)
    for name in LINEARISATIONS:
        run = found.provenance.parameters["runs"][name]
        assert run["route"] == "analytic"
        certificate = run["certificate"]
        assert certificate["error"] < 5e-3 if certificate["informative"] else certificate["against_autograd"] < 1e-2


def test_masks_of_a_long_prompt_are_rules_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma")
    prompt = Prompt.from_ids(model, IDS)
    long(monkeypatch, 4, len(IDS), 4)
    allowed = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
    with pytest.raises(hooks.HookError, match="a rule of positions"), hooks.mask_scores(model, allowed):
        ost.sensitivity(model, prompt)
    with hooks.mask_scores(model, lambda query, key: allowed[query, key]):
        ost.sensitivity(model, prompt)


@pytest.mark.parametrize("plant", ["scores", "pattern"])
def test_every_strip_is_checked(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of the last strip but one off, and the block is refused."""
    model = tiny_model("gemma", dtype=torch.float32)

    def spoilt(tensor: torch.Tensor, hook: object) -> torch.Tensor | None:
        if tensor.shape[-1] != 8:
            return None
        out = tensor.clone()
        out[0, 1, -1, 2] += 0.1
        return out

    # Nobody may edit a strip by a hook of his own: this one stands for an attention that computes something else.
    monkeypatch.setattr(attention_in_strips, "_require_stripwise", lambda point: None)
    attention = model.blocks[0].attn
    point = attention.hook_attn_scores if plant == "scores" else attention.hook_pattern
    with hooks.in_strips(model, LONG):
        block = forward(model, IDS).block(0, torch.float32)
        block.check()
        block.check_scores()
        point.add_hook(spoilt)
        said = "the scores of attention" if plant == "scores" else "not the softmax"
        try:
            with pytest.raises(InputError, match=said):
                block.check_scores()
        finally:
            point.remove_hooks("fwd")
