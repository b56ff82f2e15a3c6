"""The detached linearisation: patterns, scales and activations held, the network is linear but for its biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.jacobian import norms as exact
from ostools.models import Prompt
from tests.checkpoints import TEXT_FAMILIES, tiny_model
from tests.families import EXPERTS, OTHERS

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
DESCRIBED = (*TEXT_FAMILIES, *(family for family in OTHERS if family not in EXPERTS))


def run_of(model: TransformerBridge, name: str = "detached", **settings: Any) -> dict[str, Any]:
    found = ost.sensitivity(model, Prompt.from_ids(model, IDS), linearisations=[name], **settings)
    return found.provenance.parameters["runs"][name]


@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "neox"))]
)
def test_every_run_proves_that_its_parts_add_up(family: str) -> None:
    """Biases and all, at every layer, exact and sketched."""
    model = tiny_model(family, seed=4, dtype=torch.float64)
    for settings in ({"layers": "all"}, {"layers": [1], "method": "sketch"}):
        assert run_of(model, **settings)["adds_up_within"] < 1e-14
    assert "adds_up_within" not in run_of(model, "frozen")


def test_by_autograd_the_parts_add_up_under_an_edit_that_no_formula_knows() -> None:
    model = tiny_model("llama", seed=4, dtype=torch.float64)
    with hooks.ablate_heads(model, [(0, 1)]):
        run = run_of(model)
    assert run["route"] == "autograd"
    assert run["adds_up_within"] < 1e-14


def test_a_wrong_jacobian_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are one part in 10^9 too large, which finite differences cannot see."""
    honest = exact.token_products
    monkeypatch.setattr(exact, "token_products", lambda rows: lambda field: (1 + 1e-9) * honest(rows)(field))
    with pytest.raises(InputError, match=r"sum_i J_i v_i \+ bias terms differs from y_n by .* expected 1e-12 at most"):
        run_of(tiny_model("gpt2", seed=4, dtype=torch.float64))


def test_ratios_of_known_activations() -> None:
    """GELU: the normal distribution function; SiLU: the logistic function; ReLU: its slope; and the limit at 0."""
    a = torch.tensor([-40.0, -3.0, -1e-300, 0.0, 1e-300, 0.5, 7.0], dtype=torch.float64)
    known = {
        functional.gelu: (1 + torch.erf(a / 2**0.5)) / 2,
        functional.silu: torch.sigmoid(a),
        functional.relu: (a > 0).double(),
    }
    for activation, expected in known.items():
        torch.testing.assert_close(hooks.activation_ratio(activation, a), expected, rtol=1e-12, atol=1e-15)
    with pytest.raises(hooks.HookError, match=r"expected act\(0\) = 0, .* found 0\.693"):
        hooks.activation_ratio(functional.softplus, a)


def test_an_activation_that_is_not_what_the_model_computes_is_refused() -> None:
    model = tiny_model("llama", fresh=True)
    model.blocks[
        1
    ].mlp.original_component.act_fn = torch.nn.Tanh()  # the bridge goes on with what it was built with, or not
    hidden = model.hook_dict["blocks.1.mlp.hook_post"]
    hidden.add_hook(lambda tensor, hook: 1.5 * tensor)
    with (
        pytest.raises(hooks.HookError, match=r"freezing blocks\.1\.mlp: its held form differs"),
        hooks.frozen(model, attention=False, norms=False, activations=True),
    ):
        model(torch.tensor([IDS]))
    hidden.remove_hooks()
