"""The linearisations of one prompt, each stage by stage: linearise, measure, certify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.jacobian import norms as jacobian_norms
from ostools.measure.jacobian.certificate import Parts, certify, certify_sum, require_same_logits
from ostools.measure.jacobian.linearise import FROZEN_PARTS, BasePoint, Cotangents, Linearised, linearised
from ostools.measure.jacobian.memory import MemoryPlan, fits, plan
from ostools.measure.jacobian.norms import (
    ACCURACY,
    CONFIDENCE,
    Jacobians,
    MethodChoice,
    choose_method,
    most_rows,
    sketched,
)
from ostools.measure.passes.contexts import strips_where_long
from ostools.measure.passes.output import Output
from ostools.models import Prompt
from ostools.models.choices import Choices, held_choices, noted_choices
from ostools.models.shape import Shape

METHODS = ("auto", "exact", "sketch", "estimate")

PerPlace = Float[Tensor, " place"]
Columns = Mapping[str, PerPlace]
NORMS = tuple(f"{norm}_{column}" for norm in ("operator", "frobenius") for column in ("norm", "lower", "upper"))
"""What is measured at every place: two norms, each with its limits."""


@dataclass(frozen=True)
class JacobianOptions:
    """Options of a sensitivity: which linearisations, at which layers, and how; of w^T y_n where there is an `output`.
    `max_memory` None means what is free. accuracy: of an estimate, as `norms.sketched` takes it."""

    names: Sequence[str]
    layers: Sequence[int]
    method: str
    cotangents: int
    max_memory: int | None
    seed: int
    output: Output | None = None
    accuracy: float = ACCURACY


@dataclass(frozen=True)
class Start:
    """Start of every linearisation of a prompt: v^(0), the last token's logits and y_n of the plain pass, and the experts
    chosen in it."""

    embedded: Float[Tensor, "pos d_model"]
    logits: Float[Tensor, "1 d_vocab"]
    y: Float[Tensor, " d_model"]
    choices: Choices | None = None

    @classmethod
    def of(cls, model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Start:
        """Cost: one forward pass. Raises `InputError` for logits that are not finite."""
        ids = ids.to(next(model.parameters()).device)
        with (
            torch.no_grad(),
            noted_choices(model, len(ids)) as choices,
            hooks.capture(model, "final_norm") as record,
        ):
            plain = model(ids[None], logits_to_keep=1)[0]
        if not bool(torch.isfinite(plain).all()):
            raise InputError("the model's logits on this prompt are not finite; its weights or its dtype are broken")
        with torch.no_grad():
            embedded = model.input_to_embed(ids[None])[0][0].detach()
        return cls(embedded, plain, record["final_norm"][0, -1], choices)


@dataclass(frozen=True)
class MeasuredNorms:
    """`NORMS` at every place, float64 on the CPU, and `account`: how they were computed and checked."""

    columns: Columns
    method: str
    account: Mapping[str, Any]


def measured(
    model: TransformerBridge, prompt: Prompt, options: JacobianOptions, progress: Progress | None
) -> dict[str, MeasuredNorms]:
    """The norms of one prompt, by linearisation."""
    names, norms_by_name = options.names, {}
    with strips_where_long(model, len(prompt.ids)):
        start = Start.of(model, prompt.ids)
        if options.output is not None:
            options.output.check(model, start.logits[-1], start.y)
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
        method, memory_plan = self.planned()
        account: dict[str, Any] = {"reason": method.reason, "plan": str(memory_plan)}
        if method.method == "exact":
            base, rows = self._exact(memory_plan, progress)
            norms = (norm.cpu() for norm in jacobian_norms.exact_norms(rows, rows.device))
            columns: Columns = dict(zip(NORMS, [norm for norm in norms for _ in range(3)], strict=True))
            outputs = None if self.options.output is None else self.options.output.row[None]
        else:
            base, rows, outputs, columns, reached_accuracy = self._sketched(method.method, memory_plan)
            account |= reached_accuracy
        account |= self.checked(base, columns["frobenius_norm"], jacobian_norms.token_products(rows), outputs)
        tell(progress, 1, 1)
        return MeasuredNorms(columns, method.method, account)

    def gradient(self) -> tuple[Float[Tensor, "place d_model"], dict[str, Any]]:
        """w^T J_i at every place, for the output of the options; and how it was checked."""
        assert self.options.output is not None
        base, rows = self._exact(self.planned()[1], None)
        products, frobenius = jacobian_norms.token_products(rows), rows.double().norm(dim=(1, 2))
        return rows[:, 0], self.checked(base, frobenius, products, self.options.output.row[None])

    def planned(self) -> tuple[MethodChoice, MemoryPlan]:
        """The method, why, and the way through the memory."""
        embedded, options = self.start.embedded, self.options
        limit = chunk(available_memory(embedded.device)) if options.max_memory is None else options.max_memory
        size = Shape.of(self.model), len(embedded), len(options.layers)
        if options.output is not None:
            return MethodChoice("exact", "one row"), plan(*size, max_memory=limit, rows=1)
        method = MethodChoice(options.method, "as asked")
        if options.method == "auto":
            method = choose_method(embedded.shape[-1], exact_fits=fits(*size, max_memory=limit))
        rows = None if method.method == "exact" else most_rows(embedded.shape[-1], method.method, options.cotangents)
        return method, plan(*size, max_memory=limit, rows=rows)

    @contextmanager
    def linearised(self, memory_plan: MemoryPlan) -> Iterator[Linearised]:
        """After proving that what is held, and a start at v^(0), leave the logits as they are."""
        where = self.model, self.start.embedded, self.name, self.options.layers
        how = {"chunk": memory_plan.chunk, "whole": memory_plan.whole}
        with held_choices(self.model, self.start.choices), linearised(*where, **how) as linear:
            require_same_logits(self.start.logits, linear.logits, self.name)
            yield linear

    def _exact(self, memory_plan: MemoryPlan, progress: Progress | None) -> tuple[BasePoint, Jacobians]:
        logit = None if self.options.output is None else self.options.output.row
        with self.linearised(memory_plan) as linear:
            return linear.base, jacobian_norms.exact_jacobians(linear, self.start.embedded, progress, logit)

    def _sketched(
        self, method: str, memory_plan: MemoryPlan
    ) -> tuple[BasePoint, Jacobians, Cotangents, Columns, dict[str, Any]]:
        """The first rows and their cotangents; the norms estimated; `SketchedNorms.account`."""
        options, like = self.options, self.start.embedded
        cotangents = None if method == "estimate" else options.cotangents
        generator = torch.Generator().manual_seed(options.seed)
        with self.linearised(memory_plan) as linear:
            accuracy = {"accuracy": options.accuracy, "confidence": CONFIDENCE}
            norms = sketched(linear, like, generator, cotangents=cotangents, **accuracy)
            base = linear.base
        # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
        operator = (torch.full_like(norms.frobenius, float("nan")), norms.operator_lower, norms.frobenius_upper)
        frobenius = (norms.frobenius, norms.frobenius_lower, norms.frobenius_upper)
        columns = dict(zip(NORMS, operator + frobenius, strict=True))
        return base, norms.rows, norms.cotangents.to(like.device), columns, norms.account

    def checked(
        self, base: BasePoint, frobenius: PerPlace, parts: Parts, outputs: Float[Tensor, "out d_model"] | None
    ) -> dict[str, Any]:
        """Every check of the Jacobian, and the account of it. Raises `InputError` where one fails."""
        _require_sound(frobenius, self.name)
        checked = self.model, self.start.embedded, self.name, base, parts, outputs
        with held_choices(self.model, self.start.choices):
            account: dict[str, Any] = {"certificate": asdict(certify(*checked))}
        if FROZEN_PARTS[self.name].all:
            account["adds_up_within"] = certify_sum(*checked)
        if self.start.choices is not None:
            account["experts"] = self.start.choices.account
        return account


def _require_sound(frobenius: PerPlace, linearisation: str) -> None:
    if not bool(torch.isfinite(frobenius).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((frobenius > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the last token"
        )
