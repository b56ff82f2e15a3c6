"""The Jacobian of y_n row by row, and J t by finite differences of a held network, which take no
derivative.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.jacobian.certificate import moved_prompts
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Start, linearised
from ostools.measure.passes.contexts import true_arithmetic


def by_rows(
    model: TransformerBridge, ids: Tensor, linearisation: str, *, keeps_graph: bool = True
) -> Float[Tensor, "pos d_out d_model"]:
    """All rows, seven at a time."""
    with true_arithmetic(model):
        start, how = Start.of(model, ids), {"chunk": 7, "keeps_graph": keeps_graph}
        with linearised(model, start, [linearisation], **how) as linear:
            return linear.pull(torch.eye(len(start.y)).to(start.y)).transpose(0, 1)


def by_differences(
    model: TransformerBridge,
    ids: Tensor,
    linearisation: str,
    direction: Float[Tensor, "pos d_model"],
) -> Float[Tensor, " d_out"]:
    """sum_i J_i t_i by central differences, of a step that hardly any kink of a ReLU lies in."""
    with true_arithmetic(model):
        start = Start.of(model, ids)
        embedded = start.embedded
        step = 1e-5 * float(embedded.norm() / direction.norm())
        moved = torch.stack([embedded + step * direction, embedded - step * direction])
        with linearised(model, start, [linearisation], keeps_graph=False) as linear:
            (up, down), _ = moved_prompts(linear, moved, [FROZEN_PARTS[linearisation]] * 2)
    return (up - down) / (2 * step)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """To a share of the largest entry."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
