"""Dynamic int8: products of whole numbers, held against torch's own int8 kernel and against a forward pass written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ostools.models.lazy_cast import dense
from ostools.models.precision.rounding import DynamicInt8, integer_product, view_dynamic, view_rounded
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 12), generator=torch.Generator().manual_seed(5))


def by_int8_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """x [token, in] times weight [out, in]: quantised by hand, multiplied by torch's int8 kernel, which sums in int32."""
    of_token, of_output = x.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(-1) / 127
    q_x = (x / torch.where(of_token > 0, of_token, 1)).round().to(torch.int8)
    q_w = (weight / torch.where(of_output > 0, of_output, 1)[:, None]).round().to(torch.int8)
    return torch.ops.aten._int_mm(q_x, q_w.t().contiguous()).float() * of_token * of_output


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(20, 64, 40), (17, 3000, 24)])
def test_a_product_is_that_of_torch_s_int8_kernel(size: tuple[int, int, int], seed: int) -> None:
    tokens, inputs, outputs = size
    draw = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(tokens, inputs, generator=draw), torch.randn(outputs, inputs, generator=draw)
    x[0, 0], weight[0] = 1e4, 0.0  # a token with an outlier, an output that is always 0
    x[-1] *= 0.0 if seed == 2 else 1.0
    scale = weight.abs().amax(-1) / 127
    assert torch.equal(integer_product(x, weight.t(), scale), by_int8_kernel(x, weight))


def test_sums_beyond_what_float32_holds_are_exact() -> None:
    x, weight = torch.full((1, 4001), 127.0), torch.full((1, 4001), 127.0)
    weight[0, 0] = 126.0
    found = integer_product(x, weight.t(), torch.ones(1))
    assert float(found) == float(torch.tensor(127 * 127 * 4000 + 126 * 127, dtype=torch.int32).float())


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

            def forward(x: Tensor, weight: Tensor = weight, bias: Tensor | None = part.bias) -> Tensor:
                made = by_int8_kernel(x.flatten(0, -2), weight).view(*x.shape[:-1], -1)
                return made if bias is None else bias + made

            vars(part)["forward"] = forward
        rows = {name.replace("._original_component", ""): dense(weight) for name, weight in rounded.items()}
        for name, weight in reference.named_parameters():
            if weight.ndim == 2 and ("embed" in name or "lm_head" in name or "wte" in name or "wpe" in name):
                weight.copy_(rows[name])
        expected = reference(IDS).logits
    found = view_dynamic(model)(IDS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert float((view_rounded(model, "int8")(IDS) - found).abs().max()) > 1e-4  # activations did something


def test_some_of_the_inputs_alone_are_multiplied_as_they_are() -> None:
    """One head's part of a projection has no activations of its own that a kernel would round."""
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    matrix = DynamicInt8.of(weight, (weight.abs().amax(1, keepdim=True) / 127).expand(6, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(x[:, :4] @ matrix.t()[:4], x[:, :4] @ dense(matrix).t()[:4])
    assert torch.equal(x @ matrix.t(), by_int8_kernel(x, weight))
