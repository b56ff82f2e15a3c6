"""What the paper defines, on the oracle's models: Jacobians, path sums (`local`), collapse
distances.

Float64, plain autograd, dense matrices, paths one by one. No code of ours.
"""

from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise

import torch
from torch import Tensor

from tests.oracle.decoder import Block, Decoder


def jacobians(model: Decoder, ids: list[int], held: bool) -> Tensor:
    """d y_n / d v_i^(0), [pos, d_model, d_model]; `held`: patterns and the scales of all norms are
    constants.
    """
    return _jacobian(lambda v: model.last(v, held)[1], model.embedded(ids)).transpose(0, 1)


def local_sums(model: Decoder, ids: list[int]) -> Tensor:
    """`local` of every token i: ||g3||_inf / r3_n times the sum over paths i <= k_1 <= ... <= n of
    their edges

        (1 + ||D_k||) ( sum_h omega_h alpha_kj^h / (rp1_k r1_j) + delta_kj )

    with omega_h = || diag(gp1) W_O^h W_V^h diag(g1) ||_2 and D_k the MLP's Jacobian at k, its
    scales held.
    """
    stream = model.embedded(ids)
    edges: list[Tensor] = []
    one = torch.eye(len(ids), dtype=torch.float64)
    for block in model.blocks:
        mid = stream + block.attention(stream, True)
        moves = torch.linalg.matrix_norm(
            at_each(lambda x, block=block: block.mlp(x, True), mid), ord=2
        )
        after = mid + block.mlp(mid, True)
        pattern, r1, rp1 = (block.seen[name] for name in ("pattern", "r1", "rp1"))
        moved = torch.einsum("h,hij->ij", omegas(block), pattern) / rp1[:, None] / r1
        edges.append((1 + moves)[:, None] * (moved + one))
        stream = after
    return float(model.norm.gain.abs().max() / model.norm.scale(stream[-1])) * _over_paths(edges)


def _over_paths(edges: list[Tensor]) -> Tensor:
    """sum over i <= k_1 <= ... <= k_{L-1} <= n of the product of edges, every path by itself."""
    n = len(edges[0])
    found = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        for inner in combinations_with_replacement(range(i, n), len(edges) - 1):
            weight = torch.ones((), dtype=torch.float64)
            for edge, (key, query) in zip(edges, pairwise((i, *inner, n - 1)), strict=True):
                weight = weight * edge[query, key]
            found[i] += weight
    return found


def omegas(block: Block) -> Tensor:
    """||diag(gp1) W_O^h W_V^h diag(g1)|| of every head."""
    gain = torch.ones_like(block.norm1.gain) if block.post1 is None else block.post1.gain
    return torch.linalg.matrix_norm(gain[:, None] * (block.o @ block.v * block.norm1.gain), ord=2)


def at_each(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The Jacobian at every position of a map that mixes none, [pos, d_model, d_model]."""
    return torch.stack([_jacobian(lambda x: function(x[None])[0], point) for point in points])


def _jacobian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(function, point)
    assert isinstance(found, Tensor)
    return found


def collapse_distances(model: Decoder, ids: list[int]) -> dict[str, tuple[float, float]]:
    """||x(v) - x(v*)||_2, v* being v with its last token again, and ||x(v)||_2, for x = v_n^(L),
    y_n and the logits.

    Source: arXiv 2406.04267, Theorem 4.2 / B.3.
    """
    (stream, y), (stream_star, y_star) = (
        model.last(model.embedded(found)) for found in (ids, [*ids, ids[-1]])
    )
    pairs = {
        "residual": (stream, stream_star),
        "y": (y, y_star),
        "logits": (model.logits(y), model.logits(y_star)),
    }
    return {site: (float((a - b).norm()), float(a.norm())) for site, (a, b) in pairs.items()}
