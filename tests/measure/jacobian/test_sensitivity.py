"""Jacobians three ways: known in closed form, finite differences, and pure Hugging Face autograd;
then the refusals; last, those of a logit and of a difference of two.
"""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.measure.jacobian import linearise
from ostools.measure.passes import output
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, refused, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]


def prompt_of(model: TransformerBridge, ids: list[int] = IDS) -> ost.Prompt:
    return ost.Prompt.from_ids(model, ids)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_full_norms_are_those_of_pure_hugging_face_autograd(family: Family) -> None:
    reference = make_model(family, seed=4).requires_grad_(True)
    out = reference(torch.tensor([IDS]), output_hidden_states=True)
    rows = [
        torch.autograd.grad(component, out.hidden_states[0], retain_graph=True)[0][0]
        for component in out.hidden_states[-1][0, -1]
    ]
    expected = torch.stack(rows, dim=1)
    model = tiny_model(family, seed=4)
    frame = ost.sensitivity(model, prompt_of(model), linearisations=["full"]).frame
    for column, order in (("operator_norm", 2), ("frobenius_norm", "fro")):
        norms = torch.linalg.matrix_norm(expected, ord=order)
        torch.testing.assert_close(
            torch.tensor(frame[column].to_numpy(), dtype=torch.float32), norms, rtol=2e-5, atol=1e-6
        )


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_known_jacobian_when_nothing_is_added_to_the_residual_stream(family: Family) -> None:
    """y = norm(v_n): J_n = diag(g) / r (I - x x^T / (d r^2)) (a LayerNorm on centred x), every
    other J_i is 0.
    """
    model = tiny_model(family, seed=2, dtype=torch.float64, fresh=True)
    for block in model.blocks:
        for weight in (block.attn.o.weight, block.mlp.out.weight):
            weight.zero_()
        for part in (block.attn.o, block.mlp.out):
            if getattr(part, "bias", None) is not None:
                part.bias.zero_()
    result: Any = ost.sensitivity(model, prompt_of(model), linearisations=["full", "frozen"]).frame
    norm = hooks.norms(model)["ln_final"]
    x = norm.centre(model.input_to_embed(torch.tensor([IDS]))[0][0, -1].detach())
    d, scale = len(x), float(norm.inverse_scale(x))
    centring = torch.eye(d, dtype=torch.float64) - (1.0 / d if norm.centred else 0.0)
    frozen = scale * norm.gain[:, None] * centring
    full = (
        scale
        * norm.gain[:, None]
        * ((torch.eye(d, dtype=torch.float64) - torch.outer(x, x) * scale**2 / d) @ centring)
    )
    for linearisation, expected in (("full", full), ("frozen", frozen)):
        rows: Any = result[result["linearisation"] == linearisation]
        assert (rows["operator_norm"].iloc[:-1] == 0).all()
        assert rows["operator_norm"].iloc[-1] == pytest.approx(
            float(torch.linalg.matrix_norm(expected, ord=2)), rel=1e-9
        )
        assert rows["frobenius_norm"].iloc[-1] == pytest.approx(float(expected.norm()), rel=1e-9)


EDITS: dict[str, Any] = {
    "heads": lambda model: hooks.ablate_heads(model, [(0, 1), (1, 0)]),
    "window": lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
    "edge": lambda model: hooks.ablate_edges(model, [(1, 0, 6, 2)]),
    "layer": lambda model: hooks.ablate_layers(model, [0], part="mlp"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_sixteen_bit_model_acts_in_the_float32_that_is_measured(edit: str) -> None:
    """The same numbers as of a float32 model with the same weights under the same edit; afterwards
    neither model is edited.
    """
    model = tiny_model("llama", seed=3, dtype=torch.bfloat16)
    wide = tiny_model("llama", seed=3, fresh=True)
    wide.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    norms = []
    for measured in (model, wide):
        with EDITS[edit](measured):
            result = ost.sensitivity(measured, prompt_of(measured))
        assert result.provenance.edits
        norms.append(torch.tensor(result.frame["operator_norm"]))
        assert hooks.active_edits(measured) == ()
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-4, atol=1e-7)
    unedited = torch.tensor(ost.sensitivity(model, prompt_of(model)).frame["operator_norm"])
    assert float((unedited - norms[0]).abs().max()) > 1e-3


def test_a_hook_of_somebody_else_on_a_sixteen_bit_model_is_refused() -> None:
    """It may know the module that it was made for, and a copy in float32 is another one."""
    model = tiny_model("llama", seed=3, dtype=torch.bfloat16, fresh=True)
    model.hook_dict["blocks.0.hook_mlp_out"].add_hook(lambda tensor, hook: 2 * tensor)
    with pytest.raises(ost.InputError, match=r"needs a float32 view.*load the model with dtype"):
        ost.sensitivity(model, prompt_of(model))


@pytest.mark.parametrize("allow", [("fp32_precision", "tf32"), ("allow_tf32", True)])
def test_products_are_in_float32_whatever_is_allowed_elsewhere(
    allow: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either of torch's settings, which stay as they were."""
    model, seen, setting = tiny_model("gemma"), [], torch.backends.cuda.matmul
    own, before = torch.nn.functional.softmax, setting.fp32_precision
    monkeypatch.setattr(
        torch.nn.functional,
        "softmax",
        lambda *args, **kw: seen.append(setting.fp32_precision) or own(*args, **kw),
    )
    setattr(setting, *allow)
    try:
        ost.sensitivity(model, "11")
        ost.collapse(model, "figure-5a", lengths=[1, 2])
        assert set(seen) == {"ieee"}
        assert setting.fp32_precision == "tf32"
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"linearisations": ["froze"]},
            "linearisations: expected .*, found 'froze': did you mean 'frozen'",
        ),
        ({"linearisations": []}, "linearisations: expected at least one, found none"),
        ({"prompt": ""}, "empty"),
        ({"layers": [3]}, r"layers: expected 'all' or numbers out of 0\.\.2, found \[3\]"),
        ({"layers": []}, "layers: .* found none"),
        ({"layers": [True]}, r"layers: .* found \[True\]"),
        ({"max_memory": 1000, "method": "exact"}, r"GiB at least, 0\.00 GiB are allowed"),
        ({"cotangents": 33}, "cotangents: expected 2 to d_model = 32, found 33"),
        ({"seed": -1}, "^seed: expected a whole number of at least 0, found -1$"),
        (
            {"seed": 2**63},
            "^seed: expected a whole number of at most 9,223,372,036,854,775,807, found",
        ),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"prompt": "ab", **options}
    refused(words, ost.sensitivity, tiny_model("gemma"), **given)


