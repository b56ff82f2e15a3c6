"""Exact cases are equalities, the printed forms their formulas; what the formulas do not describe is refused."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.measure.bounds.variants import VARIANTS
from ostools.measure.formulas import weights
from ostools.models import Prompt
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model, trained

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


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_proof_equals_the_sum_over_enumerated_paths(family: Family) -> None:
    """The printed formula of B.5 with explicit paths and constants read off Hugging Face's own modules."""
    model = tiny_model(family, seed=5, dtype=torch.float64)
    prompt = Prompt.from_ids(model, IDS)
    with (
        hooks.exact_arithmetic(model),
        hooks.capture(model, "pattern", "norm1_scale", "norm2_scale", "final_norm_scale", "residual_mid") as record,
    ):
        model(prompt.ids[None])
    norms = hooks.norms(model)
    sigma = max(_mlp_lipschitz(model, layer, record["residual_mid"][layer][0]) for layer in range(2))
    beta_1, beta_2 = (
        [
            float(record[f"norm{k}_scale"][layer].min() / norms[f"blocks.{layer}.ln{k}"].gain.abs().max())
            for layer in range(2)
        ]
        for k in (1, 2)
    )
    constant = float(norms["ln_final"].gain.abs().max() / record["final_norm_scale"][0, -1, 0])
    for beta in beta_2:
        constant *= sigma / beta + 1
    alpha = [record["pattern"][layer][0].mean(0) for layer in range(2)]
    last = len(IDS) - 1
    found = values(model, prompt, "proof")
    for i in range(len(IDS)):
        total = 0.0
        for inner in combinations_with_replacement(range(i, last + 1), 1):
            weight = 1.0
            for layer, (key, query) in enumerate(pairwise((i, *inner, last))):
                weight *= float(alpha[layer][query, key]) / beta_1[layer] + (query == key)
            total += weight
        assert found[i] == pytest.approx(constant * total, rel=1e-7)


def _mlp_lipschitz(model: TransformerBridge, layer: int, residual: torch.Tensor) -> float:
    """max_j ||J_psi|| at the inputs of this block's MLP, by autograd through Hugging Face's module."""
    inputs = hooks.norms(model)[f"blocks.{layer}.ln2"](residual)
    module = model.blocks[layer].mlp.original_component
    jacobians = [torch.autograd.functional.jacobian(lambda x: module(x[None, None])[0, 0], x) for x in inputs]
    return max(float(torch.linalg.matrix_norm(torch.as_tensor(jacobian), ord=2)) for jacobian in jacobians)


def test_windows_reach_no_further_than_they_can() -> None:
    """Two blocks that see themselves and the token before: tokens more than two back have bound and derivative 0."""
    model = tiny_model("llama", dtype=torch.float64)
    prompt = Prompt.from_ids(model, IDS)
    with hooks.mask_scores(model, lambda query, key: query - key < 2):
        bound, found = values(model, prompt, "local"), measured(model, prompt)
    reach = len(IDS) - 3
    assert (bound[:reach] == 0).all()
    assert (found[:reach] == 0).all()
    assert (found[reach:] > 0).all()
    assert (found <= bound * (1 + 1e-9)).all()


def test_columns_and_kinds() -> None:
    model = tiny_model("gemma2")
    result = ost.bounds(model, "ab 12", variants=list(VARIANTS))
    columns = ["last", "position", "token_id", "token", "origin", "variant", "kind", "linearisation", "norm", "value"]
    columns += ["believed"]
    assert list(result.frame.columns) == columns
    kinds: Any = result.frame.groupby("variant")[["kind", "norm"]].first()
    assert set(kinds[kinds["kind"] == "certified"].index) == {"local", "windowed(1)"}
    assert set(kinds.loc[kinds["kind"] != "certified", "kind"]) == {"paper"}
    assert set(result.frame["linearisation"]) == {"frozen"}
    assert set(kinds["norm"]) == {"operator"}
    usual = ost.bounds(model, "ab 12")
    assert usual.frame["variant"].unique().tolist() == ["local"]
    summary = ost.compare(ost.sensitivity(model, "ab 12"), usual).summary
    assert summary["holds"].tolist() == [True]


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


def test_gain_read_without_its_offset_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: w in place of 1 + w."""
    model = tiny_model("gemma")
    honest = weights._before
    monkeypatch.setattr(weights, "_before", lambda norm, weight: honest(norm, weight) * (norm.gain - 1.0) / norm.gain)
    with pytest.raises(ost.InputError, match="block 1: attention, computed from the weights as read here, differs"):
        ost.bounds(model, "ab 12", variants="local")


def test_refusals() -> None:
    model = tiny_model("gemma", fresh=True)
    with pytest.raises(ost.InputError, match="unknown variant 'lokal': did you mean 'local'"):
        ost.bounds(model, "ab", variants="lokal")
    with pytest.raises(ost.InputError, match="at least one variant"):
        ost.bounds(model, "ab", variants=[])
    with pytest.raises(ost.InputError, match="unknown mlp_norm"):
        ost.bounds(model, "ab", mlp_norm="power")
    model.blocks[0].mlp.out.weight[0, 0] = float("inf")
    with pytest.raises(ost.InputError, match="not finite"):
        ost.bounds(model, "ab")


@pytest.mark.parametrize(
    "text", ["Once upon a time, there was a little girl named Lily.", "a a a a a a a a a a a a a a a"]
)
def test_bounds_hold_on_a_pretrained_model(text: str) -> None:
    model = trained("stories")
    profile = ost.sensitivity(model, text, linearisations=["frozen"])
    (row,) = ost.compare(profile, ost.bounds(model, text)).summary.to_dict("records")
    assert row["holds"]
    assert row["median_log10_looseness"] >= 0
