"""The linearisations of one prompt, stage by stage: linearise all in one pass, measure each,
certify all together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.jacobian import norms as jacobian_norms
from ostools.measure.jacobian.certificate import Account, Claim, certify
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Linearised, Start, linearised
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
class MeasuredNorms:
    """`NORMS` at every place, float64 on the CPU, by which method, and the account of it."""

    columns: Columns
    method: str
    account: Account


def measured(
    model: TransformerBridge, prompt: Prompt, options: JacobianOptions, progress: Progress | None
) -> dict[str, MeasuredNorms]:
    """The norms of one prompt, by linearisation: linearised, measured, certified. Raises
    `InputError` where a check fails.
    """
    start, names = Start.of(model, prompt.ids), options.names
    if options.output is not None:
        options.output.check(model, start.logits[-1], start.y)
    method, reason, memory_plan = planned(model, len(prompt.ids), options)
    how = {"chunk": memory_plan.chunk, "keeps_graph": memory_plan.keeps_graph}
    norms: dict[str, MeasuredNorms] = {}
    claims: dict[str, Claim] = {}
    with linearised(model, start, names, options.layers, **how) as linear:
        for index, name in enumerate(names):
            linear.holding.follow(FROZEN_PARTS[name])
            name_progress = part_of(progress, index, index + 1, len(names), units=100)
            norms[name], claims[name] = _measured(method, linear, options, name_progress)
            require_norms(name, norms[name].columns["frobenius_norm"])
        linear.release()
        checks = certify(linear, claims, start.choices)
    tell(progress, 1, 1)
    for name, check in checks.items():
        norms[name].account.update(reason=reason, plan=str(memory_plan), **check)
    return norms


def planned(
    model: TransformerBridge, pos: int, options: JacobianOptions
) -> tuple[str, str, MemoryPlan]:
    """The method, why, and the way of a prompt of `pos` tokens through the memory."""
    device, d_model = next(model.parameters()).device, int(model.cfg.d_model)
    limit = chunk(available_memory(device)) if options.max_memory is None else options.max_memory
    size = Shape.of(model), pos, len(options.layers)
    if options.output is not None:
        return "exact", "one row", plan(*size, max_memory=limit, rows=1)
    method, reason = options.method, "as asked"
    if method == "auto":
        method, reason = choose_method(d_model, exact_fits=fits(*size, max_memory=limit))
    rows = None if method == "exact" else most_rows(d_model, method, options.cotangents)
    return method, reason, plan(*size, max_memory=limit, rows=rows)


def _measured(
    method: str, linear: Linearised, options: JacobianOptions, progress: Progress | None
) -> tuple[MeasuredNorms, Claim]:
    """The norms of the linearisation that is followed, and what its Jacobians claim."""
    like = linear.base.y
    if method == "exact":
        output = None if options.output is None else options.output.row
        rows = jacobian_norms.exact_jacobians(linear.pull, like, progress, output)
        norms = [norm.cpu() for norm in jacobian_norms.exact_norms(rows, rows.device)]
        columns = dict(zip(NORMS, [norm for norm in norms for _ in range(3)], strict=True))
        claim = Claim.of(linear.base, rows, None if output is None else output[None])
        return MeasuredNorms(columns, method, {}), claim
    sketch = sketched(
        linear.pull,
        like,
        torch.Generator().manual_seed(options.seed),
        cotangents=None if method == "estimate" else options.cotangents,
        accuracy=options.accuracy,
        confidence=CONFIDENCE,
    )
    # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
    unknown = torch.full_like(sketch.frobenius, float("nan"))
    operator = unknown, sketch.operator_lower, sketch.frobenius_upper
    frobenius = sketch.frobenius, sketch.frobenius_lower, sketch.frobenius_upper
    columns = dict(zip(NORMS, operator + frobenius, strict=True))
    claim = Claim.of(linear.base, sketch.rows, sketch.cotangents.to(like.device))
    return MeasuredNorms(columns, method, {**sketch.account}), claim


def require_norms(linearisation: str, frobenius: PerPlace) -> None:
    """`InputError` for norms that are not finite, or 0 everywhere."""
    if not bool(torch.isfinite(frobenius).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((frobenius > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the "
            "last token"
        )
