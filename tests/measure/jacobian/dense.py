"""The Jacobian of y_n by two routes that share nothing: autograd through the model's own pass, and the formulas."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import jacobian
from ostools.measure.jacobian.linearise import Linearised, freezing
from ostools.measure.passes.contexts import true_arithmetic


def by_autograd(model: TransformerBridge, ids: Tensor, linearisation: str) -> Float[Tensor, "pos d_out d_model"]:
    """Row by row, of whole patterns."""
    with true_arithmetic(model):
        embedded = model.input_to_embed(ids[None])[0][0]
        return jacobian(model, embedded, freeze=freezing(model, linearisation))


def by_formulas(
    model: TransformerBridge, ids: Tensor, linearisation: str, chunk: int | None = None
) -> Float[Tensor, "pos d_out d_model"]:
    """All rows pulled through the linearised blocks, `chunk` at a time."""
    linear = Linearised(model, ids, linearisation, chunk=chunk)
    return linear.pull(torch.eye(int(model.cfg.d_model), dtype=model.W_E.dtype)).transpose(0, 1)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """To a share of the largest entry."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
