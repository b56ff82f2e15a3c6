"""A model whose weights are read as numbers that a format of few bits holds, and computed with in
float32: what quantising the weights alone does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, NonFiniteError
from ostools.ground.lens import Conv1D, TransformerBridge
from ostools.ground.out_of_memory import chunk
from ostools.hooks.errors import FormatError
from ostools.hooks.rounding import FLOATS, Format, integer_scale, stored
from ostools.models.describe import named_weights
from ostools.models.lazy_cast import BLOCK, dense
from ostools.models.precision.casting import Reader, Reading, refuse_hooked, view

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
    refuse_hooked(model)
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
                f"{format}: expected matrices, of which each output has a scale, found {name} with "
                f"{weight.ndim} axes, the weights of experts; use one of {', '.join(FLOATS)}"
            )
        if format in FLOATS or weight.ndim == 2:
            scale = None if format in FLOATS else torch.ones((), device=weight.device)
            try:
                for rows in _row_blocks(weight):
                    stored(rows.float(), format, scale, name)
            except FormatError as error:
                raise NonFiniteError(str(error)) from None


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
