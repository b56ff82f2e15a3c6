"""The path sums that predict: second moments carried from the final norm down to the embeddings.

Predictions are computed in the model's own dtype: on trained models float32 agrees with float64 to 1e-6, where the prediction
itself is off by percents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.ground.memory import available_memory
from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.heads import HeadMap
from ostools.measure.formulas.weights import final_norm, final_norm_squared
from ostools.measure.paths.block_view import BlockView
from ostools.models.shape import Shape
from ostools.theory.path_sum import operators, parallel_moments, second_moment
from ostools.theory.path_sum.live_moments import Answering, LiveHeads, LiveMlp
from ostools.theory.path_sum.mlp_moments import Mlp
from ostools.theory.path_sum.second_moment import Heads, Sketch

FACTOR, PROBES, PAIRS, SEED = 32, 8, 8, 0
"""Columns of a direction's factor, directions on the other side, columns of which every pair of tokens is asked what it has
beside the held block (at the real derivative), and where their random numbers start."""
TRACES = {
    "exact": "exact",
    "probes": f"{FACTOR} x {PROBES} random directions a block ({PAIRS} x {PROBES} of what a pair of tokens has beside the held "
    f"block), drawn from seed {SEED} and its number",
}
"""How the traces of second moments are taken, and what the provenance says of it."""
PAYS, WORTHWHILE = 2, 10**9
"""Few directions are the default where they take so many times fewer operations, of so many a block."""


def chosen_traces(shape: Shape, pos: int) -> str:
    """The default of `traces`, by counted operations."""
    exact, probes = (kernel_operations(shape, pos, traces) for traces in ("exact", "probes"))
    return "probes" if exact > max(PAYS * probes, WORTHWHILE) else "exact"


def kernel_operations(shape: Shape, pos: int, traces: str, *, full: bool = False) -> float:
    """Of one block's step to one last position, beside attention's O(H n^3)."""
    d, ff, heads, wide = shape.d_model, shape.d_mlp, shape.n_heads, shape.n_heads * shape.d_head
    columns, others = (d, d) if traces == "exact" else (min(d, FACTOR), min(d, PROBES))
    through_weights = (10 if shape.gated else 6) * columns + (2 if shape.gated else 1) * others
    mlp = 2 * d * ff * through_weights + (4 if shape.gated else 2) * pos * ff * columns * others
    # Where both read the same, products of the MLP with every head.
    crossed = (8 if shape.gated else 4) * d * ff * heads * columns if shape.parallel else 0
    attention = crossed + 8 * d * wide * columns + 4 * (heads + 1) * d * columns * (heads + 1 + min(d, columns))
    # Of the real derivative: answers of pairs, small products each, and rotations of every head at every token.
    asked = d if traces == "exact" else min(d, PAIRS)
    pairs = 8 * pos**2 * (wide * (2 * asked + others) + 2 * heads * asked * others)
    live = pairs + 16 * heads * pos * shape.d_head**2 * (shape.d_head + others) if full else 0
    if full and shape.parallel:  # both directions meet the MLP once more, and every head of it
        live += 2 * (mlp + crossed)
    return float(mlp + attention + live + 2 * pos**2 * columns * others)


class Parts:
    """A block as the recursion reads it, cut off after token m (what comes later cannot reach y_m)."""

    def __init__(self, view: BlockView, dtype: torch.dtype) -> None:
        self.view, self.dtype = view, dtype

    @cached_property
    def _mlp(self) -> Mlp:
        weights, block = self.view.block.weights, self.view.block
        scale = (block.norm2_scale * block.post_norm2_scale)[:, None]
        up, q = (None, None) if weights.up is None or block.q is None else (weights.up, block.q / scale)
        parts = (weights.down, weights.gate, up, block.p / scale, q)
        cast = (None if part is None else part.to(self.dtype) for part in parts)
        return Mlp(*cast, probes=self.probes)  # pyright: ignore[reportArgumentType]

    @cached_property
    def _heads(self) -> Heads:
        weights, block = self.view.block.weights, self.view.block
        left, right = weights.left.transpose(0, 1).flatten(1), weights.right.flatten(0, 1)
        weighted = block.pattern / (block.post_norm1_scale[:, None] * block.norm1_scale)
        return Heads(left.to(self.dtype), right.to(self.dtype), weighted.to(self.dtype))

    def mlp(self, m: int) -> Mlp:
        p, q = self._mlp.p[: m + 1], self._mlp.q
        return replace(self._mlp, p=p, q=None if q is None else q[: m + 1])

    def heads(self, m: int) -> Heads:
        return replace(self._heads, weighted=self._heads.weighted[:, : m + 1, : m + 1])

    @cached_property
    def probes(self) -> Float[Tensor, "d_model probe"]:
        """Drawn once a block: what answers are asked for on the other side of a direction; all of them for exact traces."""
        like = self.view.block.weights.down.to(self.dtype)
        count = len(like) if self.view.traces == "exact" else PROBES
        return operators.orthogonal_probes(len(like), count, SEED + self.view.block.layer, like)

    @cached_property
    def sketches(self) -> tuple[Sketch, Sketch]:
        """Of the MLP's step and of attention's, drawn apart from each other and from `probes`."""
        return self._sketch(FACTOR, 0), self._sketch(FACTOR, 1)

    @cached_property
    def asking(self) -> Sketch:
        """Of the columns that pairs of tokens are asked at."""
        return self._sketch(PAIRS, 2)

    def _sketch(self, columns: int, number: int) -> Sketch:
        count = len(self.view.block.weights.down) if self.view.traces == "exact" else columns
        return Sketch(count, SEED + (2 * self.view.block.layer + 2) * 1_000_003 + number)


class LiveParts(Parts):
    """The same with nothing held; raises `InputError` where the pattern is not the softmax of the scores."""

    def mlp(self, m: int) -> Mlp:
        held, block, weights = super().mlp(m), self.view.block, self.view.block.weights
        after = None if block.layout.after_mlp is None else block.post_norm2_direction[: m + 1].to(self.dtype)
        before = None if block.layout.before_mlp is None else block.norm2_direction[: m + 1].to(self.dtype)
        return LiveMlp(
            *(held.down, held.gate, held.up, held.p, held.q, held.probes),
            **self._cast(bare=weights.bare_down, gain=weights.post_gain_2),
            after=after,
            before=before,
            met=None if before is None else self._mlp_met(m),
        )

    def _mlp_met(self, m: int) -> tuple[Tensor, Tensor | None]:
        """W_gate u_j and W_up u_j, which the check of the block has multiplied out."""
        root = len(self.view.block.weights.down) ** 0.5
        gate, up = (
            None if read is None else (read[: m + 1] / root).to(self.dtype) for read in self.view.block.mlp_read
        )
        assert gate is not None
        return gate, up

    def heads(self, m: int) -> Heads:
        held, block, weights = super().heads(m), self.view.block, self.view.block.weights
        scores, cut = block.scores, slice(m + 1)
        return LiveHeads(
            *(held.left, held.right, held.weighted),
            probes=self.probes,
            asking=self.asking,
            **self._cast(
                bare=weights.bare_left.transpose(0, 1).flatten(1),
                gain=weights.post_gain_1,
                after=block.post_norm1_direction[cut],
                after_scale=block.post_norm1_scale[cut],
                before=block.norm1_direction[cut],
                before_scale=block.norm1_scale[cut],
                pattern=block.pattern[:, cut, cut],
                slope=scores.slope[:, cut, cut],
                query=scores.query[:, cut],
                key=scores.key[:, cut],
                value=scores.value[:, cut],
            ),
            query_map=self._answering(scores.query_map, self._met[0], m),
            key_map=self._answering(scores.key_map, self._met[1], m),
        )

    def _answering(self, found: HeadMap, met: Tensor, m: int) -> Answering:
        turn, mixed = found.turns(slice(m, m + 1))
        both = None if mixed is None else (mixed[0][:, 0].to(self.dtype), mixed[1][0].to(self.dtype))
        return Answering(found.weights.to(self.dtype), turn[:, 0].to(self.dtype), both, met[:, :, : m + 1])

    @cached_property
    def _met(self) -> tuple[Tensor, Tensor]:
        """What the probes meet in the queries, and in the keys, of every token."""
        scores, before = self.view.block.scores, self.view.block.norm1_direction
        probes = self.probes.to(before)
        query, key = (found.met(probes, before).to(self.dtype) for found in (scores.query_map, scores.key_map))
        return query, key

    def _cast(self, **parts: Tensor) -> dict[str, Tensor]:
        return {name: part.to(self.dtype) for name, part in parts.items()}


class KernelFold:
    """`second-moment`: the kernel of second moments and its two directions, one recursion a last position."""

    parts = Parts

    def __init__(self, run: Forward, last: list[int]) -> None:
        _refuse_if_too_large(run, last)
        self.last, self.dtype = last, next(run.model.parameters()).dtype
        self.moments = [second_moment.top(m + 1, self.final_norm(run, m).to(self.dtype)) for m in last]

    def final_norm(self, run: Forward, m: int) -> Float[Tensor, "d_model d_model"]:
        """diag(g3) C / r3_m, its scale held."""
        return final_norm(run.model) / run.final_norm_scale[m]

    def step(self, view: BlockView) -> None:
        view.require_causal("second-moment")
        parts = self.parts(view, self.dtype)
        pairs = zip(self.moments, self.last, strict=True)
        through = parallel_moments.through_parallel if view.parallel else second_moment.through_block
        self.moments = [through(moments, parts.mlp(m), parts.heads(m), parts.sketches) for moments, m in pairs]
        # In every block: a negative square may turn positive again further down.
        for moments in self.moments:
            _norms(moments.squares(), self.dtype)

    def values(self) -> Float[Tensor, "last pos"]:
        widest = max(self.last)
        pairs = zip(self.moments, self.last, strict=True)
        return torch.stack(
            [torch.nn.functional.pad(_norms(moments.squares(), self.dtype), (0, widest - m)) for moments, m in pairs]
        )


class FullFold(KernelFold):
    """`second-moment-full`: the same for the real derivative, with nothing held."""

    parts = LiveParts

    def final_norm(self, run: Forward, m: int) -> Float[Tensor, "d_model d_model"]:
        """diag(g3) C N(v_m) / r3_m."""
        held, direction = super().final_norm(run, m), run.final_norm_direction[m]
        return held - torch.outer(held @ direction, direction)


class DiagonalFold:
    """`second-moment-diagonal`: paths add in squares, each block met in a random direction; one row product serves every m.

    row <- ( row o M_jj ) E,   E_ij = sum_hk G_hk At_h,ij At_k,ij + delta_ij (1 + 2 sum_h t_h At_h,ii),
    M_jj = ||I + D_j||_F^2 / d,   G_hk = <B_h, B_k> / d,   t_h = tr(B_h) / d

    Of a parallel block row <- row E,   E_ij = ||T_ij + delta_ij D_i||_F^2 / d.
    """

    def __init__(self, run: Forward, last: list[int]) -> None:
        scale, self.dtype = run.final_norm_scale, next(run.model.parameters()).dtype
        top = final_norm_squared(run.model) / scale[last].square()
        self.rows = top[:, None] * torch.eye(len(scale), dtype=torch.float64, device=scale.device)[last]

    def step(self, view: BlockView) -> None:
        parts, n = Parts(view, self.dtype), self.rows.shape[1]
        mlp, heads = parts.mlp(n - 1), parts.heads(n - 1)
        undirected = parts.sketches[0].undirected(mlp.down) / len(mlp.down) ** 0.5
        if view.parallel:
            self.rows = self.rows @ parallel_moments.squares(mlp, heads, undirected).double()
        else:
            weights = torch.full_like(mlp.p[:, 0], 1.0 / n)
            (met,) = mlp.meet(undirected)
            overlap = parallel_moments.overlaps(mlp, met, weights)[1]
            self.rows = (self.rows * overlap.diagonal()) @ heads.squares(undirected).double()
        _norms(self.rows, self.dtype)

    def values(self) -> Float[Tensor, "last pos"]:
        return _norms(self.rows, self.dtype)


def _norms(squares: Float[Tensor, "*last pos"], dtype: torch.dtype) -> Float[Tensor, "*last pos"]:
    """The square roots; refused where a square came out negative, beyond what `dtype` rounds, or is no number."""
    rounding = 100 * torch.finfo(dtype).eps
    if not bool((squares >= -rounding * squares.amax(-1, keepdim=True)).all()):
        raise InputError(
            "second-moment: expected squared norms of 0 or more, found one that is negative or not a number: on this prompt "
            "paths cancel, or probes miss, more than the prediction allows for; use traces='exact', variant "
            "'second-moment-diagonal', or measure with sensitivity()"
        )
    return squares.clamp_min(0.0).sqrt()


def _refuse_if_too_large(run: Forward, last: list[int]) -> None:
    """One kernel of (m + 1)^2 numbers a last position, and the final norm's Jacobian, d x d, are kept side by side."""
    like = next(run.model.parameters())
    needed = like.element_size() * sum((m + 1) ** 2 + int(run.model.cfg.d_model) ** 2 for m in last)
    free = available_memory(like.device)
    if needed > 0.8 * free:
        raise InsufficientMemoryError(
            f"second-moment for {len(last)} last positions needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are "
            f"free; use variant 'second-moment-diagonal', which serves all positions with one product, or positions='last'"
        )
