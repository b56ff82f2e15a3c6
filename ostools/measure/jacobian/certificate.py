"""The check that comes with every measured Jacobian: the network itself, moved a little, moves as J
says.

    (y_n(v + h t) - y_n(v - h t)) / 2h  =  sum_i J_i t_i + O(h^2)

for one random direction t_i of every token, all moved at once, with patterns and norm scales
imposed where the linearisation holds them. No derivative is taken, so that an error in autograd, in
a backward formula or in a hook's gradient cannot hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.hooks.freeze import HeldParts, Holding
from ostools.hooks.register import Order, attached
from ostools.hooks.sites import points
from ostools.measure.jacobian.linearise import FROZEN_PARTS, BasePoint
from ostools.measure.passes.contexts import no_logits, run_from

# The steps, relative to |v_i|, that are tried one at a time at first: trained models need no other.
# Truncation grows with h^2 and rounding with 1 / h; of y_n both are below 1e-3 of the sum at the
# first step on the real models that were measured. Of one logit, a single number, truncation may be
# a larger share: it takes the second one.
_FIRST_STEPS = {torch.float32: (1e-2, 3e-3), torch.float64: (1e-4,)}
# Where none of these decides, the one below whose truncation and rounding are smallest together is
# taken. Sharp attention needs small ones.
_STEPS = {torch.float32: (3e-2, 1e-2, 3e-3, 1e-3, 3e-4), torch.float64: (1e-3, 1e-4, 1e-5)}
# An error bar, relative to the size of the sum, with which the first step decides; and one with
# which a difference says something.
_SHARP, _INFORMATIVE = 1e-2, 0.1
# A token that moves y_n more than half of the others do is moved less, at least by this share: each
# has its say in the sum.
_LEAST_SHARE = 3e-2
# What a derivative may be off beside that: float32 Jacobians agree with float64 ones to 1e-4.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 1e-5}
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-14}
"""Rounding of y_n over its size: what a difference of two of them starts from."""
# 1 over the 5% quantile of |g|, g normal: a difference of rank one may hide in one direction by
# this factor.
_UNSEEN = 15.95
# Scores of one pass over moved prompts: a long prompt goes through alone.
_SQUARES = 1 << 21
_SEED = 0
# Running from embeddings may round otherwise than running from tokens; freezing changes no value.
_SAME_LOGITS = {torch.float32: 2e-5, torch.float64: 1e-10}
ADDS_UP = {torch.float32: 1e-5, torch.float64: 1e-12}
"""What the parts of a linear network may be off y_n, relative to the sizes of what is added."""


@dataclass(frozen=True)
class Certificate:
    """`error`: |finite difference - sum_i J_i t_i| / sqrt(sum_i |J_i t_i|^2). `passes`: moved
    prompts that went through.

    `within`: with 95% confidence over the random direction the Jacobians of all tokens together,
    each at the size of its step, are within this share of the true ones' size (Frobenius norm); the
    error bar of the difference is in it. A difference Delta J shows in one direction as |Delta J
    t|, whose square has the mean ||Delta J||_F^2. It is below 1 / `_UNSEEN`^2 of that mean in 5% of
    cases at most: where Delta J has rank one, a chi-squared of one degree of freedom.
    """

    error: float
    within: float
    passes: int


class Claim(NamedTuple):
    """What the Jacobians of one linearisation say of a step t_i of every token, to be held against
    the network.

    `expected`: sum_i W J_i t_i. `size`: sqrt(sum_i |W J_i t_i|^2), the size of that sum in the mean
    over random directions; a logit's, one number, may be small by chance. `homogeneous`: sum_i W
    J_i v_i. `outputs`: W, None for the identity. `gain`: size of W over that of y_n. Rounding grows
    with it: a sum like w^T y may be far smaller than what is added.
    """

    field: Float[Tensor, "pos d_model"]
    expected: Float[Tensor, " d_out"]
    size: float
    homogeneous: Float[Tensor, " d_out"]
    outputs: Float[Tensor, "out d_model"] | None
    gain: float

    @classmethod
    def of(
        cls,
        base: BasePoint,
        jacobian_rows: Float[Tensor, "place d_out d_model"],
        outputs: Float[Tensor, "out d_model"] | None = None,
    ) -> Claim:
        """What rows W J_i say, those of the base's layer first."""
        field = _field(base.stream, jacobian_rows)
        parts, homogeneous = (
            _products(jacobian_rows, steps).double() for steps in (field, base.stream)
        )
        gain = 1.0 if outputs is None else float(outputs.double().norm()) / outputs.shape[-1] ** 0.5
        widened = None if outputs is None else outputs.double()
        return cls(field, parts.sum(0), float(parts.norm()), homogeneous.sum(0), widened, gain)

    def output(self, y: Float[Tensor, "*row d_model"]) -> Float[Tensor, "*row d_out"]:
        """W y, in float64."""
        return y.double() if self.outputs is None else y.double() @ self.outputs.T


class _Slopes(NamedTuple):
    """Central differences by step; the curvature of the last one, and the rounding of what is
    subtracted.
    """

    by_step: dict[float, Float[Tensor, " d_out"]]
    curvature: float
    rounding: float


