"""How a sensitivity is computed: the route, the layers, the method, the memory; and the check that comes with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.jacobian import certificate as certificate_module
from ostools.measure.jacobian import linear, memory
from ostools.measure.jacobian import norms as exact
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.jacobian.routes import LINEARISATIONS, AutogradRoute
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models import Prompt
from ostools.models.shape import Shape
from tests.checkpoints import TWO_FAMILIES, Family, tiny_model
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


def prompt_of(model: TransformerBridge) -> Prompt:
    return Prompt.from_ids(model, IDS)


def test_the_certificate_covers_a_wrong_jacobian_that_one_direction_hardly_sees() -> None:
    """J + Delta J with Delta J of rank one, below what is refused: the share `within` covers it in 95% of draws, and 1 / 16 of
    it, the difference that was seen, does not."""
    model = tiny_model("llama", dtype=torch.float64)
    generator, covered, seen = torch.Generator().manual_seed(1), [], []
    with true_arithmetic(model):
        embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
        rows = exact.exact_jacobians(AutogradRoute(model, embedded), embedded)
        steps = embedded.norm(dim=-1) * certificate_module._evened(exact.token_products(rows)(embedded))
        for _ in range(60):
            left, right = (torch.randn(size, generator=generator, dtype=torch.float64) for size in rows.shape[1:])
            wrong = 1e-6 * torch.outer(left / left.norm(), right / right.norm()) * rows[-1].norm()
            parts = exact.token_products(torch.cat([rows[:-1], rows[-1:] + wrong]))
            certificate = certificate_module.certify(model, embedded, "full", parts)
            share = float(steps[-1] * wrong.norm()) / float((steps[:, None, None] * rows).norm())
            assert certificate.within is not None
            covered.append(certificate.within >= share)
            seen.append(certificate.within / certificate_module._UNSEEN >= share)
    assert np.mean(covered) >= 0.9
    assert np.mean(seen) < 0.8


def runs(result: Any) -> Any:
    return result.provenance.parameters["runs"]


def operator(result: Any) -> np.ndarray:
    return result.frame["operator_norm"].to_numpy()


@pytest.mark.parametrize("family", quick(TWO_FAMILIES, "gpt2"))
def test_both_routes_give_the_same_norms_and_say_which_they_were(family: Family) -> None:
    """An edit that no formula knows sends the measurement through autograd; here one that changes nothing."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    fast = ost.sensitivity(model, prompt_of(model), linearisations=LINEARISATIONS, layers="all")
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    point.add_hook(lambda tensor, hook: tensor)
    generic = ost.sensitivity(model, prompt_of(model), linearisations=LINEARISATIONS, layers="all")
    point.remove_hooks()
    assert operator(generic) == pytest.approx(operator(fast), rel=1e-9)
    assert {run["route"] for run in runs(fast).values()} == {"analytic"}
    assert {run["route"] for run in runs(generic).values()} == {"autograd"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"layers": layers}, r"0\.\.2|layers") for layers in ([3], [], [True], "first")),
        ({"cotangents": 33}, "cotangents: expected 2 to d_model = 32, found 33"),
    ],
    ids=str,
)
def test_layers_and_cotangents_that_are_not_there_are_refused(options: Any, words: str) -> None:
    model = tiny_model("gemma")
    with pytest.raises((ost.InputError, TypeError), match=words):
        ost.sensitivity(model, prompt_of(model), **options)


