"""The path sum that predicts: mean squares in place of worst cases, carried from the top of the network down.

What is wanted of J_j = d y_n / d v_j is ||J_j||_F^2 = tr S_jj, with S_jj' = J_j^T J_j'. A block maps S linearly:

    S_jj' <- (I + D_j)^T S_jj' (I + D_j')                                   through the MLP, D_j its Jacobian
    S_jj' <- sum_ii' T_ij^T S_ii' T_i'j',  T_ij = delta_ij I + sum_h At_h,ij B_h      through attention

with patterns and scales held (`frozen`); At_h = diag(1/rp1) A_h diag(1/r1), B_h = diag(gp1) W_OV^h diag(g1). S is n^2 matrices
of d x d: too many. Carried are all their traces, the kernel K_jj' = tr S_jj', which lets paths through different positions
interfere, and two directions, matrices Sigma of trace 1, so that S_jj' ~ K_jj' Sigma:

    `own`     for every pair with the last token n in it: S_nn itself, exactly, because only n's own chain leads to n
    `shared`  for all other pairs: the mean of S_jj / tr S_jj over the other tokens, without what n's paths and theirs share

A step from such an S gives exact traces. Where blocks meet each other in random directions both Sigma are I / d in mean, and
K is exact in mean; with operators that are multiples of the identity it is exact. `shared` turns with what the MLPs of the
tokens have in common (their mean D); what differs between tokens is taken as undirected. It bounds nothing.

A direction is kept as a factor, Sigma = F F^T with F d x k, and no d x d matrix is formed. With k >= d nothing is estimated.
With fewer, F is a random sketch of such a factor (E[F F^T] = Sigma), as are the other sides of the MLP's inner products.

Cost: no gradient, one forward pass; a block costs O(H n^3) for attention and O(k d (d_mlp + H d_head) + k k' n d_mlp) beside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum import operators
from ostools.theory.path_sum.mlp_moments import Factor, Kernel, Mlp


@dataclass(frozen=True)
class Heads:
    """Every head's B_h = left_h right_h side by side, and At_h: the pattern with the norms' scales in it."""

    left: Float[Tensor, "d_model head_d_head"]
    right: Float[Tensor, "head_d_head d_model"]
    weighted: Float[Tensor, "head query key"]

    @property
    def d_head(self) -> int:
        return self.right.shape[0] // len(self.weighted)

    def pulled(self, factor: Factor) -> Float[Tensor, "basis d_model probe"]:
        """B_a^T F over the basis I, B_1, ..., B_H."""
        hidden = (self.left.T @ factor).unflatten(0, (-1, self.d_head))
        return torch.cat([factor[None], self.right.unflatten(0, (-1, self.d_head)).mT @ hidden])

    def last_pulled(self, pulled: Float[Tensor, "basis d_model probe"]) -> Factor:
        """T_nn^T F, of F as `pulled` gives it."""
        return pulled[0] + torch.einsum("h,hdp->dp", self.weighted[:, -1, -1], pulled[1:])

    def squares(self, factor: Factor) -> Float[Tensor, "query key"]:
        """tr(T_ij^T Sigma T_ij) for Sigma = F F^T of trace 1."""
        inner = gram(self.pulled(factor))
        skip = inner[0, 0] + 2.0 * inner[0, 1:] @ self.weighted.diagonal(dim1=1, dim2=2)
        return quadratic(inner[1:, 1:], self.weighted) + torch.diag(skip)

    def corrected(self, kernel: Kernel, before: Moments, beside: Mlp | None = None) -> Kernel:
        """The kernel after the step, with what is not in the weights; nothing here, where all is held.

        `beside`: the MLP of a parallel block, whose D_j is added to T_jj.
        """
        return kernel


@dataclass(frozen=True)
class Sketch:
    """How wide a factor may become: `count` columns, mixed at random where that is less than d_model."""

    count: int
    seed: int

    def of(self, wide: Float[Tensor, "d_model some"]) -> Factor:
        """F with E[F F^T] = W W^T; exact where W has no more than `count` columns, or `count` is d_model."""
        d, columns = wide.shape
        if columns <= self.count:
            return wide
        if self.count >= d:
            return _root(wide @ wide.T)
        return wide @ operators.orthogonal_probes(columns, self.count, self.seed, wide) / self.count**0.5

    def undirected(self, like: Float[Tensor, "d_model some"]) -> Factor:
        """F with E[F F^T] = I, as many rows as `like` has."""
        probes = operators.orthogonal_probes(len(like), self.count, self.seed, like)
        return probes / probes.shape[1] ** 0.5


@dataclass(frozen=True)
class Moments:
    """K in units of exp(`log_size`) = tr S_nn, last token last; `shared` is None where no other token carries anything."""

    kernel: Kernel
    own: Factor
    shared: Factor | None
    log_size: float

    def squares(self) -> Float[Tensor, " pos"]:
        """||J_j||_F^2 in float64: tr S_jj."""
        return self.kernel.diagonal().double() * torch.tensor(self.log_size, dtype=torch.float64).exp()


def top(n: int, final_norm: Float[Tensor, "d_model d_model"]) -> Moments:
    """y_n itself: S_nn = A^T A with A the Jacobian of the final norm at n, and nothing at the other n - 1 tokens."""
    kernel = final_norm.new_zeros(n, n)
    kernel[-1, -1] = size = final_norm.square().sum()
    return normalised(kernel, size, final_norm.T, None, 0.0)


def through_mlp(moments: Moments, mlp: Mlp, sketch: Sketch) -> Moments:
    """S_jj' <- (I + D_j)^T S_jj' (I + D_j')."""
    own = narrow(moments.own, sketch)
    alone = only_last(moments.kernel)
    if moments.shared is None:
        (met,) = mlp.meet(own)
        step = own + mlp.pulled([met], [alone])[0]
        row = moments.kernel[-1] * ((own * step).sum() + mlp.traces(met, *mlp.read(step)))
        return normalised(with_last(torch.zeros_like(moments.kernel), row), row[-1], step, None, moments.log_size)
    weights = carrying(moments.kernel)
    met, others = mlp.meet(own, moments.shared)
    step, pulled = mlp.pulled([met, others], [alone, weights])
    step = own + step
    # sum_j w_j (I + D_j)^T Sigma (I + D_j): what the mean MLP makes of Sigma, and the rest of the trace in no direction.
    common = moments.shared + pulled
    read, *beside = mlp.read(step, common, mlp.probes)
    row = moments.kernel[-1] * ((own * step).sum() + mlp.traces(met, read))
    overlap = mlp.overlap(others, common, *beside)
    rest = weights @ overlap.diagonal() - common.square().sum()
    undirected = sketch.undirected(common) * (rest.clamp_min(0.0) / len(common)).sqrt()
    shared = sketch.of(torch.cat([common, undirected], dim=1))
    return normalised(with_last(moments.kernel * overlap, row), row[-1], step, shared, moments.log_size)


def through_block(moments: Moments, mlp: Mlp, heads: Heads, sketches: tuple[Sketch, Sketch]) -> Moments:
    """Down through a block whose MLP reads what attention leaves."""
    return through_attention(through_mlp(moments, mlp, sketches[0]), heads, sketches[1])


def through_attention(moments: Moments, heads: Heads, sketch: Sketch) -> Moments:
    """S_jj' <- sum_ii' T_ij^T S_ii' T_i'j': the pairs with n in them by `own`, the others by `shared`."""
    weighted, kernel = heads.weighted, moments.kernel
    own = heads.pulled(moments.own)
    step = heads.last_pulled(own)
    # Rows of n coefficients, one a basis operator I, B_1, ..., B_H: sum_i k_i T_ij for k = K_n: and, of it, n's own part.
    along = torch.cat([kernel[-1:], kernel[-1] @ weighted])
    row = (own * step).sum((1, 2)) @ along
    row[-1] = step.square().sum()
    alone = torch.cat([only_last(kernel)[None], weighted[:, -1]])
    inner = gram(own)
    crossed = alone.T @ inner @ (along - alone)
    moved = alone.T @ inner @ alone + crossed + crossed.T
    if moments.shared is not None:
        between = kernel.clone()
        between[-1] = between[:, -1] = 0.0
        passed, shared = between @ weighted, heads.pulled(moments.shared)
        moved = moved + attended(between, passed, weighted, gram(shared))
    moved = heads.corrected(moved, moments)
    weights = inverse(others_of(moved.diagonal()))
    wide = sandwich((alone * weights) @ alone.T, own)
    if moments.shared is not None:
        wide = torch.cat([wide, sandwich(coefficients(between, passed, weighted, weights), shared)], dim=1)
    return normalised(with_last(moved, row), row[-1], step, sketch.of(wide), moments.log_size)


def gram(pulled: Float[Tensor, "basis d_model probe"]) -> Float[Tensor, "basis basis"]:
    """tr(B_a^T Sigma B_b)."""
    rows = pulled.flatten(1)
    return rows @ rows.T


def quadratic(
    coefficients: Float[Tensor, "head head"], weighted: Float[Tensor, "head query key"]
) -> Float[Tensor, "query key"]:
    """sum_hk g_hk At_h,ij At_k,ij of every pair."""
    mixed = (coefficients @ weighted.flatten(1)).unflatten(1, weighted.shape[1:])
    return (mixed * weighted).sum(0)


def sandwich(
    coefficients: Float[Tensor, "basis basis"], pulled: Float[Tensor, "basis d_model probe"]
) -> Float[Tensor, "d_model some"]:
    """A factor of sum_ab c_ab B_a^T Sigma B_b; c positive semidefinite."""
    return torch.einsum("am,adp->dmp", _root(coefficients), pulled).flatten(1)


def _root(square: Float[Tensor, "some some"]) -> Float[Tensor, "some some"]:
    """R = R^T with R R = M, M positive semidefinite; no number anywhere where M has an entry that is none.

    Of all factors of M the symmetric one moves little with M. Eigenvectors alone turn with rounding, and what a sketch mixes at
    random turns with them.
    """
    if not bool(torch.isfinite(square).all()):
        return torch.full_like(square, torch.nan)
    values, vectors = torch.linalg.eigh(square)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.mT


def attended(
    kernel: Kernel, passed: Float[Tensor, "head pos key"], weighted: Float[Tensor, "head query key"], gram: Tensor
) -> Kernel:
    """sum_ab g_ab A_a^T K A_b with A_0 = I; `passed` is K A_h."""
    once, *mixed = (gram[:, 1:] @ passed.flatten(1)).unflatten(1, kernel.shape)
    moved = torch.addmm(once, weighted.flatten(0, 1).T, torch.cat(mixed))
    return moved.add_(once.T).add_(kernel, alpha=float(gram[0, 0]))


def coefficients(
    kernel: Kernel,
    passed: Float[Tensor, "head pos key"],
    weighted: Float[Tensor, "head query key"],
    weights: Float[Tensor, " pos"],
) -> Float[Tensor, "basis basis"]:
    """sum_j w_j (A_a^T K A_b)_jj with A_0 = I."""
    heads = len(weighted)
    once = torch.cat([(weights @ kernel.diagonal())[None], passed.diagonal(dim1=1, dim2=2) @ weights])
    twice = (weighted * weights).reshape(heads, -1) @ passed.reshape(heads, -1).T
    return torch.cat([once[None], torch.cat([once[1:, None], twice], dim=1)])


def normalised(kernel: Kernel, size: Float[Tensor, ""], own: Factor, shared: Factor | None, log_size: float) -> Moments:
    """Both directions of trace 1, K in units of `size` = tr S_nn."""
    kernel = kernel / size
    # Only exactly nothing is dropped: what is not a number stays in, and is refused where K is read.
    shared = None if shared is None or bool((shared == 0).all()) else shared / torch.linalg.matrix_norm(shared)
    return Moments(kernel, own / torch.linalg.matrix_norm(own), shared, log_size + float(size.double().log()))


def narrow(own: Float[Tensor, "d_model some"], sketch: Sketch) -> Factor:
    """A factor of no more columns than the sketch has, of trace 1 again."""
    own = sketch.of(own)
    return own / torch.linalg.matrix_norm(own)


def carrying(kernel: Kernel) -> Float[Tensor, " pos"]:
    """The same share for every token but the last that carries anything; they sum to 1."""
    found = (others_of(kernel.diagonal()) != 0).to(kernel)
    return found / found.sum().clamp_min(1.0)


def only_last(kernel: Kernel) -> Float[Tensor, " pos"]:
    """e_n."""
    row = torch.zeros_like(kernel[-1])
    row[-1] = 1.0
    return row


def others_of(values: Float[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """The values at all tokens but the last, 0 there."""
    return torch.cat([values[:-1], torch.zeros_like(values[-1:])])


def inverse(values: Float[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """1 / x where x > 0; 0 for a token that nothing reaches; what is no number stays so."""
    return torch.where(values <= 0, torch.zeros_like(values), 1.0 / values)


def with_last(kernel: Kernel, row: Float[Tensor, " pos"]) -> Kernel:
    """The kernel with that row and column at n."""
    kernel = kernel.clone()
    kernel[-1] = row
    kernel[:, -1] = row
    return kernel
