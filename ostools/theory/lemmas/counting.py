"""Proposition 6.1 / B.9 and Corollary 6.2 / B.10: what cannot be counted.

6.1: without positions and without a causal mask, attention averages over the sequence, and sequences with the same ratio of
token types give every token of a type the same representation, at any depth and with any weights. The ratio is that of ALL
tokens: one BOS, one token of a prompt breaks it. Such sequences "will be assigned the
exact same representation" (docs/fidelity.md); it holds per TYPE: the last tokens of "10" and "0011" are of different types.

6.2 / B.10: "at least one sequence will be given the wrong count for large enough finite n". What a model says first is a
function of its last token's representation, so that two prompts with the same representation in the dtype at hand get the same
answer. That is so of the first generated token only: later ones read caches that may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, " pos"]


def same_ratio(first: Tokens, second: Int[Tensor, " other"]) -> bool:
    """Whether every type is the same part of both sequences: Proposition 6.1's hypothesis about them."""
    size = int(max(first.max(), second.max())) + 1
    counts = [torch.bincount(tokens, minlength=size) for tokens in (first, second)]
    return bool((counts[0] * len(second) == counts[1] * len(first)).all())


def type_spread(representations: Sequence[Float[Tensor, "_ d_model"]], tokens: Sequence[Int[Tensor, " _"]]) -> float:
    """max ||v_i - v_j|| / ||v_j|| over all tokens i of all sequences, v_j the first token met of the same type.

    0 (to rounding) is what Proposition 6.1 says of sequences with the same ratio.
    """
    vectors, types = torch.cat(list(representations)), torch.cat(list(tokens))
    first_indices = torch.stack([(types == kind).nonzero()[0, 0] for kind in types])
    return float(((vectors - vectors[first_indices]).norm(dim=-1) / vectors[first_indices].norm(dim=-1)).amax())


def identical_next(vectors: Float[Tensor, "pos d"]) -> Bool[Tensor, " pair"]:
    """Whether rows n and n + 1 are the same numbers, bit for bit up to the sign of zero: nothing can tell the pair apart."""
    return (vectors[1:] == vectors[:-1]).all(-1)


def distinct(vectors: Float[Tensor, "pos d"]) -> int:
    """How many different rows there are. There can be at most this many different answers, and this many right ones."""
    return len(torch.unique(vectors, dim=0))


def second_answers(representations: Float[Tensor, "pos d_model"], answers: Float[Tensor, "pos token"]) -> int:
    """How many answers there are beyond one for each different representation: 0 where they are a function of it."""
    joined = torch.cat([representations.double(), answers.double()], dim=-1)
    return distinct(joined) - distinct(representations)
