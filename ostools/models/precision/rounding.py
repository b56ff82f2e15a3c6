"""A model whose weights are read as numbers that a format of few bits holds.

`view_rounded` computes with them in float32: what quantising the weights alone does. `view_dynamic`
rounds activations too, and multiplies whole numbers, as int8 kernels do. There the scale of the
activations is found in the pass itself, for each token, so that no token's numbers depend on what
comes later, as they would with one scale for a whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, RangeError
from ostools.ground.lens import Conv1D, TransformerBridge
from ostools.ground.out_of_memory import chunk
from ostools.hooks.errors import RangeError as HookRangeError
from ostools.hooks.rounding import FLOATS, Format, codes, integer_scale, stored
from ostools.models.describe import named_weights
from ostools.models.lazy_cast import BLOCK, LazyCast, dense
from ostools.models.precision.casting import Reader, Reading, view

_DYNAMIC = "int8"
_aten: Any = torch.ops.aten
# What holds every number of a dtype; nothing has to be read to know it.
_WIDER = {
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
    torch.float16: (torch.float16, torch.float32, torch.float64),
    torch.float32: (torch.float32, torch.float64),
    torch.float64: (torch.float64,),
}


@checked_arguments(InputError)
def view_rounded(model: TransformerBridge, format: Format) -> TransformerBridge:
    """A float32 view of `model` whose weights are the nearest that `format` holds (ties to even);
    tied ones stay tied.

    bfloat16, float16, float8_e4m3fn, float8_e5m2: every parameter. int8, int4: matrices, symmetric
    with a scale per output channel (the largest magnitude of a Linear's row, of a token's or a
    position's row of an embedding, over 127 or 7); gains of norms and biases stay float32, as
    quantisers leave them. Integer scales are found from the weights in float32.

    Cost: reads every weight once, then rounds a weight wherever it is read (`view_in`). Raises
    `InputError` for an unknown format, a weight that a floating format cannot hold, and while hooks
    are on the model.
    """
    require_held(model, format)
    return view(model, torch.float32, reading_of(model, format))


def reading_of(model: TransformerBridge, format: str) -> Reading:
    """Reading of each weight of the model in that format; for an integer one, a matrix and the
    scale of each output.
    """
    # GPT-2's projections are stored [in, out], where everybody else's are [out, in].
    inputs_first = {id(module.weight) for module in model.modules() if isinstance(module, Conv1D)}

    def reading(weight: Tensor) -> tuple[Reader, tuple[Tensor, ...]]:
        if format in FLOATS:
            return lambda weight: stored(weight.float(), format), (weight,)
        if weight.ndim != 2:
            return torch.Tensor.float, (weight,)
        inputs, numbers = 0 if id(weight) in inputs_first else 1, dense(weight)
        largest = torch.maximum(
            numbers.amax(inputs, keepdim=True), -numbers.amin(inputs, keepdim=True)
        ).float()
        scale = integer_scale(largest, format)
        return partial(_as_integer, format=format), (weight, scale.expand(weight.shape))

    return reading


def _as_integer(
    weight: Float[Tensor, "*shape"], scale: Float[Tensor, "*shape"], format: str
) -> Float[Tensor, "*shape"]:
    return stored(weight.float(), format, scale)


def require_held(model: TransformerBridge, format: str) -> None:
    """Every weight is finite, and within what a floating format holds: said before the run, with
    the weight's name.
    """
    for name, weight in named_weights(model):
        if format not in FLOATS and weight.ndim > 2:
            raise InputError(
                f"{format}: expected matrices, of which each output has a scale, found {name} with {weight.ndim} axes, the "
                f"weights of experts; use one of {', '.join(FLOATS)}"
            )
        if format in FLOATS or weight.ndim == 2:
            scale = None if format in FLOATS else torch.ones((), device=weight.device)
            try:
                for rows in _row_blocks(weight):
                    stored(rows.float(), format, scale, name)
            except HookRangeError as error:
                raise RangeError(str(error)) from None


def holds(model: TransformerBridge, dtype: torch.dtype) -> bool:
    """Whether every weight of the model is a number of `dtype` already, so that storing it there
    changes nothing.
    """
    return all(
        bool(torch.equal(rows.to(dtype).to(rows.dtype), rows))
        for _, weight in named_weights(model)
        if dtype not in _WIDER.get(weight.dtype, ())
        for rows in _row_blocks(weight)
    )


def _row_blocks(weight: Tensor) -> Iterator[Tensor]:
    """The weight, so many rows at a time that another dtype of a large one does not stand beside
    it.
    """
    rows = max(1, chunk(BLOCK) // max(1, weight[0].numel() * weight.element_size()))
    return (dense(part) for part in weight.split(rows))


class DynamicInt8(LazyCast):
    """A matrix scale q of a block: in a product with activations, q times theirs; read otherwise,
    the numbers scale q.

    `inputs`: of the whole matrix. A product over some of them alone, as of one head, has no
        integers of its own.
    """

    inputs: int

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor) -> LazyCast:
        """`scale`: of each output channel, expanded over the inputs."""
        read = partial(_as_integer, format=_DYNAMIC)
        self: Any = cls(read, (weight, scale), torch.float32)  # pyright: ignore[reportCallIssue]
        self.inputs = weight.shape[scale.stride().index(0)]
        return self

    def _of(self, parts: tuple[Tensor, ...]) -> LazyCast:
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

    q_x = round(x / s_x) with s_x = max |x| / 127 of each token, q_w = round(weight / scale); ties
    to even. The sum goes through float64, which holds every such sum: an int32 kernel gives the
    same number.
    """
    of_token = integer_scale(x.abs().amax(-1, keepdim=True), _DYNAMIC)
    sums = codes(x, _DYNAMIC, of_token).double() @ codes(weight, _DYNAMIC, scale).double()
    return sums.float() * of_token * scale


def view_dynamic(model: TransformerBridge) -> TransformerBridge:
    """A float32 view of `model` in which each matrix of a block multiplies whole numbers of 8 bits.

    Weights are those of `view_rounded(model, "int8")`: symmetric, a scale per output channel. In
    front of a matrix of a block (the projections of attention and MLP) activations are rounded too:
    symmetric, a scale per token, found from that token. Scores, softmax, norms, residual stream and
    unembedding stay in float32, as usual kernels leave them.

    Cost and errors: those of `view_rounded`; a product of matrices goes through float64.
    """
    require_held(model, _DYNAMIC)
    blocks = {id(weight) for weight in model.blocks.parameters() if weight.ndim == 2}
    rounded = reading_of(model, _DYNAMIC)

    def replacement(weight: Tensor) -> Tensor | None:
        if id(weight) not in blocks:
            return None
        _, (matrix, scale) = rounded(weight)
        return DynamicInt8.of(matrix.detach(), scale)

    return view(model, torch.float32, rounded, replacement)
