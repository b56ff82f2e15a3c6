"""What the paper defines, on the oracle's models: Jacobians, path sums (`uniform`, `local`, `local-full`), collapse distances.

Float64, plain autograd, dense matrices, paths one by one. No code of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise

import torch
from torch import Tensor

from tests.oracle.decoder import Block, Decoder, Norm


def jacobians(model: Decoder, ids: list[int], held: bool) -> Tensor:
    """d y_n / d v_i^(0), [pos, d_model, d_model]; `held`: patterns and the scales of all norms are constants."""
    return _jacobian(lambda v: model.last(v, held)[1], model.embedded(ids)).transpose(0, 1)


def path_sums(model: Decoder, ids: list[int]) -> dict[str, Tensor]:
    """Certified sums for every token i: ||g3||_inf / r3_n times the sum over paths i <= k_1 <= ... <= n of their edges.

        local       (1 + ||D_k||) ( sum_h omega_h alpha_kj^h / (rp1_k r1_j) + delta_kj )
        uniform     the same with max_k ||D_k||, min_k rp1_k and min_j r1_j at every edge
        local-full  (1 + ||gp2||_inf ||J_psi diag(g2)|| / (rp2_k r2_k)) ( delta_kj + value_kj + key_kj + delta_kj query_k )

    omega_h = || diag(gp1) W_O^h W_V^h diag(g1) ||_2, D_k the MLP's Jacobian at k with the scales held. With nothing held:
    value_kj is the term with omega of `local`, but with ||gp1||_inf outside; key_kj = sum_h || d attention_k / d v_j through
    the keys of head h ||; query_k = || d attention_k / d v_k through the queries ||.
    """
    stream = model.embedded(ids)
    edges: dict[str, list[Tensor]] = {"uniform": [], "local": [], "local-full": []}
    one = torch.eye(len(ids), dtype=torch.float64)
    for block in model.blocks:
        mid = stream + block.attention(stream, True)
        moves = torch.linalg.matrix_norm(_at_each(lambda x, block=block: block.mlp(x, True), mid), ord=2)
        bare = _at_each(block.psi, block.norm2(mid, True)) * block.norm2.gain
        reach = _largest(block.post2) * torch.linalg.matrix_norm(bare, ord=2)
        through = _through_scores(block, stream)
        after = mid + block.mlp(mid, True)
        pattern, r1, r2, rp1, rp2 = (block.seen[name] for name in ("pattern", "r1", "r2", "rp1", "rp2"))
        omega, live_omega = _omegas(block)
        held, live = (torch.einsum("h,hij->ij", size, pattern) / rp1[:, None] / r1 for size in (omega, live_omega))
        worst = held * rp1[:, None] * r1 / rp1.min() / r1.min()
        edges["local"].append((1 + moves)[:, None] * (held + one))
        edges["uniform"].append((1 + moves.max()) * (worst + one))
        edges["local-full"].append((1 + reach / rp2 / r2)[:, None] * (one + live + through))
        stream = after
    front = float(model.norm.gain.abs().max() / model.norm.scale(stream[-1]))
    return {name: front * _over_paths(found) for name, found in edges.items()}


def _through_scores(block: Block, stream: Tensor) -> Tensor:
    """key_kj + delta_kj query_k."""
    each = stream.expand(len(block.k), *stream.shape)
    by_key = _jacobian(lambda keys: block.attention(stream, False, keys, stream), each)  # [query, d, head, key, d]
    by_query = _jacobian(lambda queries: block.attention(queries, False, stream, stream), stream)
    query = torch.stack([by_query[k, :, k] for k in range(len(stream))])
    norms = torch.linalg.matrix_norm(by_key.permute(2, 0, 3, 1, 4), ord=2)
    return norms.sum(0) + torch.diag(torch.linalg.matrix_norm(query, ord=2))


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


def _omegas(block: Block) -> tuple[Tensor, Tensor]:
    """omega_h with gp1 inside, and with ||gp1||_inf outside."""
    gain = torch.ones_like(block.norm1.gain) if block.post1 is None else block.post1.gain
    heads = block.o @ block.v * block.norm1.gain
    norms = (torch.linalg.matrix_norm(each, ord=2) for each in (gain[:, None] * heads, heads))
    return next(norms), _largest(block.post1) * next(norms)


def _largest(norm: Norm | None) -> float:
    """||g||_inf; 1 of no norm."""
    return 1.0 if norm is None else float(norm.gain.abs().max())


def _at_each(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The Jacobian at every position of a map that mixes none, [pos, d_model, d_model]."""
    return torch.stack([_jacobian(lambda x: function(x[None])[0], point) for point in points])


def _jacobian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(function, point)
    assert isinstance(found, Tensor)
    return found


def collapse_distances(model: Decoder, ids: list[int]) -> dict[str, tuple[float, float]]:
    """||x(v) - x(v*)||_2, v* being v with its last token again, and ||x(v)||_2, for x = v_n^(L), y_n and the logits.

    Source: arXiv 2406.04267, Theorem 4.2 / B.3.
    """
    (stream, y), (stream_star, y_star) = (model.last(model.embedded(found)) for found in (ids, [*ids, ids[-1]]))
    pairs = {
        "residual": (stream, stream_star),
        "y": (y, y_star),
        "logits": (model.logits(y), model.logits(y_star)),
    }
    return {site: (float((a - b).norm()), float(a.norm())) for site, (a, b) in pairs.items()}
