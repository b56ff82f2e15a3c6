"""How a sensitivity is computed: the layers, the method, the memory; and the checks that come with
it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.ground.arguments import LINEARISATIONS
from ostools.hooks.freeze import Holding
from ostools.measure.jacobian import certificate as certificate_module
from ostools.measure.jacobian import linearisation_run, linearise
from ostools.measure.jacobian import norms as exact
from ostools.measure.jacobian.linearise import Linearised
from ostools.measure.passes.contexts import true_arithmetic
from ostools.models.shape import Shape
from tests.checkpoints import TWO_FAMILIES, Family, tiny_model
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


def prompt_of(model: TransformerBridge) -> ost.Prompt:
    return ost.Prompt.from_ids(model, IDS)


def runs(result: Any) -> Any:
    return result.provenance.parameters["runs"]


def test_the_certificate_covers_a_wrong_jacobian_that_one_direction_hardly_sees() -> None:
    """J + Delta J with Delta J of rank one, below what is refused: the share `within` covers it in
    95% of draws, and 1 / 16 of it, the difference that was seen, does not."""
    model = tiny_model("llama", dtype=torch.float64)
    generator, covered, seen = torch.Generator().manual_seed(1), [], []
    with true_arithmetic(model):
        embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
        linear = Linearised(model, embedded)
        rows = exact.exact_jacobians(linear.pull, embedded)
        steps = certificate_module.Claim.of(linear, rows).field.norm(dim=-1)
        for _ in range(60):
            left, right = (
                torch.randn(size, generator=generator, dtype=torch.float64)
                for size in rows.shape[1:]
            )
            wrong = 1e-6 * torch.outer(left / left.norm(), right / right.norm()) * rows[-1].norm()
            claim = certificate_module.Claim.of(linear, torch.cat([rows[:-1], rows[-1:] + wrong]))
            certificate: Any = certificate_module.certify(linear, {"full": claim})["full"][
                "certificate"
            ]
            share = float(steps[-1] * wrong.norm()) / float((steps[:, None, None] * rows).norm())
            covered.append(certificate["within"] >= share)
            seen.append(certificate["within"] / certificate_module._UNSEEN >= share)
    assert np.mean(covered) >= 0.9
    assert np.mean(seen) < 0.8


def test_a_plan_takes_smaller_blocks_before_it_is_refused() -> None:
    shape = replace(Shape.of(tiny_model("llama", d_model=64, d_head=16)), d_mlp=4096)
    plan = partial(linearisation_run.memory_plan, shape, 64, method="exact")
    plenty = plan(max_memory=1 << 40)
    by_blocks = plan(max_memory=plenty.peak - 1)
    less = plan(max_memory=by_blocks.peak - 1)
    assert (plenty.keeps_graph, by_blocks.keeps_graph, less.keeps_graph) == (True, False, False)
    assert less.chunk < by_blocks.chunk == plenty.chunk
    assert less.peak < plenty.peak
    with pytest.raises(
        ost.InputError, match=r"64 tokens at d_model 64 need .* GiB at least, 0\.00 GiB are allowed"
    ):
        plan(max_memory=1000)


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_as_many_cotangents_as_components_give_the_exact_norms(family: Family) -> None:
    """Orthogonal ones lose nothing, in every linearisation and at every layer; the operator norm is
    bounded, never named.
    """
    model = tiny_model(family, seed=5, dtype=torch.float64)
    how: Any = {"linearisations": LINEARISATIONS, "layers": "all"}
    exactly: Any = ost.sensitivity(model, prompt_of(model), method="exact", **how).frame
    sketch: Any = ost.sensitivity(
        model, prompt_of(model), method="sketch", cotangents=32, **how
    ).frame
    assert set(sketch["method"]) == {"sketch"}
    for column in ("frobenius_norm", "frobenius_lower", "frobenius_upper"):
        np.testing.assert_allclose(sketch[column], exactly["frobenius_norm"], rtol=1e-12)
    np.testing.assert_allclose(sketch["operator_lower"], exactly["operator_norm"], rtol=1e-9)
    assert sketch["operator_norm"].isna().all()


def test_norms_of_jacobians_are_singular_values() -> None:
    """Rank one, zero, tiny and huge ones too: nothing overflows in float32."""
    matrices = torch.randn(6, 16, 16, generator=torch.Generator().manual_seed(0))
    matrices[1] = torch.outer(matrices[1, 0], matrices[1, 1])
    matrices[2:5] *= torch.tensor([0.0, 1e30, 1e-30])[:, None, None]
    operator, frobenius = exact.exact_norms(matrices)
    torch.testing.assert_close(
        operator, torch.linalg.matrix_norm(matrices.double(), ord=2), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(
        frobenius, torch.linalg.matrix_norm(matrices.double()), rtol=1e-6, atol=0
    )


PULL = Linearised.pull


def five_percent_too_much(model: TransformerBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Linearised, "pull", lambda self, x, *rest: 1.05 * PULL(self, x))


def no_gradient(point: str) -> Callable[[TransformerBridge, pytest.MonkeyPatch], None]:
    """Values as they are, whose gradient is cut off: what a part of a model that detaches its input
    does.
    """

    def plant(model: TransformerBridge, monkeypatch: pytest.MonkeyPatch) -> None:
        model.hook_dict[point].add_hook(lambda tensor, hook: tensor.detach())

    return plant


def wrong_backward(model: TransformerBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLP whose backward formula is a tenth too large."""

    class Wrong(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return 1.1 * gradients[0]

    model.hook_dict["blocks.0.hook_mlp_out"].add_hook(lambda tensor, hook: Wrong.apply(tensor))


def held_too_much(**parts: bool) -> Callable[[TransformerBridge, pytest.MonkeyPatch], None]:
    """Another linearisation than the one that is asked for."""

    def plant(model: TransformerBridge, monkeypatch: pytest.MonkeyPatch) -> None:
        class Held(Linearised):
            def __init__(self, *args: Any, **settings: Any) -> None:
                with hooks.frozen(model, **parts):
                    super().__init__(*args, **settings)

        monkeypatch.setattr(linearise, "Linearised", Held)

    return plant


WRONG: dict[str, Callable[[TransformerBridge, pytest.MonkeyPatch], None]] = {
    "five percent too much": five_percent_too_much,
    "a backward formula that is off": wrong_backward,
    "norm scales held": held_too_much(attention=False, norms=True),
    "patterns held": held_too_much(attention=True, norms=False),
    "no key term": no_gradient("blocks.1.attn.hook_rot_k"),
    "no query term": no_gradient("blocks.1.attn.hook_rot_q"),
}


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], torch.float64))
@pytest.mark.parametrize(
    ("plant", "layers", "method"),
    [
        *(
            ("five percent too much", layers, method)
            for layers in ([0], [1, 2])
            for method in ("exact", "sketch")
        ),
        *((name, [0], "exact") for name in list(WRONG)[1:]),
    ],
)
def test_a_wrong_derivative_is_refused(
    plant: str, layers: list[int], method: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("gemma", seed=3, scale=1.5, dtype=dtype, fresh=True)
    WRONG[plant](model, monkeypatch)
    with pytest.raises(ost.InputError, match="the full Jacobian failed its check"):
        ost.sensitivity(
            model, prompt_of(model), linearisations=["full"], layers=layers, method=method
        )


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], torch.float32))
@pytest.mark.parametrize("factor", [3.0, 1.05])
@pytest.mark.parametrize("method", ["exact", "sketch"])
@pytest.mark.parametrize("name", quick(LINEARISATIONS, "full", "frozen", "detached"))
def test_a_factor_in_one_layer_alone_is_refused(
    name: Any, method: Any, factor: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every measured layer is held to the network, and not the lowest one alone."""
    model = tiny_model("gemma", seed=3, scale=1.5, dtype=dtype)
    for wrong in range(3):

        def planted(self: Linearised, x: torch.Tensor, *rest: Any, wrong: int = wrong) -> Any:
            rows = PULL(self, x).clone()
            rows.unflatten(1, (3, self.pos))[:, wrong] *= factor
            return rows

        monkeypatch.setattr(Linearised, "pull", planted)
        with pytest.raises(
            ost.InputError, match=f"the {name} Jacobian failed its check at layer {wrong}"
        ):
            ost.sensitivity(
                model, prompt_of(model), linearisations=[name], layers="all", method=method
            )


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_a_graph_that_goes_on_with_another_linearisation_is_refused(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph serves all: where it stays with the first, the second has the first one's numbers."""
    model = tiny_model("gemma", seed=3, scale=1.5, dtype=torch.float64)
    first = property(
        lambda self: self.__dict__["first"],
        lambda self, choice: self.__dict__.setdefault("first", choice),
    )
    monkeypatch.setattr(Holding, "followed", first, raising=False)
    cases: Any = ((["full", "frozen"], "frozen"), (["frozen-norm", "full"], "full"))
    for names, wrong in cases:
        with pytest.raises(ost.InputError, match=f"the {wrong} Jacobian failed its check"):
            ost.sensitivity(model, prompt_of(model), linearisations=names, method=method)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "neox"])
