"""Norms of a matrix that is seen through a few random rows: unbiased estimates, intervals and a
lower bound.

    Q: k orthonormal rows, uniform over all such k (Haar)    E[(d / k) ||Q J||_F^2] = ||J||_F^2
    Q of k = d rows                                         (d / d) ||Q J||_F^2 = ||J||_F^2, exactly
    for every Q                                             ||Q J||_2 <= ||J||_2 <= ||J||_F

J is a d x d Jacobian; a row q^T J is one backward pass. Orthogonal rows have less variance than
independent ones, by the factor (d - k) / (d - 1). Only the Gram matrices (Q J)(Q J)^T enter.
Everything here takes one a position, batched over positions. Cost: O(k^2 d_model) a position for
the Gram matrix, O(k^3) for its largest eigenvalue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

PerToken = Float[Tensor, " pos"]
# Below this relative variance of one row a matrix is a multiple of an isometry: rounding, divided
# by itself otherwise.
_FLAT = 1e-12


@dataclass(frozen=True)
class TraceInterval:
    """An unbiased estimate and its two-sided confidence interval, one a position."""

    value: PerToken
    lower: PerToken
    upper: PerToken


def orthonormal_rows(
    count: int,
    d_model: int,
    generator: torch.Generator,
    orthogonal_to: Sequence[Float[Tensor, "_ d_model"]] = (),
) -> Float[Tensor, "count d_model"]:
    """`count` orthonormal rows, float64, uniform among those orthogonal to all rows
    `orthogonal_to`.
    """
    gaussian_rows = torch.randn(
        count, d_model, generator=generator, device=generator.device, dtype=torch.float64
    )
    for _ in range(2):  # once more takes away what rounding left
        for rows in orthogonal_to:
            gaussian_rows = gaussian_rows - (gaussian_rows @ rows.T) @ rows
        gaussian_rows = torch.linalg.qr(gaussian_rows.T).Q.T
    return gaussian_rows


def gram(rows: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "pos row row"]:
    """G_kl = <row k, row l> at every position, float64; a position at a time, so that no float64
    copy of all rows is made.
    """
    return torch.stack([rows_at.double() @ rows_at.double().T for rows_at in rows.unbind(1)])


@dataclass(frozen=True)
class Sketch:
    """Sums over the batches of rows that were seen, from which every estimate is made.

    `squares`: ||q^T J||^2 of every row q and position. `spread` and `pairs`: summed over batches,
    ||G||_F^2 - tr(G)^2 / b of a batch of b rows, and (b - 1)(b + 2) / 2, the number of variances
    that it holds in expectation. `largest`: of ||Q J||_2^2 over batches.
    """

    squares: Float[Tensor, "row pos"]
    spread: PerToken
    pairs: float
    largest: PerToken
    d_model: int

    @classmethod
    def of(cls, rows: Float[Tensor, "row pos d_model"]) -> "Sketch":
        """Sketch of one batch of rows q^T J, whose q are orthonormal."""
        gram_matrices, count = gram(rows).cpu(), len(rows)
        squares = gram_matrices.diagonal(dim1=-2, dim2=-1)
        spread = gram_matrices.square().sum((-1, -2)) - squares.sum(-1).square() / count
        finite = torch.isfinite(spread)  # eigvalsh would raise
        largest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], gram_matrices, 0.0))[
            :, -1
        ].clamp_min(0.0)
        pairs = (count - 1) * (count + 2) / 2
        return cls(squares.T.contiguous(), spread.clamp_min(0.0), pairs, largest, rows.shape[-1])

    def __add__(self, second: "Sketch") -> "Sketch":
        """Sketch of both batches, whose rows are orthogonal to each other too."""
        return Sketch(
            torch.cat([self.squares, second.squares]),
            self.spread + second.spread,
            self.pairs + second.pairs,
            torch.maximum(self.largest, second.largest),
            self.d_model,
        )

    @property
    def rows(self) -> int:
        """Number of rows seen."""
        return len(self.squares)

    def trace_interval(self, level: float) -> TraceInterval:
        """||J||_F^2 with an interval that misses with probability `level`, nominally.

        ||Q J||_F^2 / ||J||_F^2 is a Beta(k / 2, (d - k) / 2) variable where J has rank one,
        exactly. Lower end: Beta(a k, a (d - k)) with a such that the variance is that of this J.
        Upper end: that of rank one, shrunk towards 1 by the root of this J's variance over that of
        rank one (Graybill and Wang 1980): a direction that holds much of J, and that the rows
        happen to miss, makes the Beta's own upper end too low. Simulated on spectra from rank one
        to flat, power laws and spikes, d = 64 and 640, k = 4 to 32: 95% intervals hold in 94.5% to
        99.5% of cases.
        """
        value = self.d_model / self.rows * self.squares.sum(0)
        if self.rows == self.d_model:
            return TraceInterval(value, value, value)
        relative, most = self._relative_variance, _variance_of_rank_one(self.d_model)
        shape = ((self.d_model - 1) / relative.clamp_min(_FLAT) - 1) / self.d_model
        lower = value / self._ratio(shape, 1 - level / 2)
        upper_of_rank_one = 1 / self._ratio(torch.tensor(0.5, dtype=torch.float64), level / 2)
        upper = value * (1 + (upper_of_rank_one - 1) * (relative / most).sqrt())
        return TraceInterval(value, torch.minimum(lower, value), upper)

    @property
    def _relative_variance(self) -> PerToken:
        """Var(||q^T J||^2) / E^2 of one random row q, from pairs of rows: 0 where J is a multiple
        of an isometry, largest where its rank is one. Both moments are estimated without bias."""
        d, k = self.d_model, self.rows
        variance = self.spread / self.pairs
        mean = self.squares.mean(0)
        square = mean.square() - variance / k * (1 - k / d)
        relative = torch.where(square > 0, variance / square * ((d - 1) / d), float("inf"))
        relative = torch.where(mean > 0, relative, 0.0)
        return relative.clamp(0.0, _variance_of_rank_one(d))

    def _ratio(self, shape: Tensor, probability: float) -> Tensor:
        """The quantile of (d / k) Beta(shape k, shape (d - k))."""
        from scipy.special import betaincinv

        d, k = self.d_model, self.rows
        quantile = betaincinv((shape * k).numpy(), (shape * (d - k)).numpy(), probability)
        return d / k * torch.from_numpy(np.asarray(quantile))


def _variance_of_rank_one(d_model: int) -> float:
    """Var(x) / E(x)^2 of x = (q . u)^2, q uniform on the sphere."""
    return 2 * (d_model - 1) / (d_model + 2)
