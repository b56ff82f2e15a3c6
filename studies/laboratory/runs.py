"""Measurements of the laboratory on one decoder: collapse, attention rows, the step of a score, and
rounding noise.

A prompt is `question` random tokens, then one token n times. Each function takes one causal pass
for all n, and returns columns by length n = 1, ..., longest: entry n - 1 compares n copies with n +
1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from ostools.theory import positions as encodings
from ostools.theory.decoder import Decoder, DecoderBlock, DecoderPass, Pattern, Projected, Residual
from ostools.theory.distances import distance, total_variation

Curve = Float[Tensor, " length"]

ENCODINGS: dict[str, dict[str, Any]] = {
    "none": {"positions": "none"},
    "alibi": {"positions": "alibi"},
    "rope-100": {"positions": "rope", "rope_base": 1e2},
    "rope-10000": {"positions": "rope", "rope_base": 1e4},
    "rope-1000000": {"positions": "rope", "rope_base": 1e6},
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned"},
}
"""The encodings of the studies by name, RoPE by its base."""

_BFLOAT16 = torch.bfloat16
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, torch.dtype]]] = {
    "float32": (torch.float32, {}),
    "bfloat16": (_BFLOAT16, {}),
    "float16": (torch.float16, {}),
    "bfloat16-weights": (torch.float32, {"weights": _BFLOAT16}),
    "bfloat16-residual": (torch.float32, {"residual": _BFLOAT16}),
    "bfloat16-kv": (torch.float32, {"kv": _BFLOAT16}),
}
"""A cast of everything, or float32 arithmetic with one part stored in bfloat16."""

_VOCABULARY = 16
_PROMPTS_APART = 10**6
"""Added to a seed for its prompt, so that tokens and weights are drawn independently."""


def prompt(seed: int, question: int, copies: int) -> Int[Tensor, "batch pos"]:
    """`question` random tokens, then `copies` of one that is not among them."""
    generator = torch.Generator().manual_seed(_PROMPTS_APART + seed)
    random_tokens = torch.randint(_VOCABULARY - 1, (1, question), generator=generator)
    return torch.cat([random_tokens, torch.full((1, copies), _VOCABULARY - 1)], dim=1)


@dataclass(frozen=True, eq=False)
class StoringDecoder(Decoder):
    """A decoder that stores a part in another dtype, while its arithmetic stays in its own:
    v^(0), ..., v^(L) as they lie between blocks (`residual`), keys (turned by RoPE) and values
    (`kv`).
    """

    residual: torch.dtype | None = None
    kv: torch.dtype | None = None

    def embedded(self, inputs: Int[Tensor, "batch pos"] | Residual) -> Residual:
        return self.stored(super().embedded(inputs))

    def stored(self, v: Residual) -> Residual:
        return _rounded(v, self.residual)

    def projected(self, block: DecoderBlock, x: Residual) -> tuple[Projected, Projected, Projected]:
        q, k, v = super().projected(block, x)
        return q, _rounded(k, self.kv), _rounded(v, self.kv)


def _rounded(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """x as it is read back once stored in `dtype`."""
    return x if dtype is None else x.to(dtype).to(x.dtype)


def random_decoder(seed: int, name: str, depth: int) -> StoringDecoder:
    made = StoringDecoder.random(seed, n_layers=depth, vocabulary=_VOCABULARY, **ENCODINGS[name])
    return cast(StoringDecoder, made)


def between_lengths(
    y: Float[Tensor, "batch pos d_model"], question: int, norm: str = "l2"
) -> Curve:
    """||y_n - y*_(n+1)||: the rows of one causal pass that end in n and in n + 1 copies."""
    rows = y[0, question:].double()
    return distance(rows[1:], rows[:-1], norm)


def collapse_by_depth(
    decoder: Decoder, tokens: Int[Tensor, "batch pos"], question: int, depths: list[int]
) -> dict[int, dict[str, Curve]]:
    """For each depth, from one pass through the deepest: the distances, and the rows' variation in
    its last layer.

    distance: L2 at y, after the final norm. l1: L1 at v^(L), before it: the quantity of Theorem
        B.3.
    """
    curves: dict[int, dict[str, Curve]] = {}
    for depth, (v, pattern) in enumerate(decoder.layers(tokens)):
        if depth in depths and pattern is not None:
            y = decoder.normed(v, decoder.gain3)
            l1 = between_lengths(v, question, "l1")
            curves[depth] = {
                "distance": between_lengths(y, question),
                "l1": l1,
                **row_variation(pattern, question),
            }
    return curves


def row_variation(pattern: Pattern, question: int) -> dict[str, Curve]:
    """Change of the last token's attention with one more copy, mean over heads.

    total_variation: Lemma 4.1's delta = sum_j |alpha_nj - alpha*_(n+1),j| + alpha*_(n+1),(n+1),
        tokens numbered from the first.
    shifted_variation: the same with tokens numbered from the last, as relative positions see them.
    """
    rows = pattern[0, :, question:]
    by_first = total_variation(rows[:, 1:], rows[:, :-1])
    by_last = total_variation(rows[:, 1:, 1:], rows[:, :-1, :-1]) + rows[:, 1:, 0]
    return {"total_variation": by_first.mean(0), "shifted_variation": by_last.mean(0)}


def assumption(
    decoder: Decoder, tokens: Int[Tensor, "batch pos"], lengths: list[int]
) -> dict[str, Curve]:
    """Does what positions say decay with distance? The first layer's scores and rows, far beyond
    what a whole pass could reach.

    The query is the token n, then its copy at n + 1; `tokens` are the keys, lengths[-1] + 1 of
    them.
    score_step: root mean square, over heads and keys at distance r to 1.25 r, of |s_(n+1),j -
    s_n,j| at n = the longest: what one more token changes in the score of a key r = `length` tokens
    back. total_variation: Lemma 4.1's delta at n = `length`.
    """
    block, longest = decoder.blocks[0], lengths[-1]
    slopes = encodings.alibi_slopes(block.W_Q.shape[0])[:, None]

    def projected(ids: Int[Tensor, "batch pos"]) -> tuple[Tensor, Tensor]:
        q, k, _ = decoder.projected(block, decoder.normed(decoder.embedded(ids), block.gain1))
        return q[0], k[0]

    q_own, keys = projected(tokens)
    q_copy, k_copy = projected(tokens.roll(1, dims=1))  # every token one place later: its copy

    def scores(
        query: Float[Tensor, "head d"], upto: Float[Tensor, "head key d"]
    ) -> Float[Tensor, "head key"]:
        products = einsum(query, upto, "head d, head key d -> head key") * query.shape[-1] ** -0.5
        back = torch.arange(upto.shape[1] - 1, -1, -1)
        return products - slopes * back if decoder.positions == "alibi" else products

    def rows(n: int) -> tuple[Tensor, Tensor]:
        with_copy = torch.cat([keys[:, :n], k_copy[:, n : n + 1]], dim=1)
        return scores(q_own[:, n - 1], keys[:, :n]), scores(q_copy[:, n], with_copy)

    variation = []
    for n in lengths:
        row, longer = (score.softmax(-1) for score in rows(n))
        variation.append((total_variation(longer[:, :-1], row) + longer[:, -1]).mean())
    row, longer = rows(longest)
    step = (longer[:, :-1] - row).square().flip(-1)
    steps = [step[:, r : max(r + 1, r * 5 // 4)].mean().sqrt() for r in lengths[:-1]]
    return {"total_variation": torch.stack(variation), "score_step": torch.stack(steps)}


def score_rounding(decoder: Decoder, tokens: Int[Tensor, "batch pos"]) -> float:
    """Size up to which a `score_step` of `assumption` is rounding: two scores that are one number
    differ by no more.

    s = q k / sqrt(d_head), q and k sums of d_model products of norm1(v), which itself holds a sum
    of d_model squares: 4 d_model + d_head + 16 roundings, each relative to |norm1(v)| |W_Q| |W_K|
    |norm1(v)| / sqrt(d_head), twice that where RoPE turns pairs, and to ALiBi's slope times
    distance (`sum_rounding`). A step has two scores. The tables of positions are data.
    """
    block, size = (
        decoder.blocks[0],
        decoder.normed(decoder.embedded(tokens), decoder.blocks[0].gain1).abs(),
    )
    query, key = (
        einsum(size, W.abs(), "batch pos d_model, head d_model d -> batch head pos d")
        .norm(dim=-1)
        .amax((0, 2))
        for W in (block.W_Q, block.W_K)
    )
    heads, d_model, d_head = block.W_Q.shape
    largest = 2.0 * query * key * d_head**-0.5
    if decoder.positions == "alibi":
        largest = largest + encodings.alibi_slopes(heads) * tokens.shape[1]
    return 2.0 * sum_rounding(4 * d_model + d_head + 16) * float(largest.amax())


def sum_rounding(terms: int) -> float:
    """Largest error of a float64 sum of so many products, relative to the sum of their sizes, in
    ANY order of adding them.

    m u / (1 - m u) for m terms, u = 2^-53: no order exceeds it. For long sums m is 10 sqrt(m)
    instead, which independent rounding errors exceed with a probability below m e^-49.

    Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1; Higham and
    Mary, A new approach to probabilistic rounding error analysis (2019), SIAM J. Sci. Comput. 41.
    """
    share = min(terms, 10.0 * terms**0.5) * torch.finfo(torch.float64).eps / 2
    return share / (1.0 - share)


QUANTITIES = {
    "l2": ("distance", "exact_distance", "noise", "pair_noise"),
    "l1": ("l1", "exact_l1", "l1_noise", "l1_pair_noise"),
}
"""Names of the curves of `rounding`, by norm."""


def storing(decoder: Decoder, weights: torch.dtype | None = None, **parts: torch.dtype) -> Decoder:
    """The decoder with its weights rounded to a dtype, and other parts stored in one."""
    rounded = decoder if weights is None else decoder.to(weights).to(decoder.embedding.dtype)
    return replace(rounded, **parts)


def rounding(
    decoder: Decoder,
    tokens: Int[Tensor, "batch pos"],
    question: int,
    precisions: Iterable[str],
    norm: str = "l2",
) -> Iterator[tuple[str, dict[str, Curve]]]:
    """Curves of each precision beside float64 with the SAME rounded weights (exact): the distance
    in both, and two noises.

    `norm` "l2": at y, after the final norm. "l1": at v^(L), before it, as Theorem B.3 has it. noise
    = ||y_n - exact_n||, what rounding does to one representation; pair_noise = ||(y_n - y*_(n+1)) -
    (exact_n - exact*_(n+1))||, what is left of it in the difference: rounding that both share
    cancels there.
    """

    def representation(run: DecoderPass) -> Float[Tensor, "batch pos d_model"]:
        return run.y if norm == "l2" else run.residuals[-1]

    references: dict[torch.dtype, Float[Tensor, "batch pos d_model"]] = {}
    for name in precisions:
        dtype, store = PRECISIONS[name]
        weights = store.get("weights", dtype)
        if weights not in references:
            references[weights] = representation(
                decoder.to(weights).to(torch.float64).forward(tokens)
            )
        exact = references[weights]
        y = representation(storing(decoder.to(dtype), **store).forward(tokens))
        curves = (
            between_lengths(y, question, norm),
            between_lengths(exact, question, norm),
            distance(y[0, question:-1].double(), exact[0, question:-1], norm),
            between_lengths(y.double() - exact, question, norm),
        )
        yield name, dict(zip(QUANTITIES[norm], curves, strict=True))


def collapse_start(below: Sequence[bool], lengths: Sequence[int], margin: int = 32) -> int | None:
    """The smallest n0 such that `below` holds at every length n >= n0; None where that is not
    shown.

    `below[i]`: at `lengths[i]` the distance is below the rounding noise. The lengths from n0 on
    have to be consecutive and reach n_max >= max(2 n0, n0 + margin): without that, chance at the
    end of the range would report a collapse. `lengths` ascending. A decoder of the laboratory is
    measured at every length, so one number says it; real models have ranges (`theory.distances`).
    """
    start = None
    for index in reversed(range(len(lengths))):
        consecutive = index == len(lengths) - 1 or lengths[index + 1] == lengths[index] + 1
        if not below[index] or not consecutive:
            break
        start = lengths[index]
    if start is None or lengths[-1] < max(2 * start, start + margin):
        return None
    return start