def test_together_linearisations_have_the_numbers_that_each_has_alone(
    family: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph and one batch of moved prompts, and the norms of a graph each, which holds its own
    parts by `hooks.frozen`.
    """
    monkeypatch.setattr(linearisation_run, "_GRAPH", 1 << 30 if whole else 0)
    model = tiny_model(family, seed=4, dtype=torch.float64)
    how: Any = {"layers": [0, 1], "method": "exact"}
    together = ost.sensitivity(model, prompt_of(model), linearisations=LINEARISATIONS, **how)
    for name in LINEARISATIONS:
        alone = ost.sensitivity(model, prompt_of(model), linearisations=[name], **how)
        frame: Any = together.frame
        rows = frame[frame["linearisation"] == name]
        np.testing.assert_allclose(rows["operator_norm"], alone.frame["operator_norm"], rtol=1e-10)
        assert (
            runs(together)[name]["certificate"]["passes"]
            == runs(alone)[name]["certificate"]["passes"]
        )


def test_the_prompt_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma")
    monkeypatch.setattr(
        Linearised, "pull", lambda self, x, *rest: (1.05 if self.pos == 8 else 1.0) * PULL(self, x)
    )
    with pytest.raises(
        ost.InputError, match=r"^prompt 2 of 2 \(.*\): the full Jacobian failed its check"
    ):
        ost.sensitivity(model, [ost.Prompt.from_ids(model, IDS[:5]), prompt_of(model)])


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_every_layer_is_certified_under_an_edit_right_there(family: Family) -> None:
    """v_i^(l) is what the edit leaves: the certificate and the Jacobian mean the same."""
    model = tiny_model(family, seed=3, dtype=torch.float64)
    for layer, where in ((1, "blocks.1.hook_resid_pre"), (2, "blocks.1.hook_resid_post")):
        model.hook_dict[where].add_hook(lambda tensor, hook: 1.3 * tensor)
        result = ost.sensitivity(
            model, prompt_of(model), linearisations=LINEARISATIONS, layers=[layer]
        )
        model.hook_dict[where].remove_hooks()
        for run in runs(result).values():
            assert run["certificate"]["error"] < 1e-6


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_a_derivative_that_is_not_finite_or_of_nothing_is_refused(method: Any) -> None:
    """Finite values with an infinite slope: x + sqrt|x - x|; and a final norm of gain 0."""
    model = tiny_model("llama", fresh=True)
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    point.add_hook(lambda tensor, hook: tensor + (tensor - tensor.detach()).abs().sqrt())
    with pytest.raises(ost.InputError, match="not finite"):
        ost.sensitivity(model, prompt_of(model), method=method)
    point.remove_hooks()
    model.ln_final.weight.zero_()
    with pytest.raises(ost.InputError, match=r"changed y_n by nan|0 at every token"):
        ost.sensitivity(model, prompt_of(model), method=method)


def test_no_pass_makes_logits_of_every_token() -> None:
    """A vocabulary of 256,000 at 2,000 tokens would take 2 GB a pass, in no forecast."""
    model, shapes = tiny_model("gemma"), []
    handle = model.unembed.register_forward_hook(
        lambda module, args, out: shapes.append(out.shape[1])
    )
    ost.sensitivity(model, prompt_of(model))
    handle.remove()
    assert set(shapes) == {1}


@pytest.mark.parametrize("linearisation", ["full", "frozen"])
def test_a_network_too_steep_for_finite_differences_is_refused(
    linearisation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be checked is not told; in float64 it can."""
    words = (
        rf"the {linearisation} Jacobian cannot be checked: .* load the model with dtype='float64'"
    )
    model = tiny_model("llama", seed=8, scale=10.0)
    with monkeypatch.context() as patched:
        patched.setattr(certificate_module, "_INFORMATIVE", 0.0)
        with pytest.raises(ost.InputError, match=words):
            ost.sensitivity(model, prompt_of(model), linearisations=[linearisation])
    model = tiny_model("llama", seed=8, scale=10.0, dtype=torch.float64)
    result = ost.sensitivity(model, prompt_of(model), linearisations=[linearisation])
    assert runs(result)[linearisation]["certificate"]["error"] < 1e-4


def detached(model: TransformerBridge, **settings: Any) -> Any:
    return runs(ost.sensitivity(model, prompt_of(model), linearisations=["detached"], **settings))[
        "detached"
    ]


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "neox"])
def test_every_detached_run_proves_that_its_parts_add_up(family: str) -> None:
    """Biases and all, at every layer, exact and sketched, and under an edit."""
    model = tiny_model(family, seed=4, dtype=torch.float64)
    for settings in ({"layers": "all"}, {"layers": [1], "method": "sketch"}):
        assert detached(model, **settings)["adds_up_within"] < 1e-14
    with hooks.ablate_heads(model, [(0, 1)]):
        assert detached(model)["adds_up_within"] < 1e-14


