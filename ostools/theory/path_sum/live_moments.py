"""What nothing-held attention and MLP add to the recursion of second moments, for the prediction of the real derivative.

With u_j the direction of a norm (N_j = I - u_j u_j^T), the blocks of attention between query i and key j < i are

    T_ij = P_i sum_h W_O^h ( alpha_ij W_V^h + beta_ij (v_j - vbar_i) a_ij^T ) N_j / r1_j,     beta = alpha slope
    a_ij = K_j^T q_i,   P_i = diag(gp1) / rp1_i N(o_i)

and T_ii has in addition I and, inside the bracket, sum_m beta_im (v_m - vbar_i) b_im^T, b_im = Q_i^T k_m. Of a parallel block
X_ij = T_ij + delta_ij D_i stands in the place of T_ij. For a direction Sigma = F F^T, tr(T_ij^T Sigma T_ij) is the mean of
||F^T T_ij z||^2 over probes z with E[z z^T] = I: k k' numbers a pair, and never a d x d matrix. With d_model orthogonal probes
it is exact. O(n^2 (H d_head (2 k + k') + H k k')).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum import operators, parallel_moments
from ostools.theory.path_sum.mlp_moments import Factor, Kernel, Mlp, Vectors
from ostools.theory.path_sum.second_moment import Heads, Moments, Sketch, gram, quadratic

Answered = Float[Tensor, "pos probe other_probe"]
Answers = Float[Tensor, "query probe other_probe key"]
_ANSWERS = 1 << 23
"""Bytes of the answers of some queries, and of what they are made of, at a time on a processor."""


@dataclass(frozen=True)
class Answering:
    """How the rotated queries, or keys, of the heads answer the normalised residual stream: x -> M_i x, linear.

    Of the last token n the map itself, M_n = turn W - taken read^T, whose second term is what one norm over all heads takes
    off each of them (OLMo 2): with u^h a head's part of its direction, taken = turn u, read = sum_h W_h^T u^h. None where each
    head has a norm of its own, which is in `turn`, or none. Of every token `met`, M_i N_i z for the probes z.
    """

    weight: Float[Tensor, "head d_head d_model"]
    turn: Float[Tensor, "head d_head d_head"]
    mixed: tuple[Float[Tensor, "head d_head"], Float[Tensor, " d_model"]] | None
    met: Float[Tensor, "other_probe head pos d_head"]

    def pulled(self, vectors: Float[Tensor, "head some d_head"]) -> Float[Tensor, "head some d_model"]:
        """x^T M_n."""
        moved = vectors @ self.turn @ self.weight
        if self.mixed is None:
            return moved
        taken, read = self.mixed
        return moved - (vectors @ taken[..., None]) * read


@dataclass(frozen=True)
class LiveHeads(Heads):
    """Attention with nothing held. `wide` = H d_head: heads side by side; `bare` is `left` without the post-norm's gain.

    What a pair of tokens has beside the held block is asked of as many columns of a direction as `asking` leaves, on the other
    side of `probes`; d_model of both are exact.
    """

    probes: Float[Tensor, "d_model other_probe"]
    asking: Sketch
    bare: Float[Tensor, "d_model wide"]
    gain: Float[Tensor, " d_model"]
    after: Vectors
    after_scale: Float[Tensor, " pos"]
    before: Vectors
    before_scale: Float[Tensor, " pos"]
    pattern: Float[Tensor, "head query key"]
    slope: Float[Tensor, "head query key"]
    query: Float[Tensor, "head pos d_head"]
    key: Float[Tensor, "head pos d_head"]
    value: Float[Tensor, "head pos d_head"]
    query_map: Answering
    key_map: Answering

    def added(self) -> Float[Tensor, "wide d_model"]:
        """T_nn - I = P_n left Z: this Z, with 1 / r1_n and N_n in it."""
        alpha = self.pattern[:, -1]
        beta, moved = alpha * self.slope[:, -1], self.value - alpha[:, None] @ self.value
        own = beta[:, -1, None, None] * moved[:, -1, :, None] * self.key_map.pulled(self.query[:, -1, None])
        around = self.query_map.pulled((beta[..., None] * moved).mT @ self.key)
        inner = (own + around).flatten(0, 1) + alpha[:, -1].repeat_interleave(moved.shape[-1])[:, None] * self.right
        return (inner - torch.outer(inner @ self.before[-1], self.before[-1])) / self.before_scale[-1]

    def last_pulled(self, pulled: Float[Tensor, "basis d_model probe"]) -> Factor:
        factor, last = pulled[0], self.pattern.shape[-1] - 1
        return factor + self.added().T @ self._met(factor, slice(last, last + 1))[0].T

    def corrected(self, kernel: Kernel, before: Moments, beside: Mlp | None = None) -> Kernel:
        """K_jj + sum_i K_ii (live - held squares of T_ij), exact where queries do not interfere; pairs in proportion."""
        sizes, last = before.kernel.diagonal(), self.pattern.shape[-1] - 1
        gained = self.gained(before.own, slice(last, last + 1), beside)[0]
        if before.shared is not None:
            gained = gained + sizes[:last] @ self.gained(before.shared, slice(0, last), beside)
        diagonal = kernel.diagonal()
        ratio = torch.where(diagonal > 0, (diagonal + gained) / diagonal, torch.ones_like(diagonal)).sqrt()
        # A token whose held paths cancel exactly still has what the real derivative gains.
        return (kernel * ratio[:, None] * ratio).diagonal_scatter(diagonal + gained)

    def gained(self, factor: Factor, queries: slice, beside: Mlp | None = None) -> Float[Tensor, "query key"]:
        """tr(T_ij^T Sigma T_ij) for i in `queries`: nothing held, less all held; of T_ij + delta_ij D_i with an MLP `beside`.

        The held squares are exact for Sigma; what the live ones are of them comes from the same probes' answers to both.
        """
        squares = self.squares(factor) if beside is None else parallel_moments.squares(beside, self, factor)
        factor = self.asking.of(factor)
        added = None if beside is None else _answers_beside(beside, factor)
        exact, held = squares[queries], self.held_squares(factor, queries, added)
        asked, probes = range(len(self.before))[queries], self.probes.shape[1]
        total = torch.zeros_like(exact)
        # So few queries at a time that a processor's cache holds what they answer.
        each = len(self.before) * (2 * factor.shape[1] * probes + len(self.pattern) * (3 * factor.shape[1] + probes))
        for part in operators.chunks(len(asked), each * factor.element_size(), _cached(factor)):
            rows = slice(asked[part.start], asked[part.stop - 1] + 1)
            answers = self.live_answers(factor, rows)
            if added is not None:
                answers = _with_skip(answers, added[rows], rows)
            known, here = exact[part, : rows.stop], held[part, : rows.stop]
            scaled = _size(answers) * torch.where(here > 0, known / here, 1.0 / probes)
            total[part, : rows.stop] = scaled - known
        return total

    def held_squares(self, factor: Factor, queries: slice, added: Answered | None) -> Float[Tensor, "query key"]:
        """||F^T T_ij z||^2 over all probes, patterns and scales held: of sums over the heads, from the heads' own products.

        Where i = j the skip connection is in it, and `added`, what stands beside the attention of every token.
        """
        basis = self.pulled(factor).mT @ self.probes
        asked = range(len(self.before))[queries]
        squares = quadratic(gram(basis[1:]), self.weighted[:, queries])
        here = self.weighted.diagonal(dim1=1, dim2=2)[:, queries]
        same = basis[0] + torch.einsum("hi,hpk->ipk", here, basis[1:])
        if added is not None:
            same = same + added[queries]
        squares[range(len(asked)), asked] = same.square().sum((1, 2))
        return squares

    def live_answers(self, factor: Factor, queries: slice) -> Answers:
        """F^T T_ij z with nothing held, keys up to the last query. With Y_i = F^T P_i left and [z]_j = N_j z / r1_j

        sum_h Y_i^h ( alpha_ij right_h [z]_j + beta_ij (v_j - vbar_i) q_i^T K_j [z]_j ), and for j = i in addition
        F^T z + sum_h Y_i^h sum_m beta_im (v_m - vbar_i) k_m^T Q_i [z]_i.
        """
        keys, met = slice(queries.stop), self._by_query_head(self._met(factor, queries))
        pattern, scale = self.pattern[:, queries, keys], self.before_scale[keys]
        alpha, beta = pattern / scale, pattern * self.slope[:, queries, keys]
        # Y_i right_h N_j z = Y_i right_h z - (Y_i right_h u_j) (u_j^T z).
        by_head = _by_head(met, self._at_heads).flatten(2)
        answers = (by_head.permute(1, 2, 0) @ alpha.transpose(0, 1)).unflatten(1, (met.shape[2], -1))
        through_norm = (alpha[:, :, None] * _by_head(met, self._seen[:, keys].mT)).sum(0)
        _add_outer(answers, -through_norm, self._at_keys[None, :, keys])
        # Y_i^h (v_j - vbar_i), and what the scores answer: to the key's side q_i^T K_j N_j z, to the query's k_m^T Q_i N_i z.
        values = self.value[:, keys]
        moved = _by_head(met, values.mT) - met @ (pattern @ values)[..., None]
        moved *= beta[:, :, None]
        asked = self._asked[:, queries]
        mine = (_by_head(moved, self.key[:, keys]) @ asked).sum(0) / self.before_scale[queries, None, None]
        moved /= scale
        keyed = self._keyed[..., keys]
        score = (self.query[:, queries] @ keyed.flatten(2)).unflatten(2, keyed.shape[2:])
        for one, read in zip(moved, score, strict=True):
            _add_outer(answers, one, read)
        return _with_skip(answers, factor.T @ self.probes + mine, queries)

    def _met(self, factor: Factor, queries: slice) -> Float[Tensor, "query probe wide"]:
        """F^T P_i left."""
        gained, after = self.gain[:, None] * factor, self.after[queries]
        met = gained.T @ self.bare - (after @ gained)[..., None] * (after @ self.bare)[:, None]
        return met / self.after_scale[queries, None, None]

    def _by_query_head(self, met: Float[Tensor, "query probe wide"]) -> Float[Tensor, "head query probe d_head"]:
        return met.unflatten(2, (-1, self.d_head)).permute(2, 0, 1, 3)

    @cached_property
    def _at_heads(self) -> Float[Tensor, "head d_head other_probe"]:
        """right z."""
        return (self.right @ self.probes).unflatten(0, (-1, self.d_head))

    @cached_property
    def _at_keys(self) -> Float[Tensor, "other_probe key"]:
        """u_j^T z."""
        return (self.before @ self.probes).T.contiguous()

    @cached_property
    def _keyed(self) -> Float[Tensor, "head d_head other_probe key"]:
        """K_j N_j z."""
        return self.key_map.met.permute(1, 3, 0, 2).contiguous()

    @property
    def _asked(self) -> Float[Tensor, "head query d_head other_probe"]:
        """Q_i N_i z."""
        return self.query_map.met.permute(1, 2, 3, 0)

    @cached_property
    def _seen(self) -> Float[Tensor, "head pos d_head"]:
        """right u_j."""
        return (self.before @ self.right.T).unflatten(1, (-1, self.d_head)).transpose(0, 1)


def _answers_beside(mlp: Mlp, factor: Factor) -> Answered:
    """F^T D_j z of every probe."""
    (met,), (asked,) = mlp.meet(factor), mlp.read(mlp.probes)
    return torch.stack(list(mlp.answers(met, asked)), dim=2)


def _cached(like: Tensor) -> int:
    """Bytes of answers at a time."""
    return _ANSWERS if like.device.type == "cpu" else operators.CHUNK_BUDGET


def _by_head(
    vectors: Float[Tensor, "head query probe some"], matrices: Float[Tensor, "head some other"]
) -> Float[Tensor, "head query probe other"]:
    """One matrix a head, met by all its queries' vectors in one product."""
    return (vectors.flatten(1, 2) @ matrices).unflatten(1, vectors.shape[1:3])


