"""Contributions: parts of a logit that add up, each by an independent route."""

from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.jacobian.linearise import Linearised
from ostools.measure.passes.contexts import run_from, true_arithmetic
from tests.checkpoints import TEXT_FAMILIES, refused, tiny_model
from tests.families import EXPERTS, OTHERS

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
DESCRIBED = [*TEXT_FAMILIES, *(family for family in OTHERS if family not in EXPERTS)]


def parts_of(
    model: TransformerBridge, ids: list[int] = IDS, logit: int | str | None = 17
) -> np.ndarray:
    return (
        ost.attribution(model, ost.Prompt.from_ids(model, ids), logit=logit)
        .frame["contribution"]
        .to_numpy()
    )


@pytest.mark.parametrize("family", DESCRIBED)
def test_each_part_is_autograds_and_their_sum_is_the_logit(family: str) -> None:
    """v_i times the gradient of the logit, all parts held, by torch alone; biases, soft-caps and
    all.
    """
    model = tiny_model(family, seed=3, dtype=torch.float64)
    with true_arithmetic(model):
        logit = float(model(torch.tensor([IDS]))[0, -1, 17])
        with torch.enable_grad(), hooks.frozen(model, activations=True):
            embedded = model.input_to_embed(torch.tensor([IDS]))[0].detach().requires_grad_(True)
            with hooks.capture(model, "final_norm", detach=False) as record:
                run_from(model, embedded)
            (gradient,) = torch.autograd.grad(
                model.unembed(record["final_norm"])[0, -1, 17], embedded
            )
    config: Any = model.original_model.config
    parts, cap = parts_of(model), getattr(config, "final_logit_softcapping", None)
    scaled = gradient / getattr(
        config, "logits_scaling", 1.0
    )  # granite's, which stands behind the output layer
    assert parts[:-1] == pytest.approx(
        (scaled * embedded.detach())[0].sum(-1).numpy(), rel=1e-10, abs=1e-12
    )
    assert (parts.sum() if cap is None else cap * np.tanh(parts.sum() / cap)) == pytest.approx(
        logit, rel=1e-12
    )


def test_a_token_that_nothing_sees_contributes_nothing() -> None:
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    assert parts_of(model)[3] != 0.0
    with hooks.mask_scores(model, lambda query, key: (key != 3) | (query == 3)):
        assert parts_of(model)[3] == 0.0


def test_of_a_network_that_is_linear_when_frozen_the_remainder_is_zero() -> None:
    """Without MLPs and biases `frozen` holds all that `detached` does: the parts are the same, and
    add up.
    """
    model = tiny_model("llama", seed=3, dtype=torch.float64, fresh=True)
    for block in model.blocks:
        block.mlp.out.weight.zero_()
    prompt = ost.Prompt.from_ids(model, IDS)
    frozen = ost.attribution(model, prompt, logit=17, linearisation="frozen")
    assert frozen.frame["contribution"].to_numpy() == pytest.approx(
        parts_of(model), rel=1e-10, abs=1e-13
    )
    noted = frozen.provenance.parameters
    assert noted["complete"] is False
    assert noted["adds_up_within"] < 1e-12


def test_a_wrong_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the parts need not add up, finite differences see it."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    honest = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, *args: 1.01 * honest(self, *args))
    with pytest.raises(ost.InputError, match="the full Jacobian failed its check"):
        ost.attribution(model, ost.Prompt.from_ids(model, IDS), logit=17, linearisation="full")


def test_wrong_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is off, and parts that add up but are given to the wrong tokens."""
    model = tiny_model("llama", seed=3, dtype=torch.float64)
    honest = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, rows, *_: (1 + 1e-9) * honest(self, rows))
    refused(r"sum_i J_i v_i \+ bias terms differs from y_n by", parts_of, model)
    right = torch.tensor(IDS)

    def swapped(self: Linearised, rows: torch.Tensor, *_: Any) -> torch.Tensor:
        gradient, embedded = honest(self, rows)[0], model.input_to_embed(right[None])[0][0]
        parts = (gradient * embedded).sum(-1).roll(1)
        return (embedded * (parts / embedded.square().sum(-1))[:, None])[None]

    monkeypatch.setattr(Linearised, "pull", swapped)
    refused("the detached Jacobian failed its check", parts_of, model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit": "12"}, r"expected text that is one token, found '12', which is 2: \['1', '2'\]"),
        ({"linearisation": "forzen"}, "linearisation"),
        ({"logit": 100_000}, "a token's id: expected a whole number of at most"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options: dict[str, Any], words: str) -> None:
    refused(words, ost.attribution, tiny_model("llama", seed=3), "1", **options)


def test_experts_are_refused_where_activations_are_held() -> None:
    with pytest.raises(hooks.HookError, match="router chooses experts"):
        ost.attribution(tiny_model("mixtral"), "1")


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
@pytest.mark.parametrize("linearisation", ["detached", "full"])
def test_the_parts_of_a_contrast_are_the_differences_of_the_parts(
    family: str, linearisation: Any
) -> None:
    """Linear, before a soft-cap and with biases; the value is the difference of the model's own two
    logits, after it.
    """
    model = tiny_model(family, seed=3, dtype=torch.float64)
    prompt = ost.Prompt.from_ids(model, IDS)
    contrast, first, second = (
        ost.attribution(model, prompt, logit=logit, linearisation=linearisation)
        for logit in ((17, 23), 17, 23)
    )
    expected = first.frame["contribution"].to_numpy() - second.frame["contribution"].to_numpy()
    assert contrast.frame["contribution"].to_numpy() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    values = [result.provenance.parameters["logit_value"] for result in (contrast, first, second)]
    assert values[0] == pytest.approx(values[1] - values[2], rel=1e-12)
    assert contrast.provenance.parameters["logit"] == (17, 23)
