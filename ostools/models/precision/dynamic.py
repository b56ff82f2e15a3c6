"""Products of whole numbers: dynamic int8 quantisation of weights and activations, as int8 kernels compute it.

Dynamic: the scale of the activations is found in the pass itself, for each token, so that no token's numbers depend on what
comes later, as they would with one scale for a whole prompt.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from hooks.rounding import codes, integer_scale
from ostools.models.precision.casting import view
from ostools.models.precision.rounding import as_integer, reading_of, require_held
from ostools.models.recast import Recast

FORMAT = "int8"
_aten: Any = torch.ops.aten


class DynamicInt8(Recast):
    """A matrix scale q of a block: in a product with activations, q times theirs; read otherwise, the numbers scale q.

    `inputs`: of the whole matrix. A product over some of them alone, as of one head, has no integers of its own.
    """

    inputs: int

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor) -> Recast:
        """`scale`: of each output channel, expanded over the inputs."""
        read = partial(as_integer, format=FORMAT)
        self: Any = cls(read, (weight, scale), torch.float32)  # pyright: ignore[reportCallIssue]
        self.inputs = weight.shape[scale.stride().index(0)]
        return self

    def _of(self, parts: tuple[Tensor, ...]) -> Recast:
        recast: Any = DynamicInt8(self.read, parts, self.dtype, device=self.device)  # pyright: ignore[reportCallIssue]
        recast.inputs = self.inputs
        return recast

    def product(self, function: Any, operands: list[Tensor], **kwargs: Any) -> Tensor:
        weight, scale = self.parts
        plain = function in (_aten.mm.default, _aten.addmm.default) and not kwargs
        if not plain or scale.stride(0) != 0 or len(weight) != self.inputs:
            return super().product(function, operands, **kwargs)
        products = integer_product(operands[-1], weight.float(), scale[0])
        return operands[0] + products if len(operands) == 2 else products


def integer_product(
    x: Float[Tensor, "token in"], weight: Float[Tensor, "in out"], scale: Float[Tensor, " out"]
) -> Float[Tensor, "token out"]:
    """s_x s_w sum_i q_x q_w: a sum of whole numbers, which is exact, then two products in float32.

    q_x = round(x / s_x) with s_x = max |x| / 127 of each token, q_w = round(weight / scale); ties to even. The sum goes through
    float64, which holds every such sum: an int32 kernel gives the same number.
    """
    of_token = integer_scale(x.abs().amax(-1, keepdim=True), FORMAT)
    sums = codes(x, FORMAT, of_token).double() @ codes(weight, FORMAT, scale).double()
    return sums.float() * of_token * scale


def view_dynamic(model: TransformerBridge) -> TransformerBridge:
    """A float32 view of `model` in which each matrix of a block multiplies whole numbers of 8 bits.

    Weights are those of `view_rounded(model, "int8")`: symmetric, a scale per output channel. In front of a matrix of a block
    (the projections of attention and MLP) activations are rounded too: symmetric, a scale per token, found from that token.
    Scores, softmax, norms, residual stream and unembedding stay in float32, as usual kernels leave them.

    Cost and errors: those of `view_rounded`; a product of matrices goes through float64.
    """
    require_held(model, FORMAT)
    blocks = {id(weight) for weight in model.blocks.parameters() if weight.ndim == 2}
    rounded = reading_of(model, FORMAT)

    def replacement(weight: Tensor) -> Tensor | None:
        if id(weight) not in blocks:
            return None
        _, (matrix, scale) = rounded(weight)
        return DynamicInt8.of(matrix.detach(), scale)

    return view(model, torch.float32, rounded, replacement)
