"""Exact cases are equalities, the printed forms their formulas; what the formulas do not describe is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.measure.formulas import weights
from ostools.models import Prompt
from tests.checkpoints import Family, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]


def values(model: TransformerBridge, prompt: Prompt, variant: str, **options) -> np.ndarray:
    return ost.bounds(model, prompt, variants=variant, **options).frame["value"].to_numpy()


def measured(model: TransformerBridge, prompt: Prompt, norm: str = "operator_norm") -> np.ndarray:
    return ost.sensitivity(model, prompt, linearisations=["frozen"]).frame[norm].to_numpy()


def scalar_llama(gain: float, layers: int) -> TransformerBridge:
    """One head as wide as the model, W_OV = c I, no MLP, constant gains: every block moves by a multiple of the identity."""
    model = tiny_model(
        "llama",
        seed=1,
        dtype=torch.float64,
        d_model=8,
        n_heads=1,
        n_key_value_heads=1,
        d_head=8,
        n_layers=layers,
        fresh=True,
    )
    for layer, block in enumerate(model.blocks):
        block.attn.v.weight.copy_(torch.eye(8))
        block.attn.o.weight.copy_((0.5 + layer) * torch.eye(8))
        block.mlp.out.weight.zero_()
        block.ln1.weight.fill_(gain)
    model.ln_final.weight.fill_(gain)
    return model


@pytest.mark.parametrize("layers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_bounds_are_exact_where_the_theorem_is_tight(layers: int) -> None:
    model = scalar_llama(0.7, layers)
    prompt = Prompt.from_ids(model, IDS)
    for name in ("local", "windowed(1)"):
        assert values(model, prompt, name) == pytest.approx(measured(model, prompt), rel=1e-9)


def test_edits_that_the_formulas_do_not_know_are_refused() -> None:
    model = tiny_model("gemma")
    with hooks.ablate_heads(model, [(0, 0)]):
        model(torch.tensor([IDS]))
        with pytest.raises(ost.InputError, match="ablate_heads"):
            ost.bounds(model, "ab")
    point = model.hook_dict["blocks.0.hook_resid_pre"]
    point.add_hook(lambda tensor, hook: tensor * 2)
    with pytest.raises(ost.InputError, match="foreign"):
        ost.bounds(model, "ab")
    point.remove_hooks()


@pytest.mark.parametrize("family", ["gemma", "gemma3", "llama"])
def test_grouped_heads_read_wrongly_are_caught(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: key/value heads in the wrong order."""
    model = tiny_model(family)
    honest = weights._expanded
    monkeypatch.setattr(weights, "_expanded", lambda value, heads: honest(value, heads).flip(0))
    with pytest.raises(ost.InputError, match="block 1: attention, computed from the weights as read here, differs"):
        ost.bounds(model, "ab 12", variants="local")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variants": "lokal"}, "unknown variant 'lokal': did you mean 'local'"),
        ({"variants": []}, "at least one variant"),
        ({"mlp_norm": "power"}, "unknown mlp_norm"),
        ({}, "not finite"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    model = tiny_model("gemma", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("inf")
    with pytest.raises(ost.InputError, match=words):
        ost.bounds(model, "ab", **options)