def test_a_plan_takes_smaller_blocks_before_it_is_refused() -> None:
    model = tiny_model("llama", d_model=64, d_head=16)
    shape = replace(Shape.of(model), d_mlp=4096)
    plenty = memory.plan(shape, 64, 1, live=True, max_memory=1 << 40)
    less = memory.plan(shape, 64, 1, live=True, max_memory=plenty.peak - plenty.work // 4)
    assert less.chunk < plenty.chunk
    assert less.peak < plenty.peak
    with pytest.raises(ost.InputError, match=r"8 tokens at d_model 64 need .* GiB at least, 0\.00 GiB are allowed"):
        ost.sensitivity(model, prompt_of(model), max_memory=1000, method="exact")


@pytest.mark.parametrize("method", ["sketch", "estimate"])
def test_sketches_and_estimates_hold_the_exact_norms(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a confidence of 1 - 1e-6 a token no interval may miss; the lower end of the operator norm never."""
    monkeypatch.setattr(exact, "CONFIDENCE", 1 - 1e-6)
    model = tiny_model("gemma3", seed=5, dtype=torch.float64, d_model=64, d_head=16)
    exactly: Any = ost.sensitivity(model, prompt_of(model), method="exact", layers=[0, 1]).frame
    result = ost.sensitivity(model, prompt_of(model), method=method, layers=[0, 1])
    found: Any = result.frame
    assert set(found["method"]) == {method}
    for norm in ("operator", "frobenius"):
        assert (found[f"{norm}_lower"] <= exactly[f"{norm}_norm"] * (1 + 1e-9)).all()
        assert (found[f"{norm}_upper"] >= exactly[f"{norm}_norm"] * (1 - 1e-9)).all()
    assert runs(result)["full"]["certificate"]["error"] < 1e-5


@pytest.mark.parametrize("family", quick(TWO_FAMILIES, "gpt2"))
def test_a_list_of_prompts_has_the_numbers_that_each_has_alone(family: Family) -> None:
    """Lengths in disorder, and a prompt of one token; progress rises to the whole."""
    model, told = tiny_model(family, seed=3), []
    prompts = [Prompt.from_ids(model, IDS[:pos]) for pos in (5, 1, 8)]
    found = ost.sensitivity(model, prompts, progress=lambda done, total: told.append((done, total)))
    for prompt, result in zip(prompts, found, strict=True):
        assert result.frame.equals(ost.sensitivity(model, prompt).frame)
    assert told == sorted(told)
    assert told[-1] == (100, 100)


def test_a_cores_product_is_the_mlps() -> None:
    model = tiny_model("gemma3", seed=3, dtype=torch.float64)
    with true_arithmetic(model):
        plain = Linearised(model, torch.tensor(IDS), "full")
        cored = Linearised(model, torch.tensor(IDS), "full", cores={})
    rows = torch.randn(3, plain.norm.factor.shape[-1], dtype=torch.float64)
    torch.testing.assert_close(cored.pull(rows), plain.pull(rows), rtol=1e-10, atol=1e-12)


def test_the_prompt_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma")
    whole = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, x, *rest: (1.05 if self.pos == 8 else 1.0) * whole(self, x))
    with pytest.raises(ost.InputError, match=r"^prompt 2 of 2 \(.*\): the full Jacobian failed its check"):
        ost.sensitivity(model, [Prompt.from_ids(model, IDS[:5]), prompt_of(model)])


@pytest.mark.parametrize("family", quick(TWO_FAMILIES, "gpt2"))
def test_as_many_cotangents_as_components_give_the_exact_norms(family: Family) -> None:
    """Orthogonal ones lose nothing, in every linearisation and at every layer; the operator norm is bounded, never named."""
    model = tiny_model(family, seed=5, dtype=torch.float64)
    how: Any = {"linearisations": LINEARISATIONS, "layers": "all"}
    exactly: Any = ost.sensitivity(model, prompt_of(model), method="exact", **how).frame
    found: Any = ost.sensitivity(model, prompt_of(model), method="sketch", cotangents=32, **how).frame
    assert set(found["method"]) == {"sketch"}
    for column in ("frobenius_norm", "frobenius_lower", "frobenius_upper"):
        np.testing.assert_allclose(found[column], exactly["frobenius_norm"], rtol=1e-12)
    np.testing.assert_allclose(found["operator_lower"], exactly["operator_norm"], rtol=1e-9)
    assert found["operator_norm"].isna().all()


def test_norms_of_jacobians_are_singular_values() -> None:
    """Rank one, zero, tiny and huge ones too: nothing overflows in float32."""
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(6, 16, 16, generator=generator)
    found[1] = torch.outer(found[1, 0], found[1, 1])
    found[2] = 0.0
    found[3] *= 1e30
    found[4] *= 1e-30
    operator, frobenius = exact.exact_norms(found, found.device)
    expected = torch.linalg.matrix_norm(found.double(), ord=2)
    torch.testing.assert_close(operator, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(frobenius, torch.linalg.matrix_norm(found.double()), rtol=1e-6, atol=0)


def _without_projection(self: linear.LinearNorm, x: torch.Tensor) -> torch.Tensor:
    return x


def _without_keys(self: linear.PulledScores) -> tuple[torch.Tensor, torch.Tensor]:
    at_queries, at_keys = PULL(self)
    return at_queries, torch.zeros_like(at_keys)


PULL = linear.PulledScores.to_residual


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], torch.float64))
@pytest.mark.parametrize("layers", quick([[0], [1], [2], [1, 2]], [0], [1, 2]))
@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_a_wrong_derivative_is_refused_at_every_layer(
    method: str, layers: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five percent too much."""
    model = tiny_model("gemma", seed=3, dtype=dtype)
    whole = Linearised.pull
    monkeypatch.setattr(Linearised, "pull", lambda self, x, *rest: 1.05 * whole(self, x))
    with pytest.raises(ost.InputError, match="failed its check"):
        ost.sensitivity(model, prompt_of(model), layers=layers, method=method)


@pytest.mark.parametrize("family", quick(TWO_FAMILIES, "gpt2"))
def test_every_layer_is_certified_under_an_edit_right_there(family: Family) -> None:
    """v_i^(l) is what the edit leaves: the certificate and the Jacobian mean the same."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    for layer, where in ((1, "blocks.1.hook_resid_pre"), (2, "blocks.1.hook_resid_post")):
        model.hook_dict[where].add_hook(lambda tensor, hook: 1.3 * tensor)
        result = ost.sensitivity(model, prompt_of(model), linearisations=LINEARISATIONS, layers=[layer])
        model.hook_dict[where].remove_hooks()
        for run in runs(result).values():
            assert run["certificate"]["informative"]
            assert run["certificate"]["error"] < 1e-6


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_a_derivative_that_is_not_finite_is_refused(method: str) -> None:
    """Finite values with an infinite slope: x + sqrt|x - x|."""
    model = tiny_model("llama", fresh=True)
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    point.add_hook(lambda tensor, hook: tensor + (tensor - tensor.detach()).abs().sqrt())
    with pytest.raises(ost.InputError, match="not finite"):
        ost.sensitivity(model, prompt_of(model), method=method)


def test_no_pass_makes_logits_of_every_token() -> None:
    """A vocabulary of 256,000 at 2,000 tokens would take 2 GB a pass, in no forecast."""
    model = tiny_model("gemma")
    shapes = []
    handle = model.unembed.register_forward_hook(lambda module, args, out: shapes.append(out.shape[1]))
    ost.sensitivity(model, prompt_of(model))
    handle.remove()
    assert set(shapes) == {1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("plant", ["no projection in a norm", "no key term"])
def test_a_wrong_derivative_is_refused(plant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma", seed=3, scale=1.5, dtype=dtype)
    if plant == "no projection in a norm":
        monkeypatch.setattr(linear.LinearNorm, "_projected", _without_projection)
    else:
        monkeypatch.setattr(linear.PulledScores, "to_residual", _without_keys)
    with pytest.raises(ost.InputError, match="failed its check"):
        ost.sensitivity(model, prompt_of(model), linearisations=["full"])


def test_a_derivative_of_nothing_is_refused() -> None:
    model = tiny_model("llama", fresh=True)
    model.ln_final.weight.zero_()
    with pytest.raises(ost.InputError, match=r"logits|0 at every token"):
        ost.sensitivity(model, prompt_of(model))


@pytest.mark.parametrize("linearisation", ["full", "frozen"])
def test_a_network_too_steep_for_finite_differences_is_held_against_autograd(
    linearisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_module, "_INFORMATIVE", 0.0)
    model = tiny_model("llama", seed=8, scale=10.0)
    result = ost.sensitivity(model, prompt_of(model), linearisations=[linearisation])
    certificate = runs(result)[linearisation]["certificate"]
    assert not certificate["informative"]
    assert certificate["against_autograd"] < 1e-2
    monkeypatch.setattr(linear.LinearNorm, "pull", lambda self, gradient: 1.1 * gradient * self.factor)
    with pytest.raises(ost.InputError, match=r"differs from autograd's|failed its check"):
        ost.sensitivity(model, prompt_of(model), linearisations=[linearisation])
