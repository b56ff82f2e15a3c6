"""The linearisations of one prompt, stage by stage: linearise all in one pass, measure each,
certify all together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError, Progress, TransformerBridge, tell, with_progress
from ostools.ground.memory import available_memory, chunk
from ostools.measure.jacobian.certificate import Account, Claim, certify
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Linearised, Start, linearised
from ostools.measure.jacobian.memory import MemoryPlan, chosen_plan
from ostools.measure.jacobian.norms import ACCURACY, exact_jacobians, exact_norms, sketched
from ostools.measure.passes.output import Output
from ostools.measure.prompts import token_columns
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.results import Frame

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
    accuracy: float = ACCURACY
    output: Output | None = None


def measured(
    model: TransformerBridge, prompt: Prompt, options: JacobianOptions, progress: Progress | None
) -> tuple[Frame, dict[str, Account]]:
    """The norms of one prompt: a row a token, layer by layer, linearisation by linearisation; and
    how each linearisation was computed and checked. Raises `InputError` where a check fails.
    """
    start, names, output = Start.of(model, prompt.ids), options.names, options.output
    if output is not None:
        output.check(model, start.logits[-1], start.y)
    method, reason, memory_plan = planned(
        model,
        len(prompt.ids),
        layers=len(options.layers),
        method=options.method,
        cotangents=options.cotangents,
        max_memory=options.max_memory,
        rows=None if output is None else 1,
    )
    layers = np.repeat(options.layers, len(prompt.ids))
    places: Frame = pd.concat([token_columns(prompt)] * len(options.layers), ignore_index=True)
    tables: list[Frame] = []
    claims: dict[str, Claim] = {}
    runs: dict[str, Account] = {}
    way = {"chunk": memory_plan.chunk, "keeps_graph": memory_plan.keeps_graph}
    with linearised(model, start, names, options.layers, **way) as linear:
        for name, part in with_progress(names, progress):
            linear.holding.follow(FROZEN_PARTS[name])
            norms, claims[name], runs[name] = _norms(method, linear, options, part)
            require_norms(name, norms["frobenius_norm"])
            columns = {"linearisation": name, "layer": layers, "method": method, **norms}
            tables.append(places.assign(**columns))
        linear.release()
        checks = certify(linear, claims, start.choices)
    tell(progress, 1, 1)
    for name, check in checks.items():
        runs[name] |= {"reason": reason, "plan": str(memory_plan), **check}
    return pd.concat(tables, ignore_index=True), runs


def planned(
    model: TransformerBridge, pos: int, *, max_memory: int | None = None, **how: Any
) -> tuple[str, str, MemoryPlan]:
    """The method, why, and the way of a prompt of `pos` tokens through the memory that is free, or
    allowed; `how`: as of `chosen_plan`.
    """
    free = chunk(available_memory(next(model.parameters()).device))
    limit = free if max_memory is None else max_memory
    return chosen_plan(Shape.of(model), pos, max_memory=limit, **how)


def _norms(
    method: str, linear: Linearised, options: JacobianOptions, progress: Progress | None
) -> tuple[dict[str, Any], Claim, Account]:
    """`NORMS` of the linearisation that is followed, at every place and in float64, what its
    Jacobians claim, and the account of a sketch.
    """
    if method == "exact":
        row = None if options.output is None else options.output.row
        rows = exact_jacobians(linear.pull, linear.y, progress, row)
        operator, frobenius = exact_norms(rows, rows.device)
        columns = [operator] * 3 + [frobenius] * 3
        claim = Claim.of(linear, rows, None if row is None else row[None])
        account: Account = {}
    else:
        sketch = sketched(
            linear.pull,
            linear.y,
            torch.Generator().manual_seed(options.seed),
            cotangents=None if method == "estimate" else options.cotangents,
            accuracy=options.accuracy,
            progress=progress,
        )
        # ||J||_2 <= ||J||_F: the upper end of the one holds for the other.
        unknown = torch.full_like(sketch.frobenius, float("nan"))
        columns = [unknown, sketch.operator_lower, sketch.frobenius_upper]
        columns += [sketch.frobenius, sketch.frobenius_lower, sketch.frobenius_upper]
        claim = Claim.of(linear, sketch.rows, sketch.cotangents.to(linear.y.device))
        account = {**sketch.account}
    return {k: v.cpu().numpy() for k, v in zip(NORMS, columns, strict=True)}, claim, account


def require_norms(linearisation: str, frobenius: Float[Tensor, " place"] | np.ndarray) -> None:
    """`InputError` for norms that are not finite, or 0 everywhere."""
    norms = torch.as_tensor(frobenius)
    if not bool(torch.isfinite(norms).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    if not bool((norms > 0).any()):
        raise InputError(
            f"the {linearisation} Jacobian is 0 at every token: nothing reaches y_n, not even the "
            "last token"
        )
