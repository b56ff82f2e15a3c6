"""Edges against dense matrices: sums over heads by singular values, live attention by autograd of one made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from ostools.theory.path_sum import edges

N, D, HEADS, D_HEAD = 6, 12, 4, 4


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    """Equal up to 1e-9 of the largest entry; an all-zero expectation would prove nothing."""
    assert found.shape == expected.shape
    assert float(expected.abs().max()) > 0
    assert float((found - expected).abs().max()) <= 1e-9 * float(expected.abs().max())


def causal(seed: int) -> Tensor:
    return torch.softmax(randn(HEADS, N, N, seed=seed).masked_fill(~torch.ones(N, N).tril().bool(), -torch.inf), -1)


@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 8, 5), (1, 1, 1), (2, 3, 4, 4)])
def test_spectral_norms_are_the_largest_singular_values(shape: tuple[int, ...]) -> None:
    for size in (1.0, 1e-250, 1e150):
        matrices = size * randn(*shape)
        close(edges.spectral_norms(matrices) / size, torch.linalg.matrix_norm(matrices, ord=2) / size)


def test_spectral_norms_of_zero_and_of_equal_singular_values() -> None:
    assert edges.spectral_norms(torch.zeros(2, 3, 3, dtype=torch.float64)).tolist() == [0.0, 0.0]
    # Two directions of equal size: where power iteration from an unlucky start stays below.
    close(edges.spectral_norms(torch.diag(torch.tensor([2.0, 2.0, 1.0]).double())[None]), torch.tensor([2.0]).double())


@pytest.mark.parametrize("d_model", [5, 12, 40])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_sums_over_heads_from_small_cores(d_model: int, group: int) -> None:
    """Wider and narrower than all heads together; heads that share a value; a key out of reach."""
    left = randn(HEADS, d_model, D_HEAD, seed=1)
    right = randn(HEADS // group, D_HEAD, d_model, seed=2).repeat_interleave(group, 0)
    pattern = causal(3)
    pattern[:, 4, 1] = 0.0
    dense = torch.einsum("hqk,hde,hef->qkdf", pattern, left, right)
    close(edges.head_sum_norms(pattern, left, right), torch.linalg.matrix_norm(dense, ord=2))
    scale = randn(N, seed=4).exp()
    ours = edges.self_updates(pattern, left, right, scale, slice(1, 4))
    close(ours, (dense[range(N), range(N)] / scale[:, None, None])[1:4])
    cores = edges.head_cores(left, right)
    assert cores.shape[1] == min(d_model, HEADS * D_HEAD)
    assert cores.shape[2] == min(d_model, HEADS * D_HEAD // group)


def test_chunks_cover_everything_once_and_take_one_at_least() -> None:
    assert [part.indices(7)[:2] for part in edges.chunks(7, 10, budget=30)] == [(0, 3), (3, 6), (6, 7)]
    assert len(list(edges.chunks(3, 10, budget=1))) == 3
    assert list(edges.chunks(0, 10)) == []


class Made:
    """One attention layer made by hand: RoPE, grouped heads, soft-cap, norms of queries and keys, a norm after it."""

    def __init__(self, group: int, cap: float | None, qk_norm: bool, post_norm: bool, sharpness: float = 1.0) -> None:
        self.group, self.cap, self.qk_norm, self.post_norm = group, cap, qk_norm, post_norm
        own = HEADS // group
        self.w_q = sharpness * randn(HEADS, D_HEAD, D, seed=10) / 2
        self.w_k, self.w_v = randn(own, D_HEAD, D, seed=11) / 2, randn(own, D_HEAD, D, seed=12) / 2
        self.w_o = randn(HEADS, D, D_HEAD, seed=13) / 2
        self.gains = [randn(D, seed=20).exp(), randn(D, seed=21).exp(), randn(D_HEAD, seed=22).exp()]

    @staticmethod
    def scale(x: Tensor) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def direction(self, x: Tensor) -> Tensor:
        return x / self.scale(x) / x.shape[-1] ** 0.5

    def head(self, weight: Tensor, i: int, normalised: Tensor) -> Tensor:
        """Rotated query or key of one head at position i, from x / r(x)."""
        raw = weight @ (self.gains[0] * normalised)
        if self.qk_norm:
            raw = self.gains[2] * raw / self.scale(raw)
        angle = i * torch.tensor([1.0, 0.3], dtype=torch.float64)
        first, second = raw.chunk(2)
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])

    def head_of_raw(self, weight: Tensor, i: int, raw: Tensor) -> Tensor:
        return self.head(weight, i, raw / self.scale(raw))

    def heads(self, weight: Tensor, x: Tensor) -> Tensor:
        normalised = x / self.scale(x)
        stacked = torch.stack([torch.stack([self.head(w, i, normalised[i]) for i in range(N)]) for w in weight])
        return stacked.repeat_interleave(HEADS // len(weight), 0)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values, pattern, and the slope of the scores."""
        query, key = self.heads(self.w_q, x), self.heads(self.w_k, x)
        value = (self.w_v @ (self.gains[0] * x / self.scale(x)).T).mT.repeat_interleave(self.group, 0)
        scores = 0.7 * query @ key.mT
        slope = torch.full_like(scores, 0.7)
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
            slope = 0.7 * (1 - (scores / self.cap).square())
        visible = torch.ones(N, N).tril().bool()
        pattern = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        return query, key, value, pattern, slope * visible

    def raw(self, x: Tensor) -> Tensor:
        _, _, value, pattern, _ = self.parts(x)
        return torch.einsum("hqk,hke,hde->qd", pattern, value, self.w_o)

    def __call__(self, x: Tensor) -> Tensor:
        raw = self.raw(x)
        return self.gains[1] * raw / self.scale(raw) if self.post_norm else raw

    def live(self, x: Tensor) -> edges.LiveAttention:
        query, key, value, pattern, slope = self.parts(x)
        raw = self.raw(x)
        post = (self.gains[1], self.direction(raw), self.scale(raw)[:, 0])
        if not self.post_norm:
            post = (torch.ones(D).double(), torch.zeros(N, D).double(), torch.ones(N).double())
        return edges.LiveAttention(
            pattern=pattern,
            slope=slope,
            left=torch.stack([edges.after_norm(left[None], *post) for left in self.w_o], dim=1),
            right=(self.w_v * self.gains[0]).repeat_interleave(self.group, 0),
            query=query,
            key=key,
            value=value,
            query_map=DenseMap(self, self.w_q, x),
            key_map=DenseMap(self, self.w_k, x),
            norm1_direction=self.direction(x),
            norm1_scale=self.scale(x)[:, 0],
            groups=HEADS // self.group,
        )


