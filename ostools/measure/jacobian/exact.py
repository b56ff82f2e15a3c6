"""Exact norms of every Jacobian: all d_model rows, a block of cotangents at a time.

Cost: d_model backward passes over the prompt, whatever its length and however many layers are asked for; d_model^2 numbers a
token and layer, in memory or, where they do not fit, in a temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.progress import Progress, tell
from ostools.measure.jacobian.routes import Route
from ostools.theory.path_sum.operators import chunks

NORM_BUDGET = 1 << 26
"""Bytes of Jacobians whose norms are taken at a time."""

Jacobians = Float[Tensor, "place d_out d_model"]


@contextmanager
def jacobians(
    route: Route, places: int, like: Float[Tensor, "... d_model"], chunk: int, on_disk: bool, progress: Progress | None
) -> Iterator[Jacobians]:
    """J at every place of the route, `chunk` rows at a time; row k of J is the gradient of component k of y_n.

    In the dtype and on the device of `like`; `on_disk` in a temporary file, gone at the end of the block.
    """
    d_model = like.shape[-1]
    with _rows((places, d_model, d_model), like, on_disk) as rows:
        eye = torch.eye(d_model, dtype=like.dtype, device=like.device)
        for start in range(0, d_model, chunk):
            cotangents = eye[start : start + chunk]
            rows[:, start : start + chunk] = route.pull(cotangents).transpose(0, 1)
            tell(progress, start + len(cotangents), d_model)
        yield rows


@contextmanager
def _rows(shape: tuple[int, int, int], like: Tensor, on_disk: bool) -> Iterator[Jacobians]:
    if not on_disk:
        yield torch.empty(shape, dtype=like.dtype, device=like.device)
        return
    with tempfile.TemporaryDirectory(prefix="ostools-") as folder:
        size = shape[0] * shape[1] * shape[2]
        yield torch.from_file(str(Path(folder) / "rows"), shared=True, size=size, dtype=like.dtype).view(shape)


@dataclass(frozen=True)
class Norms:
    """||J||_2 and ||J||_F at every place, float64."""

    operator: Float[Tensor, " place"]
    frobenius: Float[Tensor, " place"]


def norms(found: Jacobians, device: torch.device) -> Norms:
    """Operator norm as the root of the largest eigenvalue of J^T J: exact to rounding, half the time of singular values.

    Every J is divided by its largest entry first, so that no square overflows. The norms of a J that is not finite are not.
    """
    places, d_out, d_model = found.shape
    operator, frobenius = [], []
    for part in chunks(places, d_out * d_model * found.element_size(), NORM_BUDGET):
        here = found[part].to(device)
        largest = here.abs().amax((1, 2), keepdim=True)
        unit = here / torch.where(largest > 0, largest, 1.0)
        unit.masked_fill_(~torch.isfinite(largest), 0.0)  # eigvalsh would raise: 0 times such a scale is NaN
        gram = unit.mT @ unit
        scale = largest[:, 0, 0].double()
        operator.append(torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0.0).sqrt().double() * scale)
        frobenius.append(gram.diagonal(dim1=1, dim2=2).sum(-1).sqrt().double() * scale)
    return Norms(torch.cat(operator), torch.cat(frobenius))


def product(found: Jacobians) -> Callable[[int, Float[Tensor, " d_model"]], Float[Tensor, " d_out"]]:
    """J_place u, read off the rows themselves: what the certificate checks."""
    return lambda place, direction: found[place].to(direction) @ direction