def test_weights_that_are_not_finite_are_refused() -> None:
    model = tiny_model("gemma", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("nan")
    refused("not finite", ost.sensitivity, model, "ab")


def test_a_network_that_changes_when_frozen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a freeze that also moves the values, where autograd goes through it."""
    model = tiny_model("gemma", fresh=True)
    model.hook_dict["blocks.0.hook_mlp_out"].add_hook(lambda tensor, hook: 1.0 * tensor)
    planted = lambda model, _, keeps: hooks.scale_scores(model, 1.5)  # noqa: E731
    monkeypatch.setattr(linearise, "holding", planted)
    with pytest.raises(ost.InputError, match="frozen forward pass changed y_n"):
        ost.sensitivity(model, prompt_of(model), linearisations=["frozen"])


@pytest.mark.parametrize(
    ("measure", "given"),
    [
        *((measure, {}) for measure in (ost.sensitivity, ost.attribution, ost.measure.hops)),
        (ost.measure.linear_range, {}),
        (ost.patch, {"corrupt": "ac"}),
        (ost.ablation, {"logit": 7}),
    ],
)
def test_rows_cannot_be_mislabelled_inside_a_frozen_block(
    measure: Any, given: dict[str, Any]
) -> None:
    """An ablation's effects to first order were the frozen network's."""
    model = tiny_model("gemma")
    words = rf"{measure.__name__} .*leave the block of hooks\.frozen"
    with pytest.raises(ost.InputError, match=words), hooks.frozen(model):
        measure(model, prompt="ab", **given)


OTHER_IDS = [1, 5, 9, 4, 9, 7, 3, 3]


def model_of(family: Any, **options: Any) -> TransformerBridge:
    return tiny_model(family, seed=3, dtype=torch.float64, **options)


def gradient(
    model: TransformerBridge, at: int, first: int, second: int | None = None
) -> torch.Tensor:
    """|d logit / d v_i| of every token by autograd through the model itself, its norms in float64
    too.
    """
    embedded = model.input_to_embed(torch.tensor([OTHER_IDS]))[0].detach().requires_grad_(True)
    with hooks.exact_arithmetic(model):
        logits = model(embedded, start_at_layer=0)[0, at]
    value = logits[first] if second is None else logits[first] - logits[second]
    return torch.autograd.grad(value, embedded)[0][0].norm(dim=-1)


def norms(found: Any, linearisation: str = "full") -> Any:
    return found.frame[found.frame["linearisation"] == linearisation]


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_a_logit_and_a_difference_are_autograds(family: Any) -> None:
    model = model_of(family)
    prompt = ost.Prompt.from_ids(model, OTHER_IDS)
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
    for block in model.blocks:
        block.mlp.out.weight *= 30.0
    prompt = ost.Prompt.from_ids(model, OTHER_IDS)
    embedded = model.input_to_embed(torch.tensor([OTHER_IDS]))[0][0].detach()
    top = torch.linalg.svd(ost.measure.jacobian(model, embedded)[0]).U[:, 0]
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
        ost.sensitivity(model, ost.Prompt.from_ids(model, OTHER_IDS), logit=11)


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
        ost.sensitivity(model, ost.Prompt.from_ids(model, OTHER_IDS), **options)


def test_another_output_stands_beside_nothing_of_y_n() -> None:
    model = model_of("llama")
    prompt = ost.Prompt.from_ids(model, OTHER_IDS)
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