def test_detached_parts_that_do_not_add_up_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are one part in 10^9 too large, which finite differences cannot see."""
    honest = certificate_module.Claim.of
    monkeypatch.setattr(
        certificate_module.Claim,
        "of",
        lambda linear, rows, *rest: honest(linear, (1 + 1e-9) * rows, *rest),
    )
    with pytest.raises(
        ost.InputError, match=r"sum_i J_i v_i \+ bias terms differs from y_n by .* 1e-12 at most"
    ):
        detached(tiny_model("gpt2", seed=4, dtype=torch.float64))


def test_activation_ratios_are_known_and_another_activation_is_refused() -> None:
    """GELU: the normal distribution function; SiLU: the logistic function; ReLU: its slope; and the
    limit at 0.
    """
    a = torch.tensor([-40.0, -3.0, -1e-300, 0.0, 1e-300, 0.5, 7.0], dtype=torch.float64)
    known = {
        functional.gelu: (1 + torch.erf(a / 2**0.5)) / 2,
        functional.silu: torch.sigmoid(a),
        functional.relu: (a > 0).double(),
    }
    for activation, expected in known.items():
        torch.testing.assert_close(
            hooks.activation_ratio(activation, a), expected, rtol=1e-12, atol=1e-15
        )
    with pytest.raises(hooks.HookError, match=r"expected act\(0\) = 0, .* found 0\.693"):
        hooks.activation_ratio(functional.softplus, a)
    model = tiny_model("llama", fresh=True)
    hidden = model.hook_dict["blocks.1.mlp.hook_post"]
    hidden.add_hook(lambda tensor, hook: 1.5 * tensor)
    held = hooks.frozen(model, attention=False, norms=False, activations=True)
    with (
        pytest.raises(hooks.HookError, match=r"freezing blocks\.1\.mlp: its held form differs"),
        held,
    ):
        model(torch.tensor([IDS]))
    hidden.remove_hooks()