@dataclass(frozen=True)
class DenseMap:
    """d head / d normalised residual by autograd."""

    made: Made
    weight: Tensor
    x: Tensor

    def matrices(self, positions: slice) -> Tensor:
        normalised = self.x / self.made.scale(self.x)
        found = [
            [dense(partial(self.made.head, w, i), normalised[i]) for i in range(N)[positions]] for w in self.weight
        ]
        stacked = torch.stack([torch.stack(row) for row in found])
        return stacked.repeat_interleave(HEADS // len(self.weight), 0)


def dense(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return torch.as_tensor(jacobian(function, at))


every_case = pytest.mark.parametrize(
    "case",
    [(1, None, False, False), (2, 1.5, False, True), (4, None, True, True), (2, 0.8, True, False)],
    ids=["plain", "cap and post-norm", "qk-norm and post-norm", "cap and qk-norm"],
)


def jacobians(made: Made, x: Tensor) -> Tensor:
    """d attention_i / d x_j, [query, key, d, d]."""
    return dense(made, x).permute(0, 2, 1, 3)


def assembled(live: edges.LiveAttention) -> Tensor:
    found = torch.zeros(N, N, D, D, dtype=torch.float64)
    for j in range(N):
        moved, basis = live.column(j)
        found[j:, j] = moved @ basis.mT
    found[range(N), range(N)] += live.query_part(slice(0, N))
    return found


@every_case
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_live_attention_is_the_jacobian_of_attention(case: Any, sharpness: float) -> None:
    """Also where attention is nearly one-hot, and on equal tokens."""
    made = Made(*case, sharpness=sharpness)
    x = randn(N, D, seed=30)
    x[4:] = x[3]
    close(assembled(made.live(x)), jacobians(made, x))


@every_case
def test_live_edge_norms_are_those_of_the_whole_block(case: Any) -> None:
    made = Made(*case)
    x, rows = randn(N, D, seed=32), randn(N, D, D, seed=33)
    live = made.live(x)
    whole = jacobians(made, x)
    whole[range(N), range(N)] += torch.eye(D, dtype=torch.float64)
    expected = torch.linalg.matrix_norm(rows[:, None] @ whole, ord=2)
    close(edges.live_edge_norms(replace(live, left=rows[:, None] @ live.left), rows), expected)


@every_case
def test_live_update_norms_are_the_three_parts_one_by_one(case: Any) -> None:
    """Value, key and query parts by autograd through each of them alone."""
    made = Made(*case)
    x = randn(N, D, seed=34)
    live = made.live(x)
    omega = torch.linalg.matrix_norm(made.w_o @ live.right, ord=2) * (made.gains[1].max() if made.post_norm else 1.0)
    raw_scale = made.scale(made.raw(x))[:, 0] if made.post_norm else torch.ones(N).double()
    expected = torch.einsum("h,hqk->qk", omega, live.pattern) / raw_scale[:, None] / live.norm1_scale
    query, _, value, pattern, slope = made.parts(x)
    mean = pattern @ value
    for i in range(N):
        for j in range(i + 1):
            for h in range(HEADS):
                moved = live.left[i, h] @ (value[h, j] - mean[h, i])
                own = made.w_k[h // made.group]
                read = query[h, i] @ dense(partial(made.head_of_raw, own, j), x[j])
                expected[i, j] += pattern[h, i, j] * slope[h, i, j] * moved.norm() * read.norm()
        expected[i, i] += torch.linalg.matrix_norm(live.query_part(slice(i, i + 1))[0], ord=2)
    found = edges.live_update_norms(live, omega, raw_scale)
    close(found, expected)
    assert (found >= torch.linalg.matrix_norm(jacobians(made, x), ord=2) * (1 - 1e-12)).all()
