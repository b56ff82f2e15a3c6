"""What the generic route knows inside a block: patterns and norms are Hugging Face's, `frozen` is
what it is by a record.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.olmo.modeling_olmo import OlmoMLP

import ostools as ost
from ostools import hooks
from ostools.hooks.sites import unknown_inside
from tests.checkpoints import write_checkpoint
from tests.generic_models import generic_model
from tests.models.test_generic import IDS, loaded, plain_jacobian
from tests.sets import quick

HELD = ("frozen", "frozen-attention", "frozen-norm")
# Latent attention; sinks; norms behind and of queries and keys; a norm without a weight; the mean,
# a parallel block; g = 1 + w.
KINDS = (
    "deepseek_v3",
    "deepseek_v2",
    "gpt_oss",
    "gemma4_text",
    "olmo",
    "cohere",
    "nemotron",
    "gpt_bigcode",
)


@pytest.mark.parametrize("kind", quick(KINDS, "deepseek_v3", "gpt_oss"))
def test_patterns_are_hugging_faces(kind: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, kind)
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(torch.tensor([IDS]))
    expected = generic_model(kind)(
        torch.tensor([IDS]), use_cache=False, output_attentions=True
    ).attentions
    assert len(record["pattern"]) == len(expected)
    for layer, pattern in record["pattern"].items():
        torch.testing.assert_close(pattern, expected[layer])


@pytest.mark.parametrize("kind", quick(KINDS, "deepseek_v3"))
@pytest.mark.parametrize("linearisation", HELD)
def test_what_is_held_is_certified_by_finite_differences(
    kind: str, linearisation: Any, tmp_path: Path
) -> None:
    model = loaded(tmp_path, kind, dtype="float64")
    result = ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), linearisations=[linearisation])
    assert result.provenance.parameters["runs"][linearisation]["certificate"]["error"] < 1e-6


# A record rotates by float32 angles in float64 too, the generic route by float64 ones.
AGREES = {"gpt2": 1e-9} | dict.fromkeys(
    ("gemma2", "llama", "gpt-oss", "olmo2", "neox", "bloom", "mpt"), 1e-6
)


@pytest.mark.parametrize(
    ("family", "linearisation"),
    quick(product(AGREES, HELD), *product(("gpt2", "llama", "bloom"), ("frozen",))),
)
def test_what_is_held_is_what_a_record_holds(
    family: str, linearisation: Any, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, family, seed=1)
    norms, parts = [], []
    for route in ("auto", "generic"):
        model = ost.load_model(tmp_path, device="cpu", dtype="float64", route=route)
        prompt = ost.Prompt.from_ids(model, IDS)
        norms.append(
            ost.sensitivity(model, prompt, linearisations=[linearisation]).frame["operator_norm"]
        )
        parts.append(
            ost.attribution(model, prompt, logit=50, linearisation=linearisation).frame[
                "contribution"
            ]
        )
    assert float((norms[0] / norms[1] - 1).abs().max()) < AGREES[family]
    assert float((parts[0] - parts[1]).abs().max() / parts[0].abs().max()) < AGREES[family]


def test_latent_attention_frozen_is_plain_autograd_with_softmax_and_scales_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latent's norm stands on the way from v to a value: with its scale held that way is a
    matrix.
    """
    model = loaded(tmp_path, "deepseek_v3", dtype="float64")
    embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
    found = ost.measure.jacobian(model, embedded, freeze=hooks.frozen(model))
    own_softmax = functional.softmax

    def norm(self: Any, x: Tensor) -> Tensor:
        return (
            self.weight
            * x
            * torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + self.variance_epsilon)
        )

    monkeypatch.setattr(
        nn.functional, "softmax", lambda x, **options: own_softmax(x, dim=-1).detach()
    )
    monkeypatch.setattr(DeepseekV3RMSNorm, "forward", norm)
    reference = PreTrainedModel.double(generic_model("deepseek_v3"))
    reference.config._experts_implementation = "eager"
    expected = plain_jacobian(reference, "model.layers", "model.norm")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-eager"])
@pytest.mark.parametrize(
    ("kind", "parts", "words"),
    [
        ("mamba", ("patterns",), "block 0 computes no softmax"),
        ("falcon_h1", ("patterns",), "tokens meet in its blocks outside of a softmax"),
        ("bamba", ("norms",), "BambaRMSNormGated"),
        ("diffllama", ("patterns",), "2 softmaxes"),
    ],
)
def test_what_is_not_known_is_refused_with_its_reason(
    kind: str, parts: tuple[str, ...], words: str, dtype: str, tmp_path: Path
) -> None:
    """In 16 bits too, whose rounding is above what Falcon-H1's state space adds."""
    model = loaded(tmp_path, kind, dtype=dtype)
    assert words in str(unknown_inside(model, *parts))
    linearisation = "frozen-attention" if parts == ("patterns",) else "frozen-norm"
    with pytest.raises(ValueError, match=words):
        ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), linearisations=[linearisation])


def test_a_norm_that_is_no_module_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OlmoMLP.forward
    monkeypatch.setattr(
        OlmoMLP, "forward", lambda self, x: own(self, x * torch.rsqrt(x.square().mean(-1, True)))
    )
    model = loaded(tmp_path, "olmo")
    assert "is no module of a norm" in str(unknown_inside(model, "norms"))
    assert unknown_inside(model, "patterns") is None


@pytest.mark.parametrize("exponent", [-1, torch.tensor(-0.5), torch.tensor([1.0, 0.5])], ids=repr)
@pytest.mark.parametrize("power", [torch.pow, Tensor.pow, Tensor.__pow__])
def test_a_power_that_divides_is_seen_whatever_holds_its_exponent(
    exponent: Any, power: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OlmoMLP.forward

    def forward(mlp: OlmoMLP, x: Tensor) -> Tensor:
        return own(mlp, x * power(1 + x.square().mean(-1, True), exponent).mean(-1, True))

    monkeypatch.setattr(OlmoMLP, "forward", forward)
    assert "is no module of a norm" in str(unknown_inside(loaded(tmp_path, "olmo"), "norms"))


def test_a_norm_of_another_form_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DeepseekV3RMSNorm, "forward", lambda self, x: x / (1 + x.abs().mean(-1, keepdim=True))
    )
    assert "no norm of a known form" in str(
        unknown_inside(loaded(tmp_path, "deepseek_v3"), "norms")
    )


def test_an_edge_is_taken_out_of_a_closed_block(tmp_path: Path) -> None:
    """A hook at a pattern acts: without the edge from its key, a query's logits are those with a
    weight of 0 there.
    """
    model = loaded(tmp_path, "deepseek_v3")
    edge = hooks.Edge(1, 0, 5, 2)
    plain = model(torch.tensor([IDS]))
    with hooks.gated(model, [edge], torch.zeros(1)):
        cut = model(torch.tensor([IDS]))
    assert (plain != cut).any(-1)[0].nonzero().flatten().tolist() == [5]
