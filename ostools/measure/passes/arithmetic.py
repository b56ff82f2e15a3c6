"""Arithmetic of derivatives and formulas: float32, or all the way float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.models import view_in
from ostools.models.precision.torch_state import float32_products


def full_precision(model: TransformerBridge, what: str) -> TransformerBridge:
    """The model itself in float32 or float64; a float32 view of a 16-bit one, whose Jacobian would be off by percents.

    `what` names the caller for the error: under active edits there is no view, because it would not follow them.
    """
    dtype = next(model.parameters()).dtype
    if dtype in (torch.float32, torch.float64):
        return model
    if edits := hooks.active_edits(model):
        raise InputError(
            f"{what} of a {dtype} model needs a float32 view, which the active edit {edits[0].kind!r} at {edits[0].where} "
            f"would not follow; load the model with dtype='float32' and edit that"
        )
    return view_in(model, torch.float32)


@contextmanager
def true_arithmetic(model: TransformerBridge, layers: Iterable[int] | None = None) -> Iterator[None]:
    """Compute norms and softmax of a float64 model in float64 too. `layers`: of these blocks only. Products of float32
    matrices are not in TF32, whatever is allowed elsewhere."""
    is_double = next(model.parameters()).dtype == torch.float64
    with float32_products(), hooks.exact_arithmetic(model, layers) if is_double else nullcontext():
        yield