def certify(
    model: TransformerBridge, held: Holding, base: BasePoint, claims: Mapping[str, Claim]
) -> dict[str, Certificate]:
    """Compare what each linearisation claims at `base` with finite differences of the network;
    `InputError` where they differ.

    `held`: of the block in which the prompt was linearised. Raises `InputError` too where rounding
    and truncation leave an error bar above a tenth of the sum, so that a difference says nothing.
    Cost: 2 moved prompts for each linearisation from that layer on, all in one batch. Of those that
    these do not decide 2 more in float32, and of those that are not decided then 6 more (4 in
    float64).
    """
    dtype = base.stream.dtype
    bars: dict[str, tuple[Float[Tensor, " d_out"], float]] = {}
    by_step: dict[str, dict[float, Float[Tensor, " d_out"]]] = {name: {} for name in claims}
    for step in _FIRST_STEPS[dtype]:
        unsure = {name: claim for name, claim in claims.items() if name not in bars}
        for name, slopes in (_slopes(model, held, base, unsure, [step]) if unsure else {}).items():
            by_step[name] |= slopes.by_step
            claim, difference = unsure[name], slopes.by_step[step]
            error = float((difference - claim.expected).norm())
            # The terms of odd and even order are taken to fall alike: what the h^2 term is off is
            # the square of what the h term is.
            bar = slopes.curvature**2 / max(claim.size, 1e-300) + slopes.rounding / step
            if bar < _SHARP * claim.size and error <= bar + _TOLERANCE[dtype] * claim.size:
                bars[name] = difference, bar
    unsure = {name: claim for name, claim in claims.items() if name not in bars}
    if unsure:
        more = _slopes(
            model,
            held,
            base,
            unsure,
            [step for step in _STEPS[dtype] if step not in _FIRST_STEPS[dtype]],
        )
        for name in unsure:
            by_step[name] |= more[name].by_step
            bars[name] = _difference(
                {step: by_step[name][step] for step in _STEPS[dtype]}, more[name].rounding
            )
    return {
        name: _certificate(name, claim, *bars[name], 2 * len(by_step[name]))
        for name, claim in claims.items()
    }


def _certificate(
    linearisation: str, claim: Claim, difference: Float[Tensor, " d_out"], bar: float, passes: int
) -> Certificate:
    """The certificate of a claim, from a difference and its error bar. Raises `InputError` where
    there is none.
    """
    error, size, dtype = float((difference - claim.expected).norm()), claim.size, claim.field.dtype
    if not error <= 4 * bar + _TOLERANCE[dtype] * size:
        what = "y_n" if claim.outputs is None else "W y_n"
        raise InputError(
            f"the {linearisation} Jacobian failed its check: moving every token by a small random step moves {what} by "
            f"{float(difference.norm()):.4g} a unit, J says {float(claim.expected.norm()):.4g}, and they differ by "
            f"{error:.2g} (error bar {bar:.2g}); its norms are not to be trusted"
        )
    if not bar < _INFORMATIVE * size:
        raise InputError(
            f"the {linearisation} Jacobian cannot be checked: the network is too steep here for finite differences in "
            f"{str(dtype).removeprefix('torch.')} (error bar {bar / size if size else 1:.0%}): load the model with "
            "dtype='float64'"
        )
    return Certificate(error / size, _UNSEEN * (error + bar) / size, passes)


def _slopes(
    model: TransformerBridge,
    held: Holding,
    base: BasePoint,
    claims: Mapping[str, Claim],
    steps: Sequence[float],
) -> dict[str, _Slopes]:
    """Central differences of W y_n along each claim's field, of each step."""
    signed_steps = [sign * step for step in steps for sign in (1, -1)]
    moved = torch.stack(
        [base.stream + step * claim.field for claim in claims.values() for step in signed_steps]
    )
    choices = [FROZEN_PARTS[name] for name in claims for _ in signed_steps]
    y = last_tokens(model, moved, held, choices, base.layer)
    slopes = {}
    for (name, claim), moved_y in zip(claims.items(), y.split(len(signed_steps)), strict=True):
        rounding = ROUNDING[y.dtype] * float(moved_y.norm(dim=-1).max()) * claim.gain
        outputs = claim.output(moved_y)
        by_step = {
            step: (up - down) / (2 * step)
            for step, up, down in zip(steps, outputs[0::2], outputs[1::2], strict=True)
        }
        curvature = float((outputs[-2] + outputs[-1] - 2 * claim.output(base.y)).norm()) / (
            2 * steps[-1]
        )
        slopes[name] = _Slopes(by_step, curvature, rounding)
    return slopes


def _products(
    jacobian_rows: Float[Tensor, "place d_out d_model"], field: Float[Tensor, "pos d_model"]
) -> Float[Tensor, "pos d_out"]:
    """J_i t_i at the first places, as many as there are t_i."""
    return (jacobian_rows[: len(field)] @ field.to(jacobian_rows)[..., None])[..., 0]


