"""Memory of sensitivity: forecast before it runs, and fitted to what there is.

Too large a run takes fewer cotangents at a time first, then is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.ground.errors import InsufficientMemoryError
from ostools.ground.memory import chunk as chunk_of
from ostools.measure.jacobian.norms import COTANGENTS, NORM_BUDGET, choose_method, most_rows
from ostools.models.shape import Shape

# Rows of cotangents times tokens that one block of products carries: about what stays in a CPU's
# caches, what fills a GPU.
_BLOCK = {"cpu": 2048, "cuda": 1 << 16}
# The graph of a whole pass is kept up to this many bytes; of a longer prompt that of one block at a
# time.
_GRAPH = 1 << 30
ALLOCATOR = 32 << 20
"""What the allocator keeps back of small blocks that were freed."""
_SMALLEST = {"cpu": 4, "cuda": 16}
_WITHOUT_LIMIT = 1 << 62


@dataclass(frozen=True)
class MemoryPlan:
    """Plan of a run, and its forecast: `peak`, in bytes on top of the loaded model.

    `chunk` cotangents go back together; `keeps_graph`: through the graph of the whole pass, else of
    one block at a time.
    """

    chunk: int
    keeps_graph: bool
    peak: int

    def __str__(self) -> str:
        return f"{self.peak / 2**30:.2f} GiB of memory, {self.chunk} rows at a time"


def plan(
    shape: Shape, pos: int, layers: int, *, max_memory: int, rows: int | None = None
) -> MemoryPlan:
    """The fastest way through a prompt of `pos` tokens, measured at `layers` layers, within
    `max_memory` bytes.

    `rows`: how many products are kept; None for the exact Jacobians, all d_model of them. Raises
    `InsufficientMemoryError` where not even one row at a time through one block at a time fits.
    """
    most = max(_SMALLEST.get(shape.device, 4), _BLOCK.get(shape.device, 2048) // pos)
    # Of a long prompt each row's patterns and their gradients fill the memory.
    of_row = 3 * shape.n_heads * pos**2 * shape.element
    chunk = max(1, min(chunk_of(most), rows or shape.d_model, _GRAPH // of_row))
    keeps_graph = graph_bytes(shape, pos) <= chunk_of(_GRAPH)
    while (peak := _peak(shape, pos, layers, rows, chunk, keeps_graph)) > max_memory:
        if not keeps_graph and chunk == 1:
            raise InsufficientMemoryError(
                f"{pos} tokens at d_model {shape.d_model} need {peak / 2**30:.2f} GiB at least, "
                f"{max_memory / 2**30:.2f} GiB are allowed: shorten the prompt, free memory, or "
                "raise max_memory (--max-memory)"
                + (", or take method 'sketch'" if rows is None else "")
            )
        keeps_graph, chunk = False, chunk if keeps_graph else chunk // 2
    return MemoryPlan(chunk, keeps_graph, peak)


def graph_bytes(shape: Shape, pos: int) -> int:
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
    graph = graph_bytes(shape, pos) // (1 if keeps_graph else shape.n_layers)
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
    return ALLOCATOR + cast + rows_bytes + max(graph + back + norms, check)


def chosen_plan(
    shape: Shape,
    pos: int,
    *,
    layers: int = 1,
    method: str = "auto",
    cotangents: int = COTANGENTS,
    max_memory: int | None = None,
    rows: int | None = None,
) -> tuple[str, str, MemoryPlan]:
    """The method of a prompt of `pos` tokens in float32 or float64, at `layers` residual streams,
    why, and its plan within `max_memory` bytes beside the model. `rows`: how many are kept in place
    of the method's, 1 of a logit.

    Raises `InsufficientMemoryError` where not even the smallest steps fit into `max_memory`.
    """
    reason = "as asked" if rows is None else "one row"
    limit = _WITHOUT_LIMIT if max_memory is None else max_memory
    if rows is not None:
        method = "exact"
    elif method == "auto":
        can_be_exact = _peak(shape, pos, layers, None, 1, keeps_graph=False) <= limit
        method, reason = choose_method(shape.d_model, exact_fits=can_be_exact)
    if rows is None and method != "exact":
        rows = most_rows(shape.d_model, method, cotangents)
    return method, reason, plan(shape, pos, layers, max_memory=limit, rows=rows)


def sensitivity_bytes(shape: Shape, pos: int, **how: Any) -> int:
    """Peak of a prompt of `pos` tokens; `how`: as of `chosen_plan`."""
    return chosen_plan(shape, pos, **how)[2].peak
