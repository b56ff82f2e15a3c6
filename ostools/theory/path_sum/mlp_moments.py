"""The MLP of the recursion of second moments: its Jacobians at all positions, met by a few directions from either side.

    D_j = down (diag(p_j) gate + diag(q_j) up) - sum_s a_sj b_sj^T

with the norms' gains in the weights and their scales in p and q; a_s b_s^T is what norms that are live take off
(`live_moments.LiveMlp`), nothing where their scales are held. No D_j is formed. A product with a weight takes hardly longer for
several directions than for one, because what it waits for is the weight: all that is wanted of one goes through it together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Float[Tensor, "pos pos"]
Factor = Float[Tensor, "d_model probe"]
Vectors = Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class Met:
    """A direction's factor F as the MLP's output meets it: F^T down, and a_sj^T F."""

    factor: Factor
    hidden: Float[Tensor, "probe d_mlp"]
    taken: tuple[Float[Tensor, "pos probe"], ...]


@dataclass(frozen=True)
class Read:
    """What the MLP reads of matrices G: (gate G)^T, (up G)^T, and b_sj^T G."""

    gate: Float[Tensor, "*batch probe d_mlp"]
    up: Float[Tensor, "*batch probe d_mlp"] | None
    taken: tuple[Float[Tensor, "*batch pos probe"], ...]


@dataclass(frozen=True)
class Mlp:
    """D_j at every position j.

    `probes`: random directions z with E[z z^T] = I, for inner products; exact where there are d_model orthogonal ones.
    """

    down: Float[Tensor, "d_model d_mlp"]
    gate: Float[Tensor, "d_mlp d_model"]
    up: Float[Tensor, "d_mlp d_model"] | None
    p: Float[Tensor, "pos d_mlp"]
    q: Float[Tensor, "pos d_mlp"] | None
    probes: Float[Tensor, "d_model other_probe"]

    @property
    def taken(self) -> tuple[tuple[Vectors, Vectors], ...]:
        """a_s and b_s of what live norms take off; nothing here."""
        return ()

    def meet(self, *factors: Float[Tensor, "d_model _"]) -> list[Met]:
        """Every factor, all in one product with `down`."""
        # Rows in front of a weight: columns behind its transpose take up to ten times as long.
        hidden = (torch.cat([factor.T for factor in factors]) @ self.down).split([f.shape[1] for f in factors])
        return [
            Met(factor, rows, tuple(a @ factor for a, _ in self.taken))
            for factor, rows in zip(factors, hidden, strict=True)
        ]

    def read(self, *matrices: Float[Tensor, "... d_model _"]) -> list[Read]:
        """Every matrix, all in one product with each of `gate` and `up`."""
        rows = torch.cat([matrix.mT.reshape(-1, matrix.shape[-2]) for matrix in matrices])
        counts = [matrix[..., 0, :].numel() for matrix in matrices]
        gates = (rows @ self.gate.T).split(counts)
        ups = [None] * len(counts) if self.up is None else (rows @ self.up.T).split(counts)
        found = []
        for matrix, gate, up in zip(matrices, gates, ups, strict=True):
            shape = (*matrix.mT.shape[:-1], -1)
            taken = tuple(b @ matrix for _, b in self.taken)
            found.append(Read(gate.reshape(shape), None if up is None else up.reshape(shape), taken))
        return found

    def pulled(self, met: Sequence[Met], weights: Sequence[Float[Tensor, " pos"]]) -> list[Factor]:
        """sum_j w_j D_j^T F of every factor, with weights of its own: linear in p and q."""
        pairs = list(zip(met, weights, strict=True))
        moved = torch.cat([one.hidden * (share @ self.p) for one, share in pairs]) @ self.gate
        if self.up is not None and self.q is not None:
            moved.addmm_(torch.cat([one.hidden * (share @ self.q) for one, share in pairs]), self.up)
        found = [rows.T for rows in moved.split([len(one.hidden) for one in met])]
        for index, (_, b) in enumerate(self.taken):
            off = (b.T @ (share[:, None] * one.taken[index]) for one, share in pairs)
            found = [factor - less for factor, less in zip(found, off, strict=True)]
        return found

    def traces(self, met: Met, read: Read) -> Float[Tensor, "*batch pos"]:
        """tr(F^T D_j G), of many G at once."""
        trace = (read.gate * met.hidden).sum(-2) @ self.p.T
        if read.up is not None and self.q is not None:
            trace = trace + (read.up * met.hidden).sum(-2) @ self.q.T
        for left, right in zip(met.taken, read.taken, strict=True):
            trace = trace - (left * right).sum(-1)
        return trace

    def answers(self, met: Met, asked: Read) -> Iterator[Float[Tensor, "pos probe"]]:
        """F^T D_j z at every position, for one z after the other; `asked`: `probes` as they are read."""
        for index, gate in enumerate(asked.gate):
            answer = self.p @ (met.hidden * gate).T
            if asked.up is not None and self.q is not None:
                answer.addmm_(self.q, (met.hidden * asked.up[index]).T)
            for left, right in zip(met.taken, asked.taken, strict=True):
                answer.addcmul_(left, right[:, index, None], value=-1.0)
            yield answer

    def overlap(self, met: Met, common: Factor, read: Read, asked: Read) -> Kernel:
        """tr((I + D_j)^T Sigma (I + D_j')) for Sigma = F F^T; `common` is (I + Dbar)^T F, Dbar some mean of the D_j.

        `read` and `asked`: `common` and `probes` as they are read. With C = common^T every F^T (I + D_j) is a_j C + R_j,
        <C, R_j> = 0, so that the product is a_j a_j' ||C||^2 + <R_j, R_j'>. The first is exact; the second is estimated from
        the answers R_j z, without bias. Both are positive semidefinite, and so is what is estimated.
        """
        factor = met.factor
        size = common.square().sum()
        along = (factor * common).sum() + self.traces(met, read)
        shares = along / torch.where(size == 0, 1.0, size)
        total = size * torch.outer(shares, shares)
        skipped, shared = self.probes.T @ factor, self.probes.T @ common
        for here, there, answer in zip(skipped, shared, self.answers(met, asked), strict=True):
            rest = (here + answer).addmm_(shares[:, None], there[None], alpha=-1.0)
            total.addmm_(rest, rest.T, alpha=1.0 / self.probes.shape[1])
        return total
