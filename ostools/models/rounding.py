"""A copy of a model whose weights are stored in few bits and computed with in float32.

What quantising the weights alone does to a model: every number is one that the format holds, no arithmetic is rounded.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers.pytorch_utils import Conv1D

from hooks.errors import HookError
from hooks.rounding import FLOATS, FORMATS, integer_scale, stored
from ostools.ground.errors import InputError, unknown_name
from ostools.models.casting import cast_copy
from ostools.models.describe import named_weights


def rounded_copy(model: TransformerBridge, format: str) -> TransformerBridge:
    """A float32 copy of `model` whose weights are the nearest that `format` holds (ties to even); tied ones stay tied.

    bfloat16, float16, float8_e4m3fn, float8_e5m2: every parameter. int8, int4: matrices, symmetric with a scale per output
    channel (the largest magnitude of a Linear's row, of a token's or a position's row of an embedding, over 127 or 7); gains of
    norms and biases stay float32, as quantisers leave them. Integer scales are found from the weights in float32.

    Memory: one float32 copy. Raises `InputError` for an unknown format, a weight that a floating format cannot hold, and
    while hooks are on the model.
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    result = cast_copy(model, torch.float32)
    inputs_first = _inputs_first(result)
    with torch.no_grad():
        for name, weight in named_weights(result):
            if format in FLOATS or weight.ndim == 2:
                weight.copy_(_rounded(weight, format, name, 0 if weight.data_ptr() in inputs_first else 1))
    return result


def _inputs_first(model: TransformerBridge) -> set[int]:
    """GPT-2's projections are stored [in, out], where everybody else's are [out, in]: by the address of their numbers."""
    return {module.weight.data_ptr() for module in model.modules() if isinstance(module, Conv1D)}


def _rounded(weight: Float[Tensor, "*shape"], format: str, name: str, inputs: int) -> Float[Tensor, "*shape"]:
    """The weight as stored; `inputs`: the axis that an integer's scale is shared along."""
    scale = None if format in FLOATS else integer_scale(weight.abs().amax(inputs, keepdim=True), format)
    try:
        return stored(weight, format, scale, name)
    except HookError as error:
        raise InputError(str(error)) from None


def holds(model: TransformerBridge, dtype: torch.dtype) -> bool:
    """Whether every weight of the model is a number of `dtype` already, so that storing it there changes nothing."""
    return all(bool(torch.equal(weight.to(dtype).to(weight.dtype), weight)) for _, weight in named_weights(model))
