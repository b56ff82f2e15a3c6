"""The linearisations of one prompt, stage by stage: plan the memory, linearise all in one pass,
measure each, certify all together.

Too large a run takes fewer cotangents at a time first, then is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import (
    InputError,
    InsufficientMemoryError,
    Progress,
    TransformerBridge,
    available_memory,
    tell,
    with_progress,
)
from ostools.ground import chunk as chunk_of
from ostools.measure.jacobian.certificate import Account, Claim, certify
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Linearised, Start, linearised
from ostools.measure.jacobian.norms import (
    COTANGENTS,
    NORM_BUDGET,
    choose_method,
    exact_jacobians,
    exact_norms,
    most_rows,
    sketched,
)
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
# Rows of cotangents times tokens that one block of products carries, and the fewest rows: about
# what stays in a CPU's caches, what fills a GPU.
_BLOCK = {"cpu": (2048, 4), "cuda": (1 << 16, 16)}
# The graph of a whole pass is kept up to this many bytes; of a longer prompt that of one block at a
# time.
_GRAPH = 1 << 30
_ALLOCATOR = 32 << 20  # what the allocator keeps back of small blocks that were freed
_WITHOUT_LIMIT = 1 << 62


@dataclass(frozen=True)
class MemoryPlan:
    """Plan of a run: its method, with the reason in words, and the forecast `peak`, in bytes on top
    of the loaded model.

    `chunk` cotangents go back together; `keeps_graph`: through the graph of the whole pass, else of
    one block at a time.
    """

    method: str
    reason: str
    chunk: int
    keeps_graph: bool
    peak: int


def measured(
    model: TransformerBridge,
    prompt: Prompt,
    output: Output | None,
    progress: Progress | None,
    *,
    linearisations: Sequence[str],
    layers: Sequence[int],
    method: str,
    cotangents: int,
    max_memory: int | None,
    **how: Any,
) -> tuple[Frame, dict[str, Account]]:
    """The norms of one prompt: a row a token, layer by layer, linearisation by linearisation; and
    how each linearisation was computed and checked. Raises `InputError` where a check fails.

    `output`: w^T y_n in the place of y_n. `max_memory` None means what is free. `how`: seed and
    accuracy of a sketch.
    """
    start = Start.of(model, prompt.ids)
    if output is not None:
        output.check(model, start.logits[-1], start.y)
    plan = planned(
        model,
        len(prompt.ids),
        layers=len(layers),
        method=method,
        cotangents=cotangents,
        max_memory=max_memory,
        rows=None if output is None else 1,
    )
    at_layer = np.repeat(layers, len(prompt.ids))
    places: Frame = pd.concat([token_columns(prompt)] * len(layers), ignore_index=True)
    row = None if output is None else output.row
    how |= {"cotangents": None if plan.method == "estimate" else cotangents}
    tables: list[Frame] = []
    claims: dict[str, Claim] = {}
    runs: dict[str, Account] = {}
    with linearised(
        model, start, linearisations, layers, chunk=plan.chunk, keeps_graph=plan.keeps_graph
    ) as linear:
        for name, part in with_progress(linearisations, progress):
            linear.holding.followed = FROZEN_PARTS[name]
            norms, claims[name], runs[name] = _norms(plan.method, linear, row, part, **how)
            require_norms(name, norms["frobenius_norm"])
            columns = {"linearisation": name, "layer": at_layer, "method": plan.method, **norms}
            tables.append(places.assign(**columns))
        linear.release()
        checks = certify(linear, claims, start.choices)
    tell(progress, 1, 1)
    words = f"{plan.peak / 2**30:.2f} GiB of memory, {plan.chunk} rows at a time"
    for name, check in checks.items():
        runs[name] |= {"reason": plan.reason, "plan": words, **check}
    return pd.concat(tables, ignore_index=True), runs


def planned(
    model: TransformerBridge, pos: int, *, max_memory: int | None = None, **how: Any
) -> MemoryPlan:
    """Plan of a prompt of `pos` tokens within the memory that is free, or allowed; `how`: as of
    `memory_plan`.
    """
    free = chunk_of(available_memory(next(model.parameters()).device))
    limit = free if max_memory is None else max_memory
    return memory_plan(Shape.of(model), pos, max_memory=limit, **how)


def memory_plan(
    shape: Shape,
    pos: int,
    *,
    layers: int = 1,
    method: str = "auto",
    cotangents: int = COTANGENTS,
    max_memory: int | None = None,
    rows: int | None = None,
) -> MemoryPlan:
    """Fastest plan of a prompt of `pos` tokens in float32 or float64, at `layers` residual streams,
    within `max_memory` bytes beside the model. `rows`: how many are kept in place of the method's,
    1 of a logit; of the exact method all d_model.

    Raises `InsufficientMemoryError` where not even one row at a time through one block fits.
    """
    limit = _WITHOUT_LIMIT if max_memory is None else max_memory
    reason = "as asked"
    if rows is not None:
        method, reason = "exact", "one row"
    elif method == "auto":
        can_be_exact = _peak(shape, pos, layers, None, 1, keeps_graph=False) <= limit
        method, reason = choose_method(shape.d_model, exact_fits=can_be_exact)
    if rows is None and method != "exact":
        rows = most_rows(shape.d_model, method, cotangents)
    block, fewest = _BLOCK.get(shape.device, _BLOCK["cpu"])
    # Of a long prompt each row's patterns and their gradients fill the memory.
    fits = _GRAPH // (3 * shape.n_heads * pos**2 * shape.element)
    chunk = max(1, min(chunk_of(max(fewest, block // pos)), rows or shape.d_model, fits))
    keeps_graph = _graph_bytes(shape, pos) <= chunk_of(_GRAPH)
    while (peak := _peak(shape, pos, layers, rows, chunk, keeps_graph)) > limit:
        if not keeps_graph and chunk == 1:
            raise InsufficientMemoryError(
                f"{pos} tokens at d_model {shape.d_model} need {peak / 2**30:.2f} GiB at least, "
                f"{limit / 2**30:.2f} GiB are allowed: shorten the prompt, free memory, or "
                "raise max_memory (--max-memory)"
                + (", or take method 'sketch'" if rows is None else "")
            )
        keeps_graph, chunk = False, chunk if keeps_graph else chunk // 2
    return MemoryPlan(method, reason, chunk, keeps_graph, peak)


def _graph_bytes(shape: Shape, pos: int) -> int:
    """Bytes that autograd keeps of one prompt: about three squares a head and layer, ten vectors a
    token, the slopes of the MLP. Held patterns and norms keep no more."""
    of_layer = 3 * shape.n_heads * pos + 10 * shape.d_model + 4 * shape.d_mlp
    return pos * shape.n_layers * of_layer * shape.element


def _peak(
    shape: Shape, pos: int, layers: int, rows: int | None, chunk: int, keeps_graph: bool
) -> int:
    """Bytes, from the shapes that are allocated: beside the rows their graph and their norms; then,
    without the graph, the moved prompts of the check.
    """
    d_model, element, places = shape.d_model, shape.element, pos * layers
    square, vectors, mlp = shape.n_heads * pos**2, pos * d_model, pos * shape.d_mlp
    head_vectors = pos * shape.n_heads * shape.d_head
    cast = shape.view_bytes(element) if shape.cast else 0
    graph = _graph_bytes(shape, pos) // (1 if keeps_graph else shape.n_layers)
    graph += ((1 + 2 * shape.n_layers) * vectors + 2 * square) * element
    if not keeps_graph:
        graph += (rows or d_model) * vectors * element
    back = chunk * (3 * square + 8 * vectors + 4 * mlp + 4 * head_vectors) * element
    # Of the exact Jacobians their squares, some tokens at a time; of a sketch the Gram matrices of
    # all tokens in float64.
    norms = (
        min(3 * places * d_model**2 * element, 3 * NORM_BUDGET)
        if rows is None
        else 3 * places * rows**2 * 8
    )
    check = (8 * square + 4 * (6 * vectors + 3 * mlp) + 4 * places * d_model) * element
    rows_bytes = places * (rows or d_model) * d_model * element
    return _ALLOCATOR + cast + rows_bytes + max(graph + back + norms, check)


def _norms(
    method: str,
    linear: Linearised,
    row: Float[Tensor, " d_model"] | None,
    progress: Progress | None,
    *,
    cotangents: int | None,
    seed: int,
    accuracy: float,
) -> tuple[dict[str, Any], Claim, Account]:
    """`NORMS` of the linearisation that is followed, at every place and in float64, what its
    Jacobians claim, and the account of a sketch.
    """
    if method == "exact":
        rows = exact_jacobians(linear.pull, linear.y, progress, row)
        operator, frobenius = exact_norms(rows)
        columns = [operator] * 3 + [frobenius] * 3
        claim = Claim.of(linear, rows, None if row is None else row[None])
        account: Account = {}
    else:
        sketch = sketched(
            linear.pull,
            linear.y,
            torch.Generator().manual_seed(seed),
            cotangents=cotangents,
            accuracy=accuracy,
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
