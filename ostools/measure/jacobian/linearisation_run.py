"""The linearisations of one prompt, stage by stage: linearise all in one pass, measure each,
certify all together.
"""

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
from ostools.hooks.freeze import Holding
from ostools.measure.jacobian import norms as jacobian_norms
from ostools.measure.jacobian.certificate import Claim, certify, certify_sum, require_same_logits
from ostools.measure.jacobian.linearise import FROZEN_PARTS, BasePoint, Linearised, linearised
from ostools.measure.jacobian.memory import MemoryPlan, fits, plan
from ostools.measure.jacobian.norms import (
    ACCURACY,
    CONFIDENCE,
    choose_method,
    most_rows,
    sketched,
)
from ostools.measure.passes.output import Output
from ostools.models import Prompt
from ostools.models.generic.choices import Choices, held_choices, noted_choices
from ostools.models.shape import Shape

PerPlace = Float[Tensor, " place"]
Columns = Mapping[str, PerPlace]
NORMS = tuple(
    f"{norm}_{column}"
    for norm in ("operator", "frobenius")
    for column in ("norm", "lower", "upper")
)
"""What is measured at every place: two norms, each with its limits."""


@dataclass(frozen=True)
class JacobianOptions:
    """Options of a sensitivity: which linearisations, at which layers, and how; of w^T y_n where
    there is an `output`. `max_memory` None means what is free. accuracy: of an estimate, as
    `norms.sketched` takes it."""

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
    """Start of every linearisation of a prompt: v^(0), the last token's logits and y_n of the plain
    pass, and the experts chosen in it."""

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
            raise InputError(
                "the model's logits on this prompt are not finite; its weights or its dtype are broken"
            )
        with torch.no_grad():
            embedded = model.input_to_embed(ids[None])[0][0].detach()
        return cls(embedded, plain, record["final_norm"][0, -1], choices)


@dataclass(frozen=True)
class MeasuredNorms:
    """`NORMS` at every place, float64 on the CPU, and `account`: how they were computed and
    checked.
    """

    columns: Columns
    method: str
    account: Mapping[str, Any]


def measured(
    model: TransformerBridge, prompt: Prompt, options: JacobianOptions, progress: Progress | None
) -> dict[str, MeasuredNorms]:
    """The norms of one prompt, by linearisation: linearised, measured, certified. Raises
    `InputError` where a check fails.
    """
    names, taken = options.names, dict[str, tuple[Columns, Claim, dict[str, Any]]]()
    run = LinearisationRun(model, Start.of(model, prompt.ids), options)
    if options.output is not None:
        options.output.check(model, run.start.logits[-1], run.start.y)
    method, reason, memory_plan = run.planned()
    with run.linearised(memory_plan) as (linear, held):
        for index, name in enumerate(names):
            held.follow(FROZEN_PARTS[name])
            name_progress = part_of(progress, index, index + 1, len(names), units=100)
            taken[name] = run.taken(method, linear, name_progress)
        base = linear.base
        linear.release()
        claims = {
            name: (columns["frobenius_norm"], claim) for name, (columns, claim, _) in taken.items()
        }
        checks = run.checked(held, base, claims)
    tell(progress, 1, 1)
    account = {"reason": reason, "plan": str(memory_plan)}
    return {
        name: MeasuredNorms(columns, method, {**account, **reached, **checks[name]})
        for name, (columns, _, reached) in taken.items()
    }


