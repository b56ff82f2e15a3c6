"""Exact norms of every Jacobian: all d_model rows, carried through the network side by side.

Cost: d_model backward passes over the prompt, whatever its length and however many layers are asked for; d_model^2 numbers a
token and layer, in memory or, where they do not fit, in a temporary file, so many rows at a time as memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.progress import Progress
from ostools.measure.jacobian.routes import Route, pulled
from ostools.theory.bounds.operators import chunks

NORM_BUDGET = 1 << 26
"""Bytes of Jacobians whose norms are taken at a time."""

Jacobians = Float[Tensor, "place d_out d_model"]


@contextmanager
def jacobians(
    route: Route,
    like: Float[Tensor, "... d_model"],
    rows_on_disk: int | None,
    progress: Progress | None,
    logit: Float[Tensor, " d_model"] | None = None,
) -> Iterator[Jacobians]:
    """J at every place of the route; row k of J is the gradient of component k of y_n. With `logit` w^T J alone, one row.

    In the dtype and on the device of `like`. `rows_on_disk`: in a temporary file, gone at the end of the block, with so many
    rows at a time in memory.
    """
    d_model = like.shape[-1]
    cotangents = torch.eye(d_model, dtype=like.dtype, device=like.device) if logit is None else logit.to(like)[None]
    with pulled(route, cotangents, rows_on_disk, progress) as rows:
        yield rows.transpose(0, 1)


@dataclass(frozen=True)
class Norms:
    """||J||_2 and ||J||_F at every place, float64."""

    operator: Float[Tensor, " place"]
    frobenius: Float[Tensor, " place"]


def norms(jacobian_rows: Jacobians, device: torch.device) -> Norms:
    """Operator norm as the root of the largest eigenvalue of J^T J, or of J J^T where that is smaller: exact to rounding, half
    the time of singular values.

    Every J is divided by its largest entry first, so that no square overflows. The norms of a J that is not finite are not.
    """
    places, d_out, d_model = jacobian_rows.shape
    operator, frobenius = [], []
    for part in chunks(places, d_out * d_model * jacobian_rows.element_size(), NORM_BUDGET):
        matrices = jacobian_rows[part].to(device)
        largest = matrices.abs().amax((1, 2), keepdim=True)
        unit = matrices / torch.where(largest > 0, largest, 1.0)
        unit.masked_fill_(~torch.isfinite(largest), 0.0)  # eigvalsh would raise: 0 times such a scale is NaN
        gram = unit.mT @ unit if d_model <= d_out else unit @ unit.mT
        scale = largest[:, 0, 0].double()
        operator.append(torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0.0).sqrt().double() * scale)
        frobenius.append(gram.diagonal(dim1=1, dim2=2).sum(-1).sqrt().double() * scale)
    return Norms(torch.cat(operator), torch.cat(frobenius))


def row(jacobian_rows: Jacobians) -> Callable[[Float[Tensor, " d_out"]], Float[Tensor, "place d_model"]]:
    """g^T J at every place, read off the rows themselves."""

    def read(cotangent: Float[Tensor, " d_out"]) -> Float[Tensor, "place d_model"]:
        return torch.cat(
            [cotangent @ part.to(cotangent) for part in jacobian_rows.split(1 + NORM_BUDGET // jacobian_rows[0].nbytes)]
        )

    return read


def parts(jacobian_rows: Jacobians) -> Callable[[Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_out"]]:
    """J_i t_i at the first places, as many as there are t_i, read off the rows themselves: what checks read."""

    def read(field: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_out"]:
        return torch.stack([rows.to(vector) @ vector for rows, vector in zip(jacobian_rows, field, strict=False)])

    return read
