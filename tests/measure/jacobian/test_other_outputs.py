"""Sensitivity of a logit and of a difference of two: against plain autograd, and under their bounds."""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.passes import output
from tests.checkpoints import tiny_model

IDS = [1, 5, 9, 4, 9, 7, 3, 3]


def model_of(family: Any, **options: Any) -> TransformerBridge:
    return tiny_model(family, seed=3, dtype=torch.float64, **options)


def gradient(
    model: TransformerBridge, at: int, first: int, second: int | None = None
) -> torch.Tensor:
    """|d logit / d v_i| of every token by autograd through the model itself, its norms in float64
    too.
    """
    embedded = model.input_to_embed(torch.tensor([IDS]))[0].detach().requires_grad_(True)
    with hooks.exact_arithmetic(model):
        logits = model(embedded, start_at_layer=0)[0, at]
    value = logits[first] if second is None else logits[first] - logits[second]
    return torch.autograd.grad(value, embedded)[0][0].norm(dim=-1)


def norms(found: Any, linearisation: str = "full") -> Any:
    return found.frame[found.frame["linearisation"] == linearisation]


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_a_logit_and_a_difference_are_autograds(family: Any) -> None:
    model = model_of(family)
    prompt = ost.Prompt.from_ids(model, IDS)
    for logit in ((11,), (11, 23)):
        frame = norms(ost.sensitivity(model, prompt, logit=logit))
        for column in ("operator_norm", "frobenius_norm"):
            assert frame[column].to_numpy() == pytest.approx(
                gradient(model, -1, *logit).numpy(), rel=1e-8
            )


def test_bounds_hold_of_a_logit_and_tightly_where_they_can() -> None:
    """Adversarial: large weights; and a row along the largest singular direction of J reaches ||w||
    ||J||.
    """
    model = tiny_model("llama", seed=5, dtype=torch.float64, fresh=True)
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.out.weight *= 30.0
    prompt = ost.Prompt.from_ids(model, IDS)
    embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
    top = torch.linalg.svd(ost.measure.jacobian(model, embedded)[0]).U[:, 0]
    with torch.no_grad():
        model.unembed.original_component.weight[11] = top
    sums = ost.bounds(model, prompt, variants=["local", "windowed(1)"])
    for logit in (None, 11, (7, 23)):
        measured = ost.sensitivity(model, prompt, logit=logit)
        assert ost.compare(measured, sums).summary["holds"].tolist() == [True, True]
    first = [norms(ost.sensitivity(model, prompt, logit=logit)).iloc[0] for logit in (11, None)]
    assert first[0]["operator_norm"] == pytest.approx(first[1]["operator_norm"], rel=1e-8)


def test_a_wrong_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a row of the output layer that is a thousandth off."""
    model = model_of("llama")
    honest = output.output_row
    monkeypatch.setattr(
        output, "output_row", lambda *asked: (1.001 * honest(*asked)[0], honest(*asked)[1])
    )
    with pytest.raises(ost.InputError, match="differs from the model's own logit"):
        ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), logit=11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit": (1, 2, 3)}, r"expected one token or a pair such as \(' A', ' B'\), found \(1"),
        ({"logit": (4, 4)}, "expected two different tokens"),
        ({"logit": 10**6}, "whole number of at most"),
        ({"logit": 4, "method": "estimate"}, "exact in one backward pass"),
        ({"logit": 4, "linearisations": ["detached"]}, r"use attribution\(model, prompt, logit="),
    ],
    ids=str,
)
def test_outputs_that_are_not_there_are_refused(options: dict[str, Any], words: str) -> None:
    model = model_of("llama")
    with pytest.raises(ost.InputError, match=words):
        ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), **options)


def test_another_output_stands_beside_nothing_of_y_n() -> None:
    model = model_of("llama")
    prompt = ost.Prompt.from_ids(model, IDS)
    plain, logit = ost.sensitivity(model, prompt), ost.sensitivity(model, prompt, logit=4)
    sums = ost.bounds(model, prompt, variants="theorem-5.1")
    compare: Any = ost.compare
    for first, second, words in (
        (
            logit,
            sums,
            r"'theorem-5.1', which describes y_n and not a logit: bounds\(\.\.\., variants=\['local'\]\)",
        ),
        (plain, logit, r"expected two results of the same logit=, found None"),
    ):
        with pytest.raises(ost.InputError, match=words):
            compare(first, second)
