"""One linearisation of one prompt, from the choice of the route to the certificate of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.jacobian import exact
from ostools.measure.jacobian.certificate import Product, certify
from ostools.measure.jacobian.cost import choose_method
from ostools.measure.jacobian.estimate import estimate_norms, most_rows
from ostools.measure.jacobian.linear import Linearised
from ostools.measure.jacobian.linearisations import HELD, freezing
from ostools.measure.jacobian.memory import Plan, available_memory, fits, plan
from ostools.measure.jacobian.routes import AutogradRoute, InBlocks, Route
from ostools.models.shape import Shape
from ostools.theory.chunks import chunk

METHODS = ("auto", "exact", "estimate")

# Running from embeddings may round otherwise than running from tokens; freezing changes no value at all.
_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}
_ORACLE = {torch.float32: 1e-2, torch.float64: 1e-6}
_FROZEN_ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}

PerPlace = Float[Tensor, " place"]


@dataclass(frozen=True)
class Settings:
    """What the caller of `sensitivity` asked for; `max_memory` None means what is free."""

    method: str
    relative_error: float
    confidence: float
    max_memory: int | None
    seed: int


@dataclass(frozen=True)
class Measured:
    """Norms at every place, float64 on the CPU, and `account`: how they were computed and checked."""

    NORMS: ClassVar[tuple[str, ...]] = (
        "operator_norm",
        "operator_lower",
        "operator_upper",
        "frobenius_norm",
        "frobenius_lower",
        "frobenius_upper",
    )

    operator_norm: PerPlace
    operator_lower: PerPlace
    operator_upper: PerPlace
    frobenius_norm: PerPlace
    frobenius_lower: PerPlace
    frobenius_upper: PerPlace
    method: str
    account: Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """Where every linearisation of a prompt starts: v^(0), and the plain pass's logits at the last token."""

    embedded: Float[Tensor, "pos d_model"]
    logits: Float[Tensor, "1 1 d_vocab"]


@dataclass(frozen=True)
class _Run:
    """One linearisation about to be measured: the network, the products with its Jacobians, and how far to go."""

    model: TransformerBridge
    embedded: Float[Tensor, "pos d_model"]
    linearisation: str
    layers: Sequence[int]
    route: Route
    way: Plan
    settings: Settings
    progress: Progress | None

    @property
    def places(self) -> int:
        return len(self.embedded) * len(self.layers)

    def certificate(self, product: Product) -> dict[str, Any]:
        """Of the lowest layer, by finite differences."""
        return asdict(certify(self.model, self.embedded, self.linearisation, product, self.layers[0]))


def measured(
    model: TransformerBridge,
    ids: Int[Tensor, " pos"],
    start: Start,
    linearisation: str,
    layers: Sequence[int],
    settings: Settings,
    announce: Callable[[str], None] | None,
    progress: Progress | None,
) -> Measured:
    """The norms of d y_n / d v_i^(l) at every layer l of `layers` and token i."""
    _require_frozen_is_plain(model, ids, start, linearisation)
    embedded, live = start.embedded, not HELD[linearisation].attention
    limit = chunk(available_memory(embedded.device)) if settings.max_memory is None else settings.max_memory
    shape, d_model = Shape.of(model), embedded.shape[-1]
    method, reason = settings.method, "as asked"
    if method == "auto":
        choice = choose_method(d_model, exact_fits=fits(shape, len(ids), len(layers), live=live, max_memory=limit))
        method, reason = choice.method, choice.reason
    kept = None if method == "exact" else most_rows(d_model)
    way = plan(shape, len(ids), len(layers), live=live, max_memory=limit, rows=kept)
    if announce is not None:
        announce(f"{linearisation}, {method}: {way}")
    account: dict[str, Any] = {"route": "analytic", "reason": reason}
    try:
        route: Route = Linearised(model, ids, linearisation, layers)
    except InputError as error:  # an edit or a model that the formulas do not know: autograd measures whatever runs
        way = plan(shape, len(ids), len(layers), live=live, max_memory=limit, rows=kept, by_autograd=True)
        if announce is not None:
            announce(f"{linearisation}, {method}, by autograd: {way}")
        account |= {"route": "autograd", "why": str(error)}
        route = AutogradRoute(
            model, embedded, freeze=freezing(model, linearisation), rows=way.chunk, layers=tuple(layers)
        )
    account["plan"] = str(way)
    run = _Run(model, embedded, linearisation, layers, InBlocks(route, way.chunk), way, settings, progress)
    found = _exact(run, account) if method == "exact" else _estimate(run, account)
    if account["route"] == "analytic" and not account["certificate"]["informative"]:
        account["certificate"]["against_autograd"] = _checked_by_autograd(run)
    return found


