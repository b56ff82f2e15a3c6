"""One linearisation of one prompt, stage by stage: linearise (by which route, in how much memory), measure, certify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, tell
from ostools.measure.formulas.forward import Forward
from ostools.measure.jacobian import norms as jacobian_norms
from ostools.measure.jacobian.certificate import FROZEN, Parts, certify, certify_sum, require_same_logits
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.jacobian.memory import MemoryPlan, fits, plan
from ostools.measure.jacobian.norms import Stop, choose_method, most_rows, sketched
from ostools.measure.jacobian.routes import FROZEN_PARTS, AutogradRoute, Route, freezing
from ostools.models.shape import Shape

METHODS = ("auto", "exact", "sketch", "estimate")

_ORACLE = {torch.float32: 1e-2, torch.float64: 1e-6}
# Of one token's part of a row, where prompts share a certificate: one that rounds worse has to have its own.
_AGREED = {torch.float32: 1e-3, torch.float64: 1e-9}
_MATTERS = 1e-6

PerPlace = Float[Tensor, " place"]
Columns = Mapping[str, PerPlace]
NORMS = tuple(f"{norm}_{column}" for norm in ("operator", "frobenius") for column in ("norm", "lower", "upper"))
"""What is measured at every place: two norms, each with its limits."""


@dataclass(frozen=True)
class Settings:
    """Settings of `sensitivity`; `max_memory` None means what is free."""

    method: str
    cotangents: int
    relative_error: float
    confidence: float
    max_memory: int | None
    seed: int


@dataclass(frozen=True)
class Start:
    """Start of every linearisation of a prompt: v^(0), the last token's logits of the plain pass, the pass that the
    formulas read (None: each its own), and what one linearisation leaves to the next, by block."""

    ids: Int[Tensor, " pos"]
    embedded: Float[Tensor, "pos d_model"]
    logits: Float[Tensor, "1 d_vocab"]
    read: Forward | None
    cores: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Oracle:
    """One random row g^T J_i at every place, by autograd: what a prompt is checked against whose pass was certified already.

    `prompt`: the one of the call, from 1, that finite differences certified.
    """

    cotangent: Float[Tensor, " d_model"]
    row: Float[Tensor, "place d_model"]
    prompt: int


@dataclass(frozen=True)
class MeasuredNorms:
    """`NORMS` at every place, float64 on the CPU, and `account`: how they were computed and checked."""

    columns: Columns
    method: str
    account: Mapping[str, Any]


Row = Callable[[Float[Tensor, " d_model"]], Float[Tensor, "place d_model"]]


@dataclass(frozen=True)
class _Products:
    """Products for the checks: W J_i t_i of a field t at the lowest layer, g^T J_i at every place, and W (None: all of y_n)."""

    parts: Parts
    row: Row
    outputs: Float[Tensor, "out d_model"] | None


@dataclass(frozen=True)
class _Linear:
    """The network linearised: products with its Jacobians, by which method their norms are taken, and in which steps."""

    route: Route
    method: str
    plan: MemoryPlan
    account: Mapping[str, Any]


@dataclass(frozen=True)
class LinearisationRun:
    """d y_n / d v_i^(l) at every layer l of `layers` and token i, with what the linearisation `name` holds constant; of w^T y_n
    where `logit` = w."""

    model: TransformerBridge
    start: Start
    name: str
    layers: Sequence[int]
    settings: Settings
    logit: Float[Tensor, " d_model"] | None = None

    def measured(
        self, announce: Callable[[str], None] | None, progress: Progress | None, oracle: Oracle | None = None
    ) -> MeasuredNorms:
        """Measure the norms, certified by finite differences, or checked against the `oracle` where there is one.

        Raises `InputError` where a check fails; `announce` is told the forecast of its memory.
        """
        linear = self._linearised(announce)
        norms = self._exact if linear.method == "exact" else self._sketched
        with norms(linear, progress) as (columns, products, reached_accuracy):
            _require_sound(columns["frobenius_norm"], self.name)
            if oracle is not None and linear.account["route"] == "analytic":
                checked = self._agreed(oracle, products.row)
            else:
                checked = self._certified(linear, products)
            if FROZEN_PARTS[self.name].all:
                checked = {**checked, "adds_up_within": self._adds_up(products)}
        if linear.method != "exact":  # which tells each block of its rows
            tell(progress, 1, 1)
        return MeasuredNorms(columns, linear.method, {**linear.account, **checked, **reached_accuracy})

    def _linearised(self, announce: Callable[[str], None] | None) -> _Linear:
        """Linearise by the formulas; by autograd where they do not know the model or an edit."""
        embedded, settings = self.start.embedded, self.settings
        limit = chunk(available_memory(embedded.device)) if settings.max_memory is None else settings.max_memory
        size_arguments = Shape.of(self.model), len(embedded), len(self.layers)
        within: dict[str, Any] = {"live": not FROZEN_PARTS[self.name].attention, "max_memory": limit}
        method, reason = settings.method, "as asked"
        if self.logit is not None:
            method, reason = "exact", "one row"
        elif method == "auto":
            method, reason = choose_method(embedded.shape[-1], exact_fits=fits(*size_arguments, **within))
        exact_rows = None if self.logit is None else 1
        sketch_rows = most_rows(embedded.shape[-1], method, settings.cotangents)
        within["rows"] = exact_rows if method == "exact" else sketch_rows
        memory_plan = plan(*size_arguments, **within)
        if announce is not None:
            announce(f"{self.name}, {method}: {memory_plan}")
        account = {"route": "analytic", "reason": reason}
        try:
            route: Route = self._by_formulas(memory_plan)
        except InputError as error:
            memory_plan = plan(*size_arguments, **within, by_autograd=True)
            if announce is not None:
                announce(f"{self.name}, {method}, by autograd: {memory_plan}")
            account |= {"route": "autograd", "why": str(error)}
            route = self._by_autograd(memory_plan.chunk)
        return _Linear(route, method, memory_plan, account | {"plan": str(memory_plan)})

    def _by_formulas(self, memory_plan: MemoryPlan) -> Linearised:
        start = self.start
        cores = start.cores if memory_plan.cores else None
        return Linearised(self.model, start.ids, self.name, self.layers, memory_plan.chunk, start.read, cores)

    def _by_autograd(self, rows: int) -> AutogradRoute:
        """After proving that what is held constant leaves the logits as they are."""
        if FROZEN_PARTS[self.name].any:
            with torch.no_grad(), freezing(self.model, self.name):
                frozen_logits = self.model(self.start.ids[None], logits_to_keep=1)
            require_same_logits(self.start.logits[None], frozen_logits, f"the {self.name} forward pass", FROZEN)
        freeze = freezing(self.model, self.name)
        return AutogradRoute(self.model, self.start.embedded, freeze=freeze, rows=rows, layers=tuple(self.layers))

    @contextmanager
    def _exact(self, linear: _Linear, progress: Progress | None) -> Iterator[tuple[Columns, _Products, dict[str, Any]]]:
        """The norms, and the products that are read off the rows, which last as long as the block."""
        like = self.start.embedded
        with jacobian_norms.exact_jacobians(linear.route, like, linear.plan.rows_on_disk, progress, self.logit) as rows:
            norms = jacobian_norms.exact_norms(rows, like.device)
            operator, frobenius = norms.operator.cpu(), norms.frobenius.cpu()
            outputs = None if self.logit is None else self.logit[None]
            products = _Products(jacobian_norms.token_products(rows), jacobian_norms.row_products(rows), outputs)
            yield dict(zip(NORMS, [operator] * 3 + [frobenius] * 3, strict=True)), products, {}

    @contextmanager
    def _sketched(
        self, linear: _Linear, progress: Progress | None
    ) -> Iterator[tuple[Columns, _Products, dict[str, Any]]]:
        """The norms estimated; the products read off the first rows; how many rows there were, and which error was reached."""
        settings, like = self.settings, self.start.embedded
        cotangents = settings.cotangents if linear.method == "sketch" else None
        stop = Stop(cotangents, settings.relative_error, settings.confidence)
        generator = torch.Generator().manual_seed(settings.seed)
        with sketched(linear.route, like, stop, generator, linear.plan.rows_on_disk) as sketch:
            norms = sketch.estimates
            # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
            operator = (torch.full_like(norms.frobenius, float("nan")), norms.operator_lower, norms.frobenius_upper)
            frobenius = (norms.frobenius, norms.frobenius_lower, norms.frobenius_upper)
            reached_accuracy = {"cotangents": len(norms.squares), "relative_error_reached": norms.relative_error}

            def row(cotangent: Float[Tensor, " d_model"]) -> Float[Tensor, "place d_model"]:
                return linear.route.pull(cotangent[None])[0]

            products = _Products(jacobian_norms.token_products(sketch.rows), row, sketch.cotangents.to(like.device))
            yield dict(zip(NORMS, operator + frobenius, strict=True)), products, reached_accuracy

    def _certified(self, linear: _Linear, products: _Products) -> dict[str, Any]:
        """Certify by finite differences; by autograd too where these say nothing."""
        where = self.model, self.start.embedded, self.name
        certificate_fields = asdict(certify(*where, products.parts, self.layers[0], products.outputs))
        if linear.account["route"] == "analytic" and not certificate_fields["informative"]:
            certificate_fields["against_autograd"] = self._against_autograd(products.row)
        return {"certificate": certificate_fields}

    def _adds_up(self, products: _Products) -> float:
        """Check of a linear network: its parts against y_n, at the lowest layer."""
        where = self.model, self.start.embedded, self.name, self.layers[0]
        return certify_sum(*where, products.parts, products.outputs)

    def _against_autograd(self, row: Row) -> float:
        """Compare one random row by both routes, where finite differences say nothing (at the edge of a step, in float32)."""
        like = self.start.embedded
        cotangent = torch.randn(1, like.shape[-1], generator=torch.Generator().manual_seed(0)).to(like)
        cotangent = cotangent if self.logit is None else self.logit.to(like)[None]
        oracle = self._by_autograd(1).pull(cotangent)[0]
        mine = row(cotangent[0] if self.logit is None else like.new_ones(1))  # its one row is w^T J itself
        error = float((mine - oracle).norm() / oracle.norm())
        if not error <= _ORACLE[like.dtype]:
            raise InputError(
                f"the {self.name} Jacobian differs from autograd's by {error:.2g} of its size, and the network is too "
                f"steep here for finite differences to decide: load the model with dtype='float64'"
            )
        return error

    def _agreed(self, oracle: Oracle, row: Row) -> dict[str, Any]:
        """Every token's part of the row against autograd's; of one below a millionth of the largest against that."""
        sizes = oracle.row.norm(dim=-1)
        errors = (row(oracle.cotangent) - oracle.row).norm(dim=-1) / sizes.clamp_min(_MATTERS * float(sizes.max()))
        error = float(errors.max())
        if not error <= _AGREED[oracle.row.dtype]:
            raise InputError(
                f"the {self.name} Jacobian differs from autograd's by {error:.2g} of its size at one token"
            )
        return {"shared_certificate": {"prompt": oracle.prompt, "against_autograd": error, "smallest_share": _MATTERS}}


def _require_sound(frobenius: PerPlace, linearisation: str) -> None:
    if not bool(torch.isfinite(frobenius).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((frobenius > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the last token"
        )