def _field(
    stream: Float[Tensor, "pos d_model"], jacobian_rows: Float[Tensor, "place d_out d_model"]
) -> Float[Tensor, "pos d_model"]:
    """One random direction a token, of the size of its v_i; shorter where its part would be above
    the median part.
    """
    gaussian = torch.randn(
        stream.shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64
    ).to(stream)
    field = gaussian * (stream.norm(dim=-1, keepdim=True) / gaussian.norm(dim=-1, keepdim=True))
    sizes = _products(jacobian_rows, field).double().norm(dim=-1)
    positive_sizes = sizes[sizes > 0]
    median = positive_sizes.median() if len(positive_sizes) else sizes.new_ones(())
    return field * (median / sizes.clamp_min(1e-300)).clamp(_LEAST_SHARE, 1.0)[:, None].to(field)


def _difference(
    slopes: Mapping[float, Float[Tensor, " d_out"]], rounding: float
) -> tuple[Float[Tensor, " d_out"], float]:
    """Central difference, of those by step, that its neighbours and rounding bound best; and that
    bound.

    Two may agree by chance where the network is steep: of several steps each is held against both
    of its neighbours.
    """
    gaps = [float((wide - narrow).norm()) for wide, narrow in pairwise(slopes.values())]
    around = [max(gap, following) for gap, following in zip(gaps, [*gaps[1:], 0.0], strict=True)]
    bars = [gap + 2 * rounding / step for gap, step in zip(around, list(slopes)[1:], strict=True)]
    bar, best = min(zip(bars, list(slopes.values())[1:], strict=True), key=lambda pair: pair[0])
    return best, bar


def certify_sum(
    model: TransformerBridge, held: Holding, base: BasePoint, linearisation: str, claim: Claim
) -> float:
    """sum_i J_i v_i + bias terms = y_n, for a linearisation that holds all parts; the error,
    relative to what is added.

    The bias terms are what the network, held at this prompt, makes of v = 0. Raises `InputError`
    where they do not add up within the rounding of the dtype. Cost: one forward pass.
    """
    none = torch.zeros_like(base.stream)[None]
    bias = claim.output(
        last_tokens(model, none, held, [FROZEN_PARTS[linearisation]], base.layer)[0]
    )
    y, total = claim.output(base.y), claim.homogeneous
    error = float((total + bias - y).norm() / (total.norm() + bias.norm() + y.norm()))
    require_adds_up(error, ADDS_UP[none.dtype], "sum_i J_i v_i + bias terms", "y_n")
    return error


def require_adds_up(error: float, within: float, parts: str, total: str) -> None:
    """Refuse, with `InputError`, a sum that is off by more than rounding of its terms."""
    if not error <= within:
        raise InputError(
            f"the detached linearisation failed its check: {parts} differs from {total} by {error:.2g} of what is added, "
            f"expected {within:g} at most. Either an edit is active that the held network does not repeat, or rounding in "
            "float32 is too large: leave the edit's block, or load the model with dtype='float64'"
        )


def _place(model: TransformerBridge, layer: int) -> tuple[str, int]:
    """The site, and its block, that a v^(layer) above the embeddings is read from."""
    last = int(model.cfg.n_layers)
    return ("residual_pre", layer) if layer < last else ("residual_post", last - 1)


def last_tokens(
    model: TransformerBridge,
    streams: Float[Tensor, "row pos d_model"],
    held: Holding | None = None,
    choices: Sequence[HeldParts] = (),
    layer: int = 0,
) -> Float[Tensor, "row d_model"]:
    """y_n from every moved v^(layer). Of `held`, each row's choice is held at the values of the
    prompt itself.
    """
    rows_at_once = max(1, _SQUARES // (int(model.cfg.n_heads) * streams.shape[1] ** 2))
    last_rows, (site, block) = [], _place(model, layer)
    edited_points = points(model, site, [block]).values() if layer else ()
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        for start in range(0, len(streams), rows_at_once):
            part = streams[start : start + rows_at_once]
            imposing = (
                held.imposing(choices[start : start + rows_at_once]) if held else nullcontext()
            )
            # Whatever an edit there would make of it; at the embeddings a pass starts with it
            # anyway.
            placements = [
                (point, lambda _, part=part: part, Order.OBSERVE) for point in edited_points
            ]
            with imposing, attached(placements):
                run_from(model, part, min(layer, int(model.cfg.n_layers) - 1), no_logits(model))
            last_rows.append(record["final_norm"][:, -1])
    return torch.cat(last_rows)


def require_same_logits(
    plain: Float[Tensor, "1 d_vocab"], logits: Float[Tensor, "1 d_vocab"], linearisation: str
) -> None:
    """Refuse, with `InputError`, a pass from v^(0), with what is held, whose logits are not those
    of the plain one.
    """
    difference = float((plain - logits).abs().amax() / plain.abs().amax())
    if not difference <= _SAME_LOGITS[plain.dtype]:
        raise InputError(
            f"the {linearisation} forward pass changed the logits by {difference:.2g} of their size; its Jacobian would "
            "mean nothing"
        )
