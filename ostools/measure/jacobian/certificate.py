"""The check that comes with every measured Jacobian: the network itself, moved a little, moves as J
says.

    (y_n(v + h t) - y_n(v - h t)) / 2h  =  sum_i J_i^(l) dv_i^(l) + O(h^2)
    dv_i^(l) = (v_i^(l)(v + h t) - v_i^(l)(v - h t)) / 2h,  at the lowest layer t_i itself

for one random direction t_i of every token at the lowest measured layer, all moved at once, with
patterns and norm scales imposed where the linearisation holds them. The same moved passes show
dv^(l) at every other measured layer, so that each layer is held to the network. No derivative is
taken: an error in autograd, in a backward formula or in a hook's gradient cannot hide.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import HookPoint, InputError, TransformerBridge
from ostools.hooks.freeze import HeldParts
from ostools.hooks.register import Order, attached
from ostools.hooks.sites import points
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Linearised
from ostools.measure.passes.contexts import no_logits, run_from
from ostools.models.generic.choices import Choices
from ostools.theory.statistics.estimates import orthonormal_rows

# The step, relative to |v_i|, that is tried first: trained models need no other. Truncation grows
# with h^2 and rounding with 1 / h; of y_n both are below 1e-3 of the sum there on the real models
# that were measured.
_FIRST_STEP = {torch.float32: 1e-2, torch.float64: 1e-4}
# Where neither it nor the step that balances its truncation and rounding decides, the one below
# whose truncation and rounding are smallest together is taken. Sharp attention needs small ones.
_STEPS = {torch.float32: (3e-2, 1e-2, 3e-3, 1e-3, 3e-4), torch.float64: (1e-3, 1e-4, 1e-5)}
# An error bar, relative to the size of the sum, with which a step decides; and one with which a
# difference says something.
_SHARP, _INFORMATIVE = 1e-2, 0.1
# Directions of y_n in which the layers above the lowest one are held to the network.
_PROBES = 8
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
# What the parts of a linear network may be off y_n, relative to the sizes of what is added.
_ADDS_UP = {torch.float32: 1e-5, torch.float64: 1e-12}


class Claim(NamedTuple):
    """What the Jacobians of one linearisation say of a step t_i of every token, to be held against
    the network.

    `expected`: sum_i W J_i t_i. `size`: sqrt(sum_i |W J_i t_i|^2), the size of that sum in the mean
    over random directions; a logit's, one number, may be small by chance. `homogeneous`: sum_i W
    J_i v_i. `outputs`: W, None for the identity. `probes`: orthonormal rows U; `above`: U W
    J_i^(l) of the layers above the lowest one.
    """

    field: Float[Tensor, "pos d_model"]
    expected: Float[Tensor, " d_out"]
    size: float
    homogeneous: Float[Tensor, " d_out"]
    outputs: Float[Tensor, "out d_model"] | None
    probes: Float[Tensor, "probe d_out"]
    above: Float[Tensor, "layer pos probe d_model"]

    @classmethod
    def of(
        cls,
        linear: Linearised,
        jacobian_rows: Float[Tensor, "place d_out d_model"],
        outputs: Float[Tensor, "out d_model"] | None = None,
    ) -> "Claim":
        """What rows W J_i say, layer by layer, those of the lowest layer first. The steps: one
        random direction a token, of the size of its v_i; shorter where its part would be above the
        median part.
        """
        stream = linear.stream
        generator = torch.Generator().manual_seed(_SEED)
        gaussian = torch.randn(stream.shape, generator=generator, dtype=torch.float64).to(stream)
        field = gaussian * (stream.norm(dim=-1, keepdim=True) / gaussian.norm(dim=-1, keepdim=True))
        sizes = _products(jacobian_rows, field).norm(dim=-1)
        median = sizes[sizes > 0].median() if bool(sizes.any()) else 1.0
        shares = (median / sizes.clamp_min(1e-300)).clamp(_LEAST_SHARE, 1.0)
        field = field * shares[:, None].to(field)
        parts = _products(jacobian_rows, field)
        d_out = jacobian_rows.shape[1]
        probes = torch.eye(d_out, dtype=torch.float64)
        if d_out > _PROBES:
            probes = orthonormal_rows(_PROBES, d_out, torch.Generator().manual_seed(_SEED))
        probes = probes.to(jacobian_rows)
        above = probes @ jacobian_rows[len(field) :]
        return cls(
            field,
            parts.sum(0),
            float(parts.norm()),
            _products(jacobian_rows, stream).sum(0),
            outputs,
            probes,
            above.unflatten(0, (len(linear.layers) - 1, len(field))),
        )

    def output(self, y: Float[Tensor, "*row d_model"]) -> Float[Tensor, "*row d_out"]:
        """W y, in float64."""
        return y.double() if self.outputs is None else y.double() @ self.outputs.double().T

    def errors(self, slope: "_Slope") -> Float[Tensor, " layer"]:
        """What the sum of each layer is off the network, the lowest first; of those above it by
        their probes, scaled to all of W y_n.
        """
        lowest = (slope.change - self.expected).norm()
        share = len(self.probes) / self.probes.shape[1]
        parts = torch.einsum("lpkd,lpd->lk", self.above, slope.moves.to(self.above))
        above = (parts.double() - self.probes.double() @ slope.change).norm(dim=-1) / share**0.5
        return torch.cat([lowest[None], above])


class _Slope(NamedTuple):
    """Central differences along one claim's field, of one step: of W y_n, and of v^(l) at the
    layers above, with their truncation and rounding.
    """

    change: Float[Tensor, " d_out"]
    moves: Float[Tensor, "layer pos d_model"]
    truncation: float
    rounding: float


Account = dict[str, object]
"""How numbers were computed and checked, as plain values for the provenance."""


def certify(
    linear: Linearised, claims: Mapping[str, Claim], choices: Choices | None = None
) -> dict[str, Account]:
    """Compare what each linearisation claims at every measured layer with finite differences of the
    network, and of one that holds all parts their sum with y_n; `InputError` where they differ.
    Within the block in which the prompt was linearised.

    Raises `InputError` too where rounding and truncation leave an error bar above a tenth of the
    sum, so that a difference says nothing.
    Cost: 2 moved prompts for each linearisation from the lowest layer on, all in one batch, and the
    prompt itself where something is held that no pass has kept. Of those that these do not decide 2
    more, and of those that are not decided then 10 more (6 in float64).
    """
    dtype = linear.stream.dtype
    differences: dict[str, tuple[_Slope, float]] = {}
    passes = dict.fromkeys(claims, 0)
    steps: dict[str, Sequence[float]] = dict.fromkeys(claims, (_FIRST_STEP[dtype],))
    while steps:
        undecided: dict[str, Sequence[float]] = {}
        for name, by_step in _slopes(linear, claims, steps).items():
            passes[name] += 2 * len(by_step)
            if len(by_step) > 1:
                differences[name] = _decide(by_step)
                continue
            claim, slope = claims[name], by_step[0]
            best, least = _best_step(slope, steps[name][0], _STEPS[dtype])
            # Sharp, or no other step would have half of its bar.
            sharp, bar = _SHARP * claim.size, slope.truncation + slope.rounding
            within = float(claim.errors(slope).max()) - _TOLERANCE[dtype] * claim.size <= bar
            if within and bar < max(sharp, min(2 * least, 2 * sharp)):
                differences[name] = slope, bar
            else:  # the step that is best by this one, then all
                undecided[name] = (best,) if passes[name] == 2 else _STEPS[dtype]
        steps = undecided
    accounts: dict[str, Account] = {}
    for name, claim in claims.items():
        check = _certificate(name, linear.layers, claim, *differences[name], passes[name])
        accounts[name] = {"certificate": check}
        if all(FROZEN_PARTS[name]):
            accounts[name] |= _sum_account(linear, name, claim)
        if choices is not None:
            accounts[name]["experts"] = choices.account
    return accounts


def _best_step(slope: _Slope, step: float, steps: Sequence[float]) -> tuple[float, float]:
    """The step, within the range of `steps`, at which a h^2 + r / h is smallest, a and r read off
    this one; and that least.
    """
    balance = step * (slope.rounding / (2 * max(slope.truncation, 1e-300))) ** (1 / 3)
    best = min(max(balance, steps[-1]), steps[0])
    return best, slope.truncation * (best / step) ** 2 + slope.rounding * step / best


def _certificate(
    linearisation: str,
    layers: Sequence[int],
    claim: Claim,
    slope: _Slope,
    bar: float,
    passes: int,
) -> Account:
    """The certificate of a claim, from a difference and its error bar. Raises `InputError` where
    there is none.

    `error`: |finite difference - sum_i J_i t_i| / sqrt(sum_i |J_i t_i|^2), the largest of all
    layers. `passes`: moved prompts that went through.

    `within`: with 95% confidence over the random direction the Jacobians of the lowest layer,
    each at the size of its step, are within this share of the true ones' size (Frobenius norm); the
    error bar of the difference is in it. A difference Delta J shows in one direction as |Delta J
    t|, whose square has the mean ||Delta J||_F^2. It is below 1 / `_UNSEEN`^2 of that mean in 5% of
    cases at most: where Delta J has rank one, a chi-squared of one degree of freedom.
    """
    errors, size, dtype = claim.errors(slope), claim.size, claim.field.dtype
    for layer, error in zip(layers, errors.tolist(), strict=True):
        if not error <= 4 * bar + _TOLERANCE[dtype] * size:
            what = "y_n" if claim.outputs is None else "W y_n"
            raise InputError(
                f"the {linearisation} Jacobian failed its check at layer {layer}: moving every "
                f"token by a small random step moves {what} by {float(slope.change.norm()):.4g} a "
                f"unit, what J says differs from it by {error:.2g} (error bar {bar:.2g}); its "
                "norms are not to be trusted"
            )
    if not bar < _INFORMATIVE * size:
        raise InputError(
            f"the {linearisation} Jacobian cannot be checked: the network is too steep here for "
            f"finite differences in {str(dtype).removeprefix('torch.')} (error bar "
            f"{bar / size if size else 1:.0%}): load the model with dtype='float64'"
        )
    within = _UNSEEN * (float(errors[0]) + bar) / size
    return {"error": float(errors.max()) / size, "within": within, "passes": passes}


def _slopes(
    linear: Linearised, claims: Mapping[str, Claim], steps: Mapping[str, Sequence[float]]
) -> dict[str, list[_Slope]]:
    """Central differences along the field of each claim that has `steps`, of each of them."""
    moves = [(name, sign * step) for name in steps for step in steps[name] for sign in (1, -1)]
    moved_streams = torch.stack([linear.stream + step * claims[name].field for name, step in moves])
    choices = [FROZEN_PARTS[name] for name, _ in moves]
    y, streams = moved_prompts(linear, moved_streams, choices)
    slopes: dict[str, list[_Slope]] = {name: [] for name in steps}
    for index in range(0, len(moves), 2):
        (name, step), claim, pair = moves[index], claims[moves[index][0]], slice(index, index + 2)
        up, down = claim.output(y[pair])
        curvature = float((up + down - 2 * claim.output(linear.y)).norm()) / (2 * step)
        # Rounding grows with W: a sum like w^T y may be far smaller than what is added.
        outputs = claim.outputs
        gain = 1.0 if outputs is None else float(outputs.double().norm()) / outputs.shape[-1] ** 0.5
        rounding = ROUNDING[y.dtype] * float(y[pair].norm(dim=-1).max()) * gain
        # The terms of odd and even order are taken to fall alike: what the h^2 term is off is the
        # square of what the h term is.
        truncation = curvature**2 / max(claim.size, 1e-300)
        moves_above = (streams[index] - streams[index + 1]) / (2 * step)
        slopes[name].append(
            _Slope((up - down) / (2 * step), moves_above, truncation, rounding / step)
        )
    return slopes


def _products(
    jacobian_rows: Float[Tensor, "place d_out d_model"], field: Float[Tensor, "pos d_model"]
) -> Float[Tensor, "pos d_out"]:
    """J_i t_i at the first places, as many as there are t_i, in float64."""
    return (jacobian_rows[: len(field)] @ field.to(jacobian_rows)[..., None])[..., 0].double()


def _decide(slopes: Sequence[_Slope]) -> tuple[_Slope, float]:
    """Central difference, of those by step, that its neighbours and rounding bound best; and that
    bound.

    Two may agree by chance where the network is steep: of several steps each is held against both
    of its neighbours.
    """
    gaps = [float((wide.change - narrow.change).norm()) for wide, narrow in pairwise(slopes)]
    around = [max(gap, following) for gap, following in zip(gaps, [*gaps[1:], 0.0], strict=True)]
    bars = [gap + 2 * slope.rounding for gap, slope in zip(around, slopes[1:], strict=True)]
    return min(zip(slopes[1:], bars, strict=True), key=lambda pair: pair[1])


def _sum_account(linear: Linearised, linearisation: str, claim: Claim) -> Account:
    """sum_i J_i v_i + bias terms = y_n, for a linearisation that holds all parts; the error,
    relative to what is added, and of one number the bias terms.

    The bias terms are what the network, held at this prompt, makes of v = 0. Raises `InputError`
    where they do not add up within the rounding of the dtype. Cost: one forward pass.
    """
    none = torch.zeros_like(linear.stream)[None]
    y_of_none, _ = moved_prompts(linear, none, [FROZEN_PARTS[linearisation]])
    bias = claim.output(y_of_none[0])
    y, total = claim.output(linear.y), claim.homogeneous
    error = float((total + bias - y).norm() / (total.norm() + bias.norm() + y.norm()))
    if not error <= _ADDS_UP[none.dtype]:
        raise InputError(
            "the detached linearisation failed its check: sum_i J_i v_i + bias terms differs from "
            f"y_n by {error:.2g} of what is added, expected {_ADDS_UP[none.dtype]:g} at most. "
            "Either an edit is active that the held network does not repeat, or rounding in "
            "float32 is too large: leave the edit's block, or load the model with dtype='float64'"
        )
    account: Account = {"adds_up_within": error}
    return account | ({"bias_terms": float(bias)} if len(bias) == 1 else {})


def moved_prompts(
    linear: Linearised,
    streams: Float[Tensor, "row pos d_model"],
    choices: Sequence[HeldParts],
) -> tuple[Float[Tensor, "row d_model"], Float[Tensor, "row layer pos d_model"]]:
    """y_n from every moved v^(l) of the lowest of the measured layers, and v^(l) of those above it.
    What a row's choice holds has the values of the prompt that was linearised.
    """
    model, holding = linear.model, linear.holding
    lowest, *above = linear.layers
    imposes = any(map(any, choices))
    along = int(imposes and not holding.keeps)
    rows_at_once = max(1, _SQUARES // (int(model.cfg.n_heads) * streams.shape[1] ** 2))
    sites = {layer: _point(model, layer) for layer in linear.layers if layer}
    final_norm = points(model, "final_norm")[None]
    last_rows, streams_above = [], []
    for start in range(0, len(streams), rows_at_once):
        part = slice(start, start + rows_at_once)
        rows, imposing = streams[part], nullcontext()
        if along:  # the prompt goes along: its row shows what is held
            rows = torch.cat([linear.stream[None], rows])
        if imposes:
            imposing = holding.imposing([HeldParts()] * along + list(choices[part]))
        record: dict[int | None, Tensor] = {}
        # Whatever an edit would make of the lowest layer; at the embeddings a pass starts there.
        placements = [(sites[lowest], lambda _, rows=rows: rows, Order.OBSERVE)] if lowest else []
        observed = {None: final_norm} | {layer: sites[layer] for layer in above}
        placements += [
            (point, partial(record.__setitem__, layer), Order.OBSERVE)
            for layer, point in observed.items()
        ]
        with torch.no_grad(), imposing, attached(placements):
            run_from(model, rows, min(lowest, int(model.cfg.n_layers) - 1), no_logits(model))
        last_rows.append(record[None][along:, -1])
        by_layer = [record[layer][along:] for layer in above]
        streams_above.append(torch.stack(by_layer, 1) if by_layer else rows[along:, None][:, :0])
    return torch.cat(last_rows), torch.cat(streams_above)


def _point(model: TransformerBridge, layer: int) -> HookPoint:
    """The hook point of v^(layer) above the embeddings."""
    last = int(model.cfg.n_layers)
    site, block = ("residual_pre", layer) if layer < last else ("residual_post", last - 1)
    return points(model, site, [block])[block]
