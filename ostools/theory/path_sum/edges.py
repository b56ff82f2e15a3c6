"""How much one block moves from position j to position i: norms of the edges of the path sum, none of them estimated.

Patterns and scales held:  T_ij = delta_ij I + sum_h alpha_ij^h L_h R_h / (rp1_i r1_j),  B_h = L_h R_h of rank d_head. Every sum
over heads is m x m' with m, m' <= d_model from two QR decompositions a block; only i = j needs the identity, d x d.

Nothing held (`LiveAttention`), with w_ij = v_j - vbar_i, c_ij = alpha_ij d s_ij / d (q_i . k_j), N(x_j) = I - u_j u_j^T:

    T_ij = delta_ij I + sum_h P_i W_O^h [ alpha_ij^h W_V^h + c_ij^h w_ij a_ij^T + delta_ij S_i^h Q_i^h ] N(x_j) / r1_j
    a_ij = K_j^hT q_i    S_i = sum_m c_im w_im k_m^T    Q_i, K_j: d (rotated, normalised query or key) / d (normalised residual)

the gain of the norm before it in W_V, Q and K. For one j all a_ij lie in the rows of K_j, so that the matrices of a column
need 2 n_kv d_head columns, or d_model where that is less. Source: docs/theory.md 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum import paths
from ostools.theory.path_sum.operators import SQUARES, chunks, spectral_norms

Left = Float[Tensor, "head d_model d_head"]
Right = Float[Tensor, "head d_head d_model"]
Edges = Float[Tensor, "query key"]
Pattern = Float[Tensor, "head query key"]
PerHead = Float[Tensor, "head pos d_head"]
Vectors = Float[Tensor, "pos d_model"]
Matrices = Float[Tensor, "pos d_model d_model"]
Norms = Callable[[Float[Tensor, "some rows cols"]], Float[Tensor, " some"]]


def with_identity(matrices: Float[Tensor, "*batch d_model d_model"]) -> Float[Tensor, "*batch d_model d_model"]:
    """I + M."""
    return matrices + torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


def right_factors(right: Right) -> Float[Tensor, "head d_head rank"]:
    """R_h in an orthonormal basis of all heads' rows: heads that share a key/value head count once."""
    distinct, index = torch.unique_consecutive(right, dim=0, return_inverse=True)
    factor = torch.linalg.qr(distinct.flatten(0, 1).mT).R
    return factor.mT.unflatten(0, distinct.shape[:2])[index]


def head_cores(left: Left, right: Right) -> Float[Tensor, "head rows cols"]:
    """Small matrices whose combinations have the norms of the same combinations of L_h R_h."""
    head, _, d_head = left.shape
    factor = torch.linalg.qr(left.transpose(0, 1).flatten(1)).R.unflatten(1, (head, d_head))
    return factor.transpose(0, 1) @ right_factors(right)


def combination_norms(
    weights: Float[Tensor, "head key"], cores: Float[Tensor, "head rows cols"], norms_of: Norms = spectral_norms
) -> Float[Tensor, " key"]:
    """|| sum_h weights_hk core_h ||_2 for every k, by `norms_of`; keys without weight cost nothing."""
    largest = weights.abs().amax(0)
    norms, seen = torch.zeros_like(largest), largest.nonzero()[:, 0]
    for part in chunks(len(seen), 2 * cores[0].numel() * cores.element_size(), SQUARES):
        size = largest[seen[part]]
        # Weights of 1 at most: a pattern holds numbers whose squares are 0 in floating point.
        mixed = (weights[:, seen[part]] / size).mT @ cores.flatten(1)
        norms[seen[part]] = size * norms_of(mixed.unflatten(1, cores.shape[1:])).to(norms)
    return norms


def head_sum_norms(pattern: Pattern, left: Left, right: Right, norms_of: Norms = spectral_norms) -> Edges:
    """|| sum_h alpha_ij^h L_h R_h ||_2 for every pair, by `norms_of`; O(n^2 m^3), m = min(d_model, n_kv d_head)."""
    cores = head_cores(left, right)
    norms = torch.zeros(pattern.shape[1:], dtype=cores.dtype, device=cores.device)
    queries, keys = pattern.ne(0).any(0).nonzero(as_tuple=True)
    # Always as many pairs: buffers of ever other sizes, a query at a time, would leave the memory in pieces.
    for part in chunks(len(queries), 2 * cores[0].numel() * cores.element_size(), SQUARES):
        pairs = queries[part], keys[part]
        norms[pairs] = combination_norms(pattern[:, *pairs], cores, norms_of)
    return norms


def self_updates(
    pattern: Pattern, left: Left, right: Right, scale: Float[Tensor, " pos"], part: slice
) -> Float[Tensor, "part d_model d_model"]:
    """sum_h alpha_ii^h L_h R_h / scale_i for the positions of `part`."""
    weights = pattern.diagonal(dim1=1, dim2=2)[:, part] / scale[part]
    return torch.einsum("hi,hde,hef->idf", weights, left, right)


@runtime_checkable
class HeadMap(Protocol):
    """d (rotated query or key of every head) / d (normalised residual), without the norm's scale and projection."""

    def matrices(self, positions: slice) -> Float[Tensor, "head part d_head d_model"]: ...


def projected(
    rows: Float[Tensor, "*batch d_model"], direction: Float[Tensor, "*#batch d_model"]
) -> Float[Tensor, "*batch d_model"]:
    """g^T N(x), N = I - u u^T."""
    return rows - (rows * direction).sum(-1, keepdim=True) * direction


