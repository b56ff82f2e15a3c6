"""Rounded weights against Hugging Face's own model with weights rounded by hand; dynamic int8
against torch's own kernel.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.hooks.rounding import FLOATS, FORMATS
from ostools.models.describe import named_weights
from ostools.models.lazy_cast import dense, stored_part
from ostools.models.precision import casting
from ostools.models.precision.rounding import (
    DynamicInt8,
    holds,
    integer_product,
    view_dynamic,
    view_rounded,
)
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 20), generator=torch.Generator().manual_seed(3))
LARGEST = {"int8": 127, "int4": 7}


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no weight that would be read as those of a large one are."""
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)


def by_hand(module: Any, format: str) -> None:
    """Round the parameters of a Hugging Face model where they lie: row by row of what its layers
    multiply with.
    """
    conv = {id(layer.weight) for layer in module.modules() if type(layer).__name__ == "Conv1D"}
    for parameter in module.parameters():
        weight: Tensor = parameter.data
        if format in FLOATS:
            weight.copy_(weight.to(FLOATS[format]).float())
        elif weight.ndim == 2:
            for channel in weight.T if id(parameter) in conv else weight:
                scale = float(channel.abs().max()) / LARGEST[format]
                channel.copy_((channel.double() / scale).round() * scale)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_rounded_copy_is_the_model_with_rounded_weights(family: Family) -> None:
    model = tiny_model(family, seed=2)
    logits, before = model(IDS), {name: weight.clone() for name, weight in named_weights(model)}
    for format in FORMATS:
        module = make_model(family, seed=2)
        by_hand(module, format)
        expected, found = module(IDS).logits, view_rounded(model, format)(IDS)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert float((found - logits).abs().max()) > 1e-3
    assert torch.equal(model(IDS), logits)
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(model))


@pytest.mark.parametrize("format", ["bfloat16", "int8"])
def test_tied_weights_stay_tied_and_views_views(format: Any) -> None:
    gemma, gpt2 = (view_rounded(tiny_model(family), format) for family in ("gemma", "gpt2"))
    module: Any = gemma.original_model
    assert module.lm_head.weight is module.model.embed_tokens.weight
    attention = gpt2.blocks[0].attn
    assert (
        stored_part(attention.q.weight).data_ptr() == stored_part(attention.qkv.weight).data_ptr()
    )


def test_what_a_dtype_holds() -> None:
    model = tiny_model("llama")
    assert holds(model, torch.float32)
    assert holds(model, torch.float64)
    assert not holds(model, torch.bfloat16)
    stored = view_rounded(model, "bfloat16")
    assert holds(stored, torch.bfloat16)
    assert not holds(stored, torch.float16) or holds(
        view_rounded(stored, "float16"), torch.bfloat16
    )
    given = tiny_model("llama", fresh=True)
    for weight in given.parameters():
        weight.data.copy_(weight.bfloat16())
    assert holds(given, torch.bfloat16)
    next(given.parameters()).data[0] += 1e-6
    assert not holds(given, torch.bfloat16)


def test_refusals() -> None:
    model = tiny_model("llama", fresh=True)
    with pytest.raises(InputError, match=r"format: expected .*, found 'int16': did you mean"):
        view_rounded(model, cast(Any, "int16"))
    with hooks.ablate_heads(model, [(0, 0)]):
        model(IDS)
        with pytest.raises(
            InputError, match="expected a model without hooks to read in another dtype"
        ):
            view_rounded(model, "int8")
    model.W_E[3, 4] = 449.0
    with pytest.raises(
        InputError,
        match=r"embed_tokens.weight: expected finite numbers up to 448 to store as float8_e4",
    ):
        view_rounded(model, "float8_e4m3fn")
    view_rounded(model, "float8_e5m2")
    model.W_E[3, 4] = float("nan")
    with pytest.raises(InputError, match="found nan"):
        view_rounded(model, "int8")


# Dynamic int8: activations rounded too, and products of whole numbers.


SHORT = torch.randint(6, 262, (1, 12), generator=torch.Generator().manual_seed(5))


def by_int8_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """x [token, in] times weight [out, in]: quantised by hand, multiplied by torch's int8 kernel,
    which sums in int32.
    """
    of_token, of_output = x.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(-1) / 127
    q_x = (x / torch.where(of_token > 0, of_token, 1)).round().to(torch.int8)
    q_w = (weight / torch.where(of_output > 0, of_output, 1)[:, None]).round().to(torch.int8)
    return torch.ops.aten._int_mm(q_x, q_w.t().contiguous()).float() * of_token * of_output


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(20, 64, 40), (17, 3000, 24)])
def test_a_product_is_that_of_torch_s_int8_kernel(size: tuple[int, int, int], seed: int) -> None:
    tokens, inputs, outputs = size
    draw = torch.Generator().manual_seed(seed)
    x, weight = (
        torch.randn(tokens, inputs, generator=draw),
        torch.randn(outputs, inputs, generator=draw),
    )
    x[0, 0], weight[0] = 1e4, 0.0  # a token with an outlier, an output that is always 0
    x[-1] *= 0.0 if seed == 2 else 1.0
    scale = weight.abs().amax(-1) / 127
    assert torch.equal(integer_product(x, weight.t(), scale), by_int8_kernel(x, weight))


def test_sums_beyond_what_float32_holds_are_exact() -> None:
    x, weight = torch.full((1, 4001), 127.0), torch.full((1, 4001), 127.0)
    weight[0, 0] = 126.0
    found = integer_product(x, weight.t(), torch.ones(1))
    assert float(found) == float(
        torch.tensor(127 * 127 * 4000 + 126 * 127, dtype=torch.int32).float()
    )


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_view_computes_each_projection_so(family: Family) -> None:
    """Hugging Face's own model, its projections replaced by hand."""
    model, reference = tiny_model(family), make_model(family)
    rounded = dict(view_rounded(model, "int8").original_model.named_parameters())
    with torch.no_grad():
        for name, part in list(reference.named_modules()):
            if not isinstance(part, nn.Linear | Conv1D) or name == "lm_head":
                continue
            weight = part.weight if isinstance(part, nn.Linear) else part.weight.t()

            def forward(
                x: Tensor, weight: Tensor = weight, bias: Tensor | None = part.bias
            ) -> Tensor:
                made = by_int8_kernel(x.flatten(0, -2), weight).view(*x.shape[:-1], -1)
                return made if bias is None else bias + made

            vars(part)["forward"] = forward
        rows = {
            name.replace("._original_component", ""): dense(weight)
            for name, weight in rounded.items()
        }
        for name, weight in reference.named_parameters():
            if weight.ndim == 2 and (
                "embed" in name or "lm_head" in name or "wte" in name or "wpe" in name
            ):
                weight.copy_(rows[name])
        expected = reference(SHORT).logits
    found = view_dynamic(model)(SHORT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (
        float((view_rounded(model, "int8")(SHORT) - found).abs().max()) > 1e-4
    )  # activations did something


def test_some_of_the_inputs_alone_are_multiplied_as_they_are() -> None:
    """One head's part of a projection has no activations of its own that a kernel would round."""
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    matrix = DynamicInt8.of(weight, (weight.abs().amax(1, keepdim=True) / 127).expand(6, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(x[:, :4] @ matrix.t()[:4], x[:, :4] @ dense(matrix).t()[:4])
    assert torch.equal(x @ matrix.t(), by_int8_kernel(x, weight))
