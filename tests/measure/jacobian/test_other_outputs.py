"""Sensitivity of another position, of a logit and of a difference of two: against plain autograd,
and under their bounds.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.passes import output
from ostools.models import Prompt
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
    prompt = Prompt.from_ids(model, IDS)
    for logit in ((11,), (11, 23)):
        frame = norms(ost.sensitivity(model, prompt, logit=logit))
        for column in ("operator_norm", "frobenius_norm"):
            assert frame[column].to_numpy() == pytest.approx(
                gradient(model, -1, *logit).numpy(), rel=1e-8
            )


def test_another_position_is_the_last_one_of_the_beginning() -> None:
    model = model_of("llama")
    prompt = Prompt.from_ids(model, IDS)
    for at in (-4, 0):
        whole = ost.sensitivity(model, prompt, position=at, layers="all")
        end = at % len(IDS) + 1
        part = ost.sensitivity(model, Prompt.from_ids(model, IDS[:end]), layers="all")
        assert whole.frame.equals(part.frame)
        assert whole.provenance.token_ids == tuple(IDS)
        assert whole.provenance.parameters["position"] == end - 1
    both = norms(ost.sensitivity(model, prompt, position=4, logit=11))
    expected = gradient(model, 4, 11)
    assert both["operator_norm"].tolist() == pytest.approx(expected[:5].tolist(), rel=1e-8)
    assert (expected[5:] == 0).all()


def test_bounds_hold_of_a_logit_and_of_another_position_and_tightly_where_they_can() -> None:
    """Adversarial: large weights; and a row along the largest singular direction of J reaches ||w||
    ||J||.
    """
    model = tiny_model("llama", seed=5, dtype=torch.float64, fresh=True)
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.out.weight *= 30.0
    prompt = Prompt.from_ids(model, IDS)
    embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
    for at, outputs in ((len(IDS) - 1, (None, 11, (7, 23))), (3, (11,))):
        top = torch.linalg.svd(ost.measure.jacobian(model, embedded[: at + 1])[0]).U[:, 0]
        with torch.no_grad():
            model.unembed.original_component.weight[11] = top
        sums = ost.bounds(model, prompt, variants=["local", "windowed(1)"], positions="all")
        for logit in outputs:
            measured = ost.sensitivity(model, prompt, position=at, logit=logit)
            assert ost.compare(measured, sums).summary["holds"].tolist() == [True, True]
        first = [
            norms(ost.sensitivity(model, prompt, position=at, logit=logit)).iloc[0]
            for logit in (11, None)
        ]
        assert first[0]["operator_norm"] == pytest.approx(first[1]["operator_norm"], rel=1e-8)


def test_a_wrong_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a row of the output layer that is a thousandth off."""
    model = model_of("llama")
    honest = output.output_row
    monkeypatch.setattr(
        output, "output_row", lambda *asked: (1.001 * honest(*asked)[0], honest(*asked)[1])
    )
    with pytest.raises(ost.InputError, match="differs from the model's own logit"):
        ost.sensitivity(model, Prompt.from_ids(model, IDS), logit=11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"position": 8},
            r"position: expected a position from 0 to 7, or from the end down to -8, found 8",
        ),
        ({"logit": (1, 2, 3)}, r"expected one token or a pair such as \(' A', ' B'\), found 3"),
        ({"logit": (4, 4)}, "expected two different tokens"),
        ({"logit": 10**6}, "or an id from 0 to"),
        ({"logit": 4, "method": "estimate"}, "exact in one backward pass"),
        ({"logit": 4, "linearisations": ["detached"]}, r"use attribution\(model, prompt, logit="),
    ],
    ids=str,
)
def test_outputs_that_are_not_there_are_refused(options: dict[str, Any], words: str) -> None:
    model = model_of("llama")
    with pytest.raises(ost.InputError, match=words):
        ost.sensitivity(model, Prompt.from_ids(model, IDS), **options)


def test_another_output_stands_beside_nothing_of_y_n() -> None:
    model = model_of("llama")
    prompt = Prompt.from_ids(model, IDS)
    with hooks.mask_scores(model, lambda query, key: query - key < 3):
        model(torch.tensor([IDS]))
        with pytest.raises(
            ost.InputError, match=r"no edit that may read later tokens, found 'mask_scores'"
        ):
            ost.sensitivity(model, prompt, position=3)
    plain, logit = ost.sensitivity(model, prompt), ost.sensitivity(model, prompt, logit=4)
    early, sums = (
        ost.sensitivity(model, prompt, position=3),
        ost.bounds(model, prompt, variants="theorem-5.1"),
    )
    compare: Any = ost.compare
    for first, second, words in (
        (
            logit,
            sums,
            r"'theorem-5.1', which describes y_n and not a logit: bounds\(\.\.\., variants=\['local'\]\)",
        ),
        (early, sums, r"of position 3, .* bounds\(\.\.\., positions='all'\)"),
        (plain, logit, r"expected two results of the same logit=, found None"),
    ):
        with pytest.raises(ost.InputError, match=words):
            compare(first, second)