def after_norm(
    matrices: Float[Tensor, "#pos d_model cols"],
    gain: Float[Tensor, " d_model"],
    direction: Vectors,
    scale: Float[Tensor, " pos"],
) -> Float[Tensor, "pos d_model cols"]:
    """P_i M_i, P_i = diag(gain) (I - u_i u_i^T) / scale_i: the norm after a sublayer, its input live."""
    live = matrices - direction[:, :, None] * (direction[:, None, :] @ matrices)
    return live * gain[:, None] / scale[:, None, None]


@dataclass(frozen=True)
class LiveAttention:
    """One attention layer with nothing held. `left`: P_i W_O^h or any multiple from the left; keys and values expanded to
    the query heads, of which `groups` have their own."""

    pattern: Pattern
    slope: Pattern
    left: Float[Tensor, "pos head d_model d_head"]
    right: Right
    query: PerHead
    key: PerHead
    value: PerHead
    query_map: HeadMap
    key_map: HeadMap
    norm1_direction: Vectors
    norm1_scale: Float[Tensor, " pos"]
    groups: int

    @property
    def mean_value(self) -> PerHead:
        """vbar_i = sum_j alpha_ij v_j."""
        return self.pattern @ self.value

    def query_part(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """sum_h P_i W_O^h S_i^h Q_i^h N(x_i) / r1_i: what the query of i itself changes, on the diagonal only."""
        core = score_moments(
            self.pattern[:, part] * self.slope[:, part], self.value, self.mean_value[:, part], self.key
        )
        inner = core @ self.query_map.matrices(part)
        moved = self.left[part].transpose(1, 2).flatten(2) @ inner.transpose(0, 1).flatten(1, 2)
        return projected(moved, self.norm1_direction[part, None]) / self.norm1_scale[part, None, None]

    def column(self, key: int) -> tuple[Float[Tensor, "later d_model rank"], Float[Tensor, "d_model rank"]]:
        """The value and key parts of T_ij for one j and every i >= j, as X_i E_j^T with E_j orthonormal."""
        j = slice(key, key + 1)
        shared = self.pattern.shape[0] // self.groups
        lookup = self.key_map.matrices(j)[:, 0]
        rows = torch.cat([self.right[::shared].flatten(0, 1), lookup[::shared].flatten(0, 1)])
        live = projected(rows, self.norm1_direction[j]) / self.norm1_scale[key]
        basis, factor = torch.linalg.qr(live.mT)
        value_rows, key_rows = factor.mT.chunk(2)
        left, weights = self.left[key:], self.pattern[:, key:, key]
        by_group = (weights.mT[:, :, None, None] * left).unflatten(1, (self.groups, shared)).sum(2)
        moved = by_group.transpose(1, 2).flatten(2) @ value_rows
        turned = self.value[:, j] - self.mean_value[:, key:]
        scored = torch.einsum("hi,ihde,hie->idh", weights * self.slope[:, key:, key], left, turned)
        heads = key_rows.unflatten(0, (self.groups, -1)).repeat_interleave(shared, 0)
        read = torch.einsum("hie,hem->ihm", self.query[:, key:], heads)
        return moved + scored @ read, basis


def score_moments(
    weights: Float[Tensor, "head part key"],
    value: Float[Tensor, "head key d_head"],
    mean_value: Float[Tensor, "head part d_head"],
    keys: Float[Tensor, "head key d_head"],
) -> Float[Tensor, "head part d_head d_head"]:
    """S_i = sum_m c_im (v_m - vbar_i) k_m^T."""
    moments = torch.einsum("him,hme,hmf->hief", weights, value, keys)
    return moments - mean_value[..., None] * (weights @ keys)[..., None, :]


def live_edge_norms(attention: LiveAttention, rows: Matrices) -> Edges:
    """|| (I + D_i) T_ij ||_2 with nothing held; `rows` I + D_i, and `attention.left` (I + D_i) P_i W_O^h already.

    O(n^2 m^3), m = min(d_model, 2 n_kv d_head), and n matrices d x d for the diagonal.
    """
    norms = torch.zeros_like(attention.pattern[0])
    for j in range(len(rows)):
        moved, basis = attention.column(j)
        norms[j:, j] = spectral_norms(moved)
        same = rows[j] + moved[0] @ basis.mT + attention.query_part(slice(j, j + 1))[0]
        norms[j, j] = spectral_norms(same)
    return norms


def live_update_norms(
    attention: LiveAttention, omega: Float[Tensor, " head"], post_norm1_scale: Float[Tensor, " pos"]
) -> Edges:
    """Value, key and query parts of T_ij - delta_ij I one by one, with nothing held; `attention.left` P_i W_O^h.

    sum_h omega_h alpha_ij^h / (rp1_i r1_j) + sum_h c_ij^h ||P_i W_O^h w_ij|| ||N(x_j) a_ij|| / r1_j, and on the diagonal the
    norm of the query part; omega_h = ||gp1||_inf ||W_OV^h diag(g1)||, because N stands between gp1 and W_O. O(H d_model n^2).
    """
    norms = paths.weighted_pattern(attention.pattern, omega) / post_norm1_scale[:, None] / attention.norm1_scale
    for j in range(len(norms)):
        here = slice(j, j + 1)
        strength = (attention.pattern[:, j:, j] * attention.slope[:, j:, j]).abs()
        turned = attention.value[:, here] - attention.mean_value[:, j:]
        moved = torch.einsum("ihde,hie->hid", attention.left[j:], turned)
        read = projected(
            attention.query[:, j:] @ attention.key_map.matrices(here)[:, 0], attention.norm1_direction[here]
        )
        heads = strength * torch.linalg.vector_norm(moved, dim=-1) * torch.linalg.vector_norm(read, dim=-1)
        norms[j:, j] += heads.sum(0) / attention.norm1_scale[j]
        norms[j, j] += spectral_norms(attention.query_part(here))[0]
    return norms
