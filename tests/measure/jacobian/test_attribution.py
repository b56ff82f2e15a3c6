"""Contributions: parts of a logit that add up, each by an independent route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import Prompt
from tests.checkpoints import TEXT_FAMILIES, tiny_model
from tests.families import EXPERTS, OTHERS
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
DESCRIBED = [*TEXT_FAMILIES, *(family for family in OTHERS if family not in EXPERTS)]


def parts_of(model: TransformerBridge, ids: list[int] = IDS, logit: int | str | None = 17) -> np.ndarray:
    return ost.attribution(model, Prompt.from_ids(model, ids), logit=logit).frame["contribution"].to_numpy()


@pytest.mark.parametrize("family", quick(DESCRIBED, "gemma2", "gpt2", "phi", "granite", "olmo2"))
def test_the_parts_are_the_logit(family: str) -> None:
    """Of every family, biases, soft-caps and all: the sum is what the model's own pass gives."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    with true_arithmetic(model):
        logit = float(model(torch.tensor([IDS]))[0, -1, 17])
    total = parts_of(model).sum()
    cap = getattr(model.original_model.config, "final_logit_softcapping", None)
    assert (total if cap is None else cap * np.tanh(total / cap)) == pytest.approx(logit, rel=1e-12)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "phi"])
def test_each_part_is_autograds(family: str) -> None:
    """v_i times the gradient of the logit with patterns, scales and activations held: by torch alone."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    with torch.enable_grad(), true_arithmetic(model), hooks.frozen(model, activations=True):
        embedded = model.input_to_embed(torch.tensor([IDS]))[0].detach().requires_grad_(True)
        with hooks.capture(model, "final_norm", detach=False) as record:
            model(embedded, start_at_layer=0)
        logit = model.unembed(record["final_norm"])[0, -1, 17]
        (gradient,) = torch.autograd.grad(logit, embedded)
    expected = (gradient * embedded.detach())[0].sum(-1).numpy()
    assert parts_of(model)[:-1] == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_of_one_block_without_an_mlp_each_part_is_known() -> None:
    """logit = w^T diag(g) / r ( v_n + sum_i alpha_ni W_O W_V diag(g1) v_i / r_i ): by hand, from Hugging Face's weights."""
    model = tiny_model("llama", seed=3, dtype=torch.float64, n_layers=1, n_key_value_heads=4, fresh=True)
    model.blocks[0].mlp.out.weight.zero_()
    with hooks.capture(model, "embedding", "pattern", "residual_post") as record, hooks.exact_arithmetic(model):
        model(torch.tensor([IDS]))
    stream, last = record["embedding"][0], record["residual_post"][0][0, -1]
    top: Any = model.original_model
    layer = top.model.layers[0]
    attention = layer.self_attn.original_component
    scaled = stream * (stream.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.input_layernorm.weight
    values = (scaled @ attention.v_proj.weight.T).unflatten(-1, (4, 8))
    moved = (record["pattern"][0][0, :, -1].T[..., None] * values).flatten(1) @ attention.o_proj.weight.T
    moved[-1] += stream[-1]
    row = top.lm_head.weight[17] * top.model.norm.weight * (last.square().mean() + 1e-6).rsqrt()
    assert parts_of(model)[:-1] == pytest.approx((moved @ row).numpy(), rel=1e-9)


def test_a_token_that_nothing_sees_contributes_nothing_and_can_go() -> None:
    """A masked token contributes 0. Under uniform patterns, which know no positions, masked is removed."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    hidden = 3
    with hooks.mask_scores(model, lambda query, key: (key != hidden) | (query == hidden)):
        masked = parts_of(model)
    assert masked[hidden] == 0.0

    def uniform(pattern: torch.Tensor, layer: int) -> torch.Tensor:
        return torch.ones_like(pattern).tril() / torch.arange(1, pattern.shape[-1] + 1)[:, None]

    blind = torch.ones(8, 8, dtype=torch.float64).tril()
    blind[torch.arange(8) != hidden, hidden] = 0.0
    seen = (blind / blind.sum(-1, keepdim=True)).expand(1, 4, 8, 8)
    with hooks.replace_pattern(model, seen):
        masked = parts_of(model)
    with hooks.replace_pattern(model, uniform):
        removed = parts_of(model, [*IDS[:hidden], *IDS[hidden + 1 :]])
    assert np.delete(masked, hidden) == pytest.approx(removed, rel=1e-10)


def test_of_a_network_that_is_linear_when_frozen_the_remainder_is_zero() -> None:
    """Without MLPs and biases `frozen` holds all that `detached` does: the parts are the same, and add up."""
    model = tiny_model("llama", seed=3, dtype=torch.float64, fresh=True)
    for block in model.blocks:
        block.mlp.out.weight.zero_()
    prompt = Prompt.from_ids(model, IDS)
    frozen = ost.attribution(model, prompt, logit=17, linearisation="frozen")
    assert frozen.frame["contribution"].to_numpy() == pytest.approx(parts_of(model), rel=1e-10, abs=1e-13)
    noted = frozen.provenance.parameters
    assert noted["complete"] is False
    assert noted["adds_up_within"] < 1e-12


def test_a_wrong_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the parts need not add up, finite differences see it."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    honest = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, *args: 1.01 * honest(self, *args))
    with pytest.raises(InputError, match="the full Jacobian failed its check"):
        ost.attribution(model, Prompt.from_ids(model, IDS), logit=17, linearisation="full")


def test_wrong_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is off, and parts that add up but are given to the wrong tokens."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    honest = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, rows: (1 + 1e-9) * honest(self, rows))
    with pytest.raises(InputError, match="the sum of the parts differs from the logit by"):
        parts_of(model)
    right = torch.tensor(IDS)

    def swapped(self: Linearised, rows: torch.Tensor) -> torch.Tensor:
        found, embedded = honest(self, rows), model.input_to_embed(right[None])[0][0]
        parts = (found[0] * embedded).sum(-1).roll(1)
        return (embedded * (parts / embedded.square().sum(-1))[:, None])[None]

    monkeypatch.setattr(Linearised, "pull", swapped)
    with pytest.raises(
        InputError, match=r"the part of token . differs from what the held network's logit loses without it"
    ):
        parts_of(model)


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    model = tiny_model("llama", seed=3)
    with pytest.raises(InputError, match=r"expected text that is one token, found '12', which is 2: \['1', '2'\]"):
        ost.attribution(model, "1", logit="12")
    with pytest.raises(InputError, match="linearisation"):
        ost.attribution(model, "1", linearisation="forzen")
    with pytest.raises(InputError, match="expected a token's text, or an id from 0 to"):
        ost.attribution(model, "1", logit=100_000)
    with pytest.raises(hooks.HookError, match="router chooses experts"):
        ost.attribution(tiny_model("mixtral"), "1")