def _checked_by_autograd(run: _Run) -> float:
    """Where finite differences say nothing (a network at the edge of a step, in float32): one random row by both routes."""
    like, freeze = run.embedded, freezing(run.model, run.linearisation)
    cotangent = torch.randn(1, like.shape[-1], generator=torch.Generator().manual_seed(0)).to(like)
    oracle = AutogradRoute(run.model, like, freeze=freeze, rows=1, layers=tuple(run.layers)).pull(cotangent)
    error = float((run.route.pull(cotangent) - oracle).norm() / oracle.norm())
    if not error <= _ORACLE[like.dtype]:
        raise InputError(
            f"the {run.linearisation} Jacobian differs from autograd's by {error:.2g} of its size, and the network is too "
            f"steep here for finite differences to decide: load the model with dtype='float64'"
        )
    return error


def _exact(run: _Run, account: dict[str, Any]) -> Measured:
    way = run.way
    with exact.jacobians(run.route, run.places, run.embedded, way.chunk, way.on_disk, run.progress) as rows:
        norms = exact.norms(rows, run.embedded.device)
        _require_sound(norms.frobenius, run.linearisation)
        account["certificate"] = run.certificate(exact.product(rows))
    operator, frobenius = norms.operator.cpu(), norms.frobenius.cpu()
    return Measured(operator, operator, operator, frobenius, frobenius, frobenius, "exact", account)


def _estimate(run: _Run, account: dict[str, Any]) -> Measured:
    settings = run.settings
    found = estimate_norms(
        run.route,
        run.embedded.shape[-1],
        relative_error=settings.relative_error,
        confidence=settings.confidence,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    _require_sound(found.frobenius, run.linearisation)

    def product(place: int, direction: Float[Tensor, " d_model"]) -> Float[Tensor, " d_out"]:
        tangents = direction.new_zeros(1, run.places, len(direction))
        tangents[0, place] = direction
        return run.route.push(tangents)[0]

    account["certificate"] = run.certificate(product)
    account |= {"passes": found.passes, "relative_error_reached": found.relative_error}
    if run.progress is not None:
        run.progress(1, 1)
    return Measured(
        operator_norm=found.operator_lower,
        operator_lower=found.operator_lower,
        operator_upper=found.operator_upper,
        frobenius_norm=found.frobenius,
        frobenius_lower=found.frobenius_lower,
        frobenius_upper=found.frobenius_upper,
        method="estimate",
        account=account,
    )


def checked_start(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Start:
    """v^(0) and the plain logits of the prompt, after proving that the pass from v^(0) gives the same.

    Those of the last token, whose Jacobian is meant: a large vocabulary's at every token would outweigh the rest of the run.
    """
    with torch.no_grad():
        embedded = model.input_to_embed(ids[None])[0].detach()
        plain, from_embedding = model(ids[None], logits_to_keep=1), model(embedded, start_at_layer=0, logits_to_keep=1)
    _require_same_logits(plain, from_embedding, "the forward pass from embeddings", _ROUNDING)
    return Start(embedded[0], plain)


def _require_frozen_is_plain(
    model: TransformerBridge, ids: Int[Tensor, " pos"], start: Start, linearisation: str
) -> None:
    with torch.no_grad(), freezing(model, linearisation):
        held = model(ids[None], logits_to_keep=1)
    _require_same_logits(start.logits, held, f"the {linearisation} forward pass", _FROZEN_ROUNDING)


def _require_same_logits(expected: Tensor, found: Tensor, what: str, rounding: Mapping[torch.dtype, float]) -> None:
    if not bool(torch.isfinite(expected).all()):
        raise InputError("the model's logits on this prompt are not finite; its weights or its dtype are broken")
    difference = float((expected - found).abs().max() / expected.abs().max())
    if not difference <= rounding[expected.dtype]:
        raise InputError(
            f"{what} changed the logits by {difference:.2g} of their size; its Jacobian would mean nothing"
        )


def _require_sound(frobenius: PerPlace, linearisation: str) -> None:
    if not bool(torch.isfinite(frobenius).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((frobenius > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the last token"
        )
