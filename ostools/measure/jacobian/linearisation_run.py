"""The linearisations of one prompt, each stage by stage: linearise (by which route, in how much memory), measure, certify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.formulas.forward import Forward, forward
from ostools.measure.jacobian import norms as jacobian_norms
from ostools.measure.jacobian.certificate import (
    FROM_EMBEDDINGS,
    FROZEN,
    Parts,
    certify,
    certify_sum,
    require_same_logits,
)
from ostools.measure.jacobian.memory import fits, plan
from ostools.measure.jacobian.norms import choose_method, most_rows, sketched
from ostools.measure.jacobian.routes import FROZEN_PARTS, AutogradRoute, Linearised, Route, freezing
from ostools.measure.passes.contexts import run_from, strips_where_long
from ostools.models import Prompt
from ostools.models.bridge import Choices, held_choices, noted_choices
from ostools.models.shape import Shape

METHODS = ("auto", "exact", "sketch", "estimate")

_ORACLE = {torch.float32: 1e-2, torch.float64: 1e-6}

PerPlace = Float[Tensor, " place"]
Columns = Mapping[str, PerPlace]
NORMS = tuple(f"{norm}_{column}" for norm in ("operator", "frobenius") for column in ("norm", "lower", "upper"))
"""What is measured at every place: two norms, each with its limits."""


@dataclass(frozen=True)
class JacobianOptions:
    """Options of a sensitivity: which linearisations, at which layers, and how; of w^T y_n where `logit` = w. `max_memory` None
    means what is free."""

    names: Sequence[str]
    layers: Sequence[int]
    method: str
    cotangents: int
    max_memory: int | None
    seed: int
    logit: Float[Tensor, " d_model"] | None = None


@dataclass(frozen=True)
class Start:
    """Start of every linearisation of a prompt: v^(0), the last token's logits of the plain pass, the pass that the
    formulas read (None: each its own), the experts chosen in it, and what one linearisation leaves to the next, by block."""

    ids: Int[Tensor, " pos"]
    embedded: Float[Tensor, "pos d_model"]
    logits: Float[Tensor, "1 d_vocab"]
    read: Forward | None
    choices: Choices | None = None
    cores: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Start:
        """After proving that the pass from v^(0) gives the same logits: those of the last token, whose Jacobian is meant."""
        ids = ids.to(next(model.parameters()).device)
        with noted_choices(model, len(ids)) as choices:
            try:
                read: Forward | None = forward(model, ids)
                plain = read.logits
            except InputError:  # each linearisation says why
                read = None
                with torch.no_grad():
                    plain = model(ids[None], logits_to_keep=1)[0]
        with torch.no_grad():
            embedded = model.input_to_embed(ids[None])[0][0].detach()
            from_embedding = run_from(model, embedded[None])[0]
        require_same_logits(plain, from_embedding, "the forward pass from embeddings", FROM_EMBEDDINGS)
        return cls(ids, embedded, plain, read, choices)


@dataclass(frozen=True)
class MeasuredNorms:
    """`NORMS` at every place, float64 on the CPU, and `account`: how they were computed and checked."""

    columns: Columns
    method: str
    account: Mapping[str, Any]


Row = Callable[[Float[Tensor, " d_model"]], Float[Tensor, "place d_model"]]


class _Products(NamedTuple):
    """Products for the checks: W J_i t_i of a field t at the lowest layer, g^T J_i at every place, and W (None: all of y_n)."""

    parts: Parts
    row: Row
    outputs: Float[Tensor, "out d_model"] | None


def measured(
    model: TransformerBridge, prompt: Prompt, options: JacobianOptions, progress: Progress | None
) -> dict[str, MeasuredNorms]:
    """The norms of one prompt, by linearisation."""
    names, norms_by_name = options.names, {}
    with strips_where_long(model, len(prompt.ids)):
        start = Start.of(model, prompt.ids)
        for index, name in enumerate(names):
            name_progress = part_of(progress, index, index + 1, len(names), units=100)
            norms_by_name[name] = LinearisationRun(model, start, name, options).measured(name_progress)
    return norms_by_name


@dataclass(frozen=True)
class LinearisationRun:
    """d y_n / d v_i^(l) at every layer l and token i that is asked for, with what the linearisation `name` holds constant."""

    model: TransformerBridge
    start: Start
    name: str
    options: JacobianOptions

    def measured(self, progress: Progress | None) -> MeasuredNorms:
        """Linearise, take the norms, certify them. Raises `InputError` where a check fails."""
        route, method, account = self._linearised()
        norms = self._exact if method == "exact" else self._sketched
        columns, products, reached_accuracy = norms(route, progress)
        account |= self._checked(account["route"], columns, products)
        if method != "exact":  # which tells each block of its rows
            tell(progress, 1, 1)
        return MeasuredNorms(columns, method, account | reached_accuracy)

    def logit_gradient(self) -> tuple[Float[Tensor, "place d_model"], dict[str, Any]]:
        """w^T J_i at every place, for the `logit` w of the options; and how it was computed and checked."""
        route, _, account = self._linearised()
        columns, products, _ = self._exact(route, None)
        checks = self._checked(account["route"], columns, products)
        return products.row(self.start.embedded.new_ones(1)), account | checks

    def _checked(self, route_name: str, columns: Columns, products: _Products) -> dict[str, Any]:
        """Every check of the Jacobian, and the account of it. Raises `InputError` where one fails."""
        _require_sound(columns["frobenius_norm"], self.name)
        account: dict[str, Any] = {"certificate": self._certified(route_name, products)}
        if FROZEN_PARTS[self.name].all:
            where = self.model, self.start.embedded, self.name, self.options.layers[0]
            account["adds_up_within"] = certify_sum(*where, products.parts, products.outputs)
        if self.start.choices is not None:
            account["experts"] = self.start.choices.account
        return account

    def _linearised(self) -> tuple[Route, str, dict[str, Any]]:
        """Linearise by the formulas; by autograd where they do not know the model or an edit. The products, the method by which
        norms are taken, and how both were chosen."""
        start, options = self.start, self.options
        d_model, is_logit = start.embedded.shape[-1], options.logit is not None
        limit = options.max_memory
        limit = chunk(available_memory(start.embedded.device)) if limit is None else limit
        size_arguments = Shape.of(self.model), len(start.embedded), len(options.layers)
        within: dict[str, Any] = {"live": not FROZEN_PARTS[self.name].attention, "max_memory": limit}
        method, reason = ("exact", "one row") if is_logit else (options.method, "as asked")
        if method == "auto":
            method, reason = choose_method(d_model, exact_fits=fits(*size_arguments, **within))
        exact_rows = 1 if is_logit else None
        within["rows"] = exact_rows if method == "exact" else most_rows(d_model, method, options.cotangents)
        account = {"route": "analytic", "reason": reason}
        memory_plan = plan(*size_arguments, **within)
        try:
            cores = start.cores if memory_plan.cores else None
            route: Route = Linearised(
                self.model, start.ids, self.name, options.layers, memory_plan.chunk, start.read, cores
            )
        except InputError as error:
            memory_plan = plan(*size_arguments, **within, by_autograd=True)
            account |= {"route": "autograd", "why": str(error)}
            route = self._by_autograd(memory_plan.chunk)
        return route, method, account | {"plan": str(memory_plan)}

    def _by_autograd(self, rows: int) -> AutogradRoute:
        """After proving that what is held constant leaves the logits as they are."""
        if FROZEN_PARTS[self.name].any:
            with torch.no_grad(), freezing(self.model, self.name):
                frozen_logits = self.model(self.start.ids[None], logits_to_keep=1)
            require_same_logits(self.start.logits, frozen_logits[0], f"the {self.name} forward pass", FROZEN)
        freeze, layers = freezing(self.model, self.name), tuple(self.options.layers)
        with held_choices(self.model, self.start.choices):
            return AutogradRoute(self.model, self.start.embedded, freeze=freeze, rows=rows, layers=layers)

    def _exact(self, route: Route, progress: Progress | None) -> tuple[Columns, _Products, dict[str, Any]]:
        """The norms, and the products that are read off the rows."""
        like, logit = self.start.embedded, self.options.logit
        rows = jacobian_norms.exact_jacobians(route, like, progress, logit)
        operator, frobenius = (norm.cpu() for norm in jacobian_norms.exact_norms(rows, like.device))
        outputs = None if logit is None else logit[None]
        products = _Products(jacobian_norms.token_products(rows), jacobian_norms.row_products(rows), outputs)
        return dict(zip(NORMS, [operator] * 3 + [frobenius] * 3, strict=True)), products, {}

    def _sketched(self, route: Route, progress: Progress | None) -> tuple[Columns, _Products, dict[str, Any]]:
        """The norms estimated; the products read off the first rows; how many rows there were, and which error was reached."""
        options, like = self.options, self.start.embedded
        cotangents = None if options.method == "estimate" else options.cotangents
        generator = torch.Generator().manual_seed(options.seed)
        norms = sketched(route, like, generator, cotangents=cotangents, confidence=jacobian_norms.CONFIDENCE)
        # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
        operator = (torch.full_like(norms.frobenius, float("nan")), norms.operator_lower, norms.frobenius_upper)
        frobenius = (norms.frobenius, norms.frobenius_lower, norms.frobenius_upper)
        reached_accuracy = {"cotangents": norms.rows_seen, "relative_error_reached": norms.relative_error}

        def row(cotangent: Float[Tensor, " d_model"]) -> Float[Tensor, "place d_model"]:
            return route.pull(cotangent[None])[0]

        products = _Products(jacobian_norms.token_products(norms.rows), row, norms.cotangents.to(like.device))
        return dict(zip(NORMS, operator + frobenius, strict=True)), products, reached_accuracy

    def _certified(self, route_name: str, products: _Products) -> dict[str, Any]:
        """Certify by finite differences; by autograd too where these say nothing."""
        where = self.model, self.start.embedded, self.name
        with held_choices(self.model, self.start.choices):
            certificate = asdict(certify(*where, products.parts, self.options.layers[0], products.outputs))
        if route_name == "analytic" and not certificate["informative"]:
            certificate["against_autograd"] = self._against_autograd(products.row)
        return certificate

    def _against_autograd(self, row: Row) -> float:
        """Compare one random row by both routes, where finite differences say nothing (at the edge of a step, in float32)."""
        like = self.start.embedded
        cotangent = torch.randn(1, like.shape[-1], generator=torch.Generator().manual_seed(0)).to(like)
        cotangent = cotangent if self.options.logit is None else self.options.logit.to(like)[None]
        oracle = self._by_autograd(1).pull(cotangent)[0]
        # Of a logit the one row is w^T J itself.
        formula_row = row(cotangent[0] if self.options.logit is None else like.new_ones(1))
        error = float((formula_row - oracle).norm() / oracle.norm())
        if not error <= _ORACLE[like.dtype]:
            raise InputError(
                f"the {self.name} Jacobian differs from autograd's by {error:.2g} of its size, and the network is too "
                f"steep here for finite differences to decide: load the model with dtype='float64'"
            )
        return error


def _require_sound(frobenius: PerPlace, linearisation: str) -> None:
    if not bool(torch.isfinite(frobenius).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((frobenius > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the last token"
        )
