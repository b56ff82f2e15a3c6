"""Mixtures of experts: margins are those of Hugging Face's own router, and the choice that a
derivative holds is held.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import ostools as ost
from ostools.measure.jacobian import linearise
from ostools.models.generic.choices import noted_choices
from ostools.reporting.findings.sensitivity import sensitivity_findings
from tests.checkpoints import make_model, write_checkpoint
from tests.generic_models import generic_model

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
EXPERTS = ("mixtral", "qwen3-moe", "gpt-oss", "olmoe")


def account_of(result: Any) -> dict[str, Any]:
    return result.provenance.parameters["runs"]["full"]["experts"]


def least_margin(
    router_logits: tuple[torch.Tensor, ...], k: int, *, logits: bool
) -> tuple[float, int, int]:
    """The least margin, its token and its block, from Hugging Face's own router logits."""
    rows = []
    for block, values in enumerate(router_logits):
        scores = values.reshape(-1, values.shape[-1]).double()
        scores = scores if logits else scores.softmax(-1)
        ordered = scores.sort(-1, descending=True).values
        size = scores.abs().amax(-1) if logits else ordered[:, k - 1]
        rows += [
            (float(margin), token, block)
            for token, margin in enumerate((ordered[:, k - 1] - ordered[:, k]) / size)
        ]
    return min(rows)


@pytest.mark.parametrize(
    ("family", "route"),
    [
        *((family, route) for family in EXPERTS for route in ("auto", "generic")),
        ("granitemoe", "auto"),
        ("qwen2_moe", "auto"),
    ],
)
def test_the_margin_is_that_of_the_models_own_router(
    family: str, route: Any, tmp_path: Path
) -> None:
    """Of a family with a record, and of two without: Granite's router chooses by logits, Qwen's by
    probabilities.
    """
    own: Any = make_model(family, seed=1) if family in EXPERTS else generic_model(family)
    if family in EXPERTS:
        write_checkpoint(tmp_path, family, seed=1)
    else:
        own.save_pretrained(tmp_path)
    model = ost.load_model(tmp_path, device="cpu", route=route)
    with noted_choices(model, len(IDS)) as choices, torch.no_grad():
        model(torch.tensor([IDS]))
    assert choices is not None
    nearest: Any = choices.account["nearest"]
    router_logits = own(torch.tensor([IDS]), output_router_logits=True).router_logits
    expected = least_margin(router_logits, 2, logits=family in ("gpt-oss", "granitemoe"))
    assert (nearest["position"], nearest["block"]) == expected[1:]
    assert nearest["margin"] == pytest.approx(expected[0], rel=1e-3)


def write_with_a_boundary(folder: Path, token: int) -> None:
    """A model whose first router scores the second and the third expert of that token alike, and of
    no other token.
    """
    module: Any = generic_model("granitemoe")
    router = module.model.layers[0].block_sparse_moe.router
    read: list[torch.Tensor] = []
    hook = router.register_forward_pre_hook(
        lambda _, args: read.append(args[0].reshape(len(IDS), -1)[token])
    )
    module(torch.tensor([IDS]))
    hook.remove()
    x = read[0]
    second, third = (router.weight @ x).argsort(descending=True)[1:3]
    across = torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    module.model.layers[0].block_sparse_moe.experts.down_proj.mul_(20)
    router.weight[third] = router.weight[second] + 0.2 * (across - (across @ x) * x / (x @ x))
    module.save_pretrained(folder)


def test_a_token_at_a_boundary_is_named_and_its_choice_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_with_a_boundary(tmp_path, token=5)
    model = ost.load_model(tmp_path, device="cpu")
    prompt = ost.Prompt.from_ids(model, IDS)
    result = ost.sensitivity(model, prompt, linearisations=["full"])
    account = account_of(result)
    assert account["within_rounding"] == [account["nearest"]["position"]] == [5]
    assert account["nearest"]["block"] == 0
    assert "which another order of additions may make: 5." in " ".join(sensitivity_findings(result))
    # Finite differences over the boundary are of two networks: without the choice held they decide
    # nothing.
    monkeypatch.setattr(linearise, "held_choices", lambda *_: nullcontext())
    with pytest.raises(
        ost.InputError, match=r"the full Jacobian (cannot be checked|failed its check)"
    ):
        ost.sensitivity(model, prompt, linearisations=["full"])
    assert result.provenance.parameters["runs"]["full"]["certificate"]["within"] < 0.1