@dataclass(frozen=True)
class LinearisationRun:
    """d y_n / d v_i^(l) at every layer l and token i that is asked for, under each linearisation of
    the options.
    """

    model: TransformerBridge
    start: Start
    options: JacobianOptions

    def gradient(self) -> tuple[Float[Tensor, "place d_model"], dict[str, Any]]:
        """w^T J_i at every place, for the output of the options, under their one linearisation; and
        how it was checked.
        """
        (name,), output = self.options.names, self.options.output
        assert output is not None
        with self.linearised(self.planned()[-1]) as (linear, held):
            rows = jacobian_norms.exact_jacobians(
                linear.pull, self.start.embedded, logit=output.row
            )
            base = linear.base
            linear.release()
            claim = Claim.of(base, rows, output.row[None])
            return rows[:, 0], self.checked(
                held, base, {name: (rows.double().norm(dim=(1, 2)), claim)}
            )[name]

    def planned(self) -> tuple[str, str, MemoryPlan]:
        """The method, why, and the way through the memory."""
        embedded, options = self.start.embedded, self.options
        limit = (
            chunk(available_memory(embedded.device))
            if options.max_memory is None
            else options.max_memory
        )
        size = Shape.of(self.model), len(embedded), len(options.layers)
        if options.output is not None:
            return "exact", "one row", plan(*size, max_memory=limit, rows=1)
        method, reason = options.method, "as asked"
        if method == "auto":
            method, reason = choose_method(
                embedded.shape[-1], exact_fits=fits(*size, max_memory=limit)
            )
        rows = (
            None if method == "exact" else most_rows(embedded.shape[-1], method, options.cotangents)
        )
        return method, reason, plan(*size, max_memory=limit, rows=rows)

    @contextmanager
    def linearised(self, memory_plan: MemoryPlan) -> Iterator[tuple[Linearised, Holding]]:
        """After proving that what is held, and a start at v^(0), leave the logits as they are."""
        where = self.model, self.start.embedded, self.options.names, self.options.layers
        how = {"chunk": memory_plan.chunk, "whole": memory_plan.whole}
        with (
            held_choices(self.model, self.start.choices),
            linearised(*where, **how) as (linear, held),
        ):
            require_same_logits(self.start.logits, linear.logits, " and ".join(self.options.names))
            yield linear, held

    def taken(
        self, method: str, linear: Linearised, progress: Progress | None
    ) -> tuple[Columns, Claim, dict[str, Any]]:
        """The norms of the linearisation that is followed, what its Jacobians claim, and
        `SketchedNorms.account`.
        """
        options, like, base = self.options, self.start.embedded, linear.base
        if method == "exact":
            output = None if options.output is None else options.output.row
            rows = jacobian_norms.exact_jacobians(linear.pull, like, progress, output)
            norms = (norm.cpu() for norm in jacobian_norms.exact_norms(rows, rows.device))
            columns = dict(zip(NORMS, [norm for norm in norms for _ in range(3)], strict=True))
            claim = Claim.of(base, rows, None if output is None else output[None])
            return columns, claim, {}
        cotangents = None if method == "estimate" else options.cotangents
        generator = torch.Generator().manual_seed(options.seed)
        accuracy = {"accuracy": options.accuracy, "confidence": CONFIDENCE}
        sketch = sketched(linear.pull, like, generator, cotangents=cotangents, **accuracy)
        # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
        operator = (
            torch.full_like(sketch.frobenius, float("nan")),
            sketch.operator_lower,
            sketch.frobenius_upper,
        )
        frobenius = (sketch.frobenius, sketch.frobenius_lower, sketch.frobenius_upper)
        claim = Claim.of(base, sketch.rows, sketch.cotangents.to(like.device))
        return dict(zip(NORMS, operator + frobenius, strict=True)), claim, sketch.account

    def checked(
        self, held: Holding, base: BasePoint, measured: Mapping[str, tuple[PerPlace, Claim]]
    ) -> dict[str, dict[str, Any]]:
        """Every check of the Jacobians of each linearisation, and the account of it. Raises
        `InputError` where one fails.

        `measured`: the Frobenius norms, and what the Jacobians claim. Within the block in which
            they were linearised.
        """
        for name, (frobenius, _) in measured.items():
            if not bool(torch.isfinite(frobenius).all()):
                raise InputError(f"the {name} Jacobian is not finite on this prompt")
            if not bool((frobenius > 0).any()):
                raise InputError(
                    f"the {name} Jacobian is 0 at every token: nothing reaches y_n, not even the last token"
                )
        claims = {name: claim for name, (_, claim) in measured.items()}
        accounts: dict[str, dict[str, Any]] = {
            name: {"certificate": asdict(certificate)}
            for name, certificate in certify(self.model, held, base, claims).items()
        }
        for name, account in accounts.items():
            if all(FROZEN_PARTS[name]):
                error, bias = certify_sum(self.model, held, base, name, claims[name])
                account["adds_up_within"] = error
                if self.options.output is not None:
                    account["bias_terms"] = float(bias)
            if self.start.choices is not None:
                account["experts"] = self.start.choices.account
        return accounts