def _add_outer(
    answers: Answers, left: Float[Tensor, "query probe key"], right: Float[Tensor, "#query other_probe key"]
) -> None:
    """answers_ij += left_ij right_ij^T, in place."""
    answers.addcmul_(left[:, :, None], right[:, None])


def _with_skip(answers: Answers, skip: Float[Tensor, "*query probe other_probe"], queries: slice) -> Answers:
    """The same with `skip` added where i = j."""
    rows = torch.arange(len(answers), device=answers.device)
    answers[rows, :, :, queries.start + rows] += skip
    return answers


def _size(answers: Answers) -> Float[Tensor, "query key"]:
    """||F^T T_ij z||^2 over all probes."""
    return answers.flatten(1, 2).square().sum(1)


@dataclass(frozen=True)
class LiveMlp(Mlp):
    """D_j = P_j Dbare_j N_j with P_j = diag(gain) (I - w_j w_j^T), N_j = I - u_j u_j^T; `down` has the gain, `bare` has not.

    Every sum is the held one less what the two norms take: w_j^T Dbare_j ("pulled back") and P_j Dbare_j u_j ("pushed on").
    `after` = w and `before` = u are None where the block has no such norm; `met` is what `gate` and `up` make of u.
    """

    bare: Float[Tensor, "d_model d_mlp"] = field(kw_only=True)
    gain: Float[Tensor, " d_model"] = field(kw_only=True)
    after: Vectors | None = field(kw_only=True)
    before: Vectors | None = field(kw_only=True)
    met: tuple[Float[Tensor, "pos d_mlp"], Float[Tensor, "pos d_mlp"] | None] | None = field(kw_only=True)

    @cached_property
    def taken(self) -> tuple[tuple[Vectors, Vectors], ...]:
        found = []
        if self.after is not None:
            found.append((self.gain * self.after, self._pulled_back(self.after)))
        if self.before is not None and self.met is not None:
            found.append((self._pushed_on(*self.met), self.before))
        return tuple(found)

    def _pulled_back(self, after: Vectors) -> Vectors:
        """w_j^T Dbare_j."""
        hidden = after @ self.bare
        moved = (hidden * self.p) @ self.gate
        return moved if self.up is None or self.q is None else moved + (hidden * self.q) @ self.up

    def _pushed_on(self, gate: Float[Tensor, "pos d_mlp"], up: Float[Tensor, "pos d_mlp"] | None) -> Vectors:
        """P_j Dbare_j u_j, of gate u_j and up u_j."""
        hidden = self.p * gate
        if up is not None and self.q is not None:
            hidden = hidden + self.q * up
        moved = hidden @ self.bare.T
        if self.after is not None:
            moved = moved - (moved * self.after).sum(1, keepdim=True) * self.after
        return self.gain * moved
