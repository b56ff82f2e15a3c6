"""Memory of sensitivity: forecast before it runs, and fitted to what there is.

Too large a run takes fewer cotangents at a time first, then is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.ground.out_of_memory import chunk as chunk_of
from ostools.measure.jacobian.linearise import DEFAULT_LINEARISATIONS
from ostools.measure.jacobian.norms import COTANGENTS, NORM_BUDGET, choose_method, most_rows
from ostools.measure.passes.batches import in_full
from ostools.measure.passes.contexts import strip_size
from ostools.measure.passes.output import one_or_two, read_up_to
from ostools.measure.unloaded import Unloaded
from ostools.models.shape import Shape

# Rows of cotangents times tokens that one block of products carries: about what stays in a CPU's
# caches, what fills a GPU.
_BLOCK = {"cpu": 2048, "cuda": 1 << 16}
# The graph of a whole pass is kept up to this many bytes; of a longer prompt that of one block at a
# time.
_WHOLE = 1 << 30
ALLOCATOR = 32 << 20
"""What the allocator keeps back of small blocks that were freed."""
_SMALLEST = {"cpu": 4, "cuda": 16}


@dataclass(frozen=True)
class MemoryPlan:
    """Plan of a run, and its forecast: `peak`, in bytes on top of the loaded model.

    `chunk` cotangents go back together; `whole`: through the graph of the whole pass, else of one
    block at a time.
    """

    chunk: int
    whole: bool
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
    most = min(most, rows or shape.d_model)
    chunk, forecast = chunk_of(most), None
    if graph_bytes(shape, pos) <= chunk_of(_WHOLE):
        forecast = _forecast(shape, pos, layers, rows, chunk, whole=True)
    if forecast is None or forecast.peak > max_memory:
        forecast = _forecast(shape, pos, layers, rows, chunk, whole=False)
    while forecast.peak > max_memory and chunk > 1:
        chunk //= 2
        forecast = _forecast(shape, pos, layers, rows, chunk, whole=False)
    if forecast.peak <= max_memory:
        return forecast
    raise InsufficientMemoryError(
        f"{pos} tokens at d_model {shape.d_model} need {forecast.peak / 2**30:.2f} GiB at least, {max_memory / 2**30:.2f} GiB "
        f"are allowed: shorten the prompt, free memory, or raise max_memory (--max-memory)"
        + (", or take method 'sketch'" if rows is None else "")
    )


def graph_bytes(shape: Shape, pos: int) -> int:
    """Bytes that autograd keeps of one prompt: about three squares a head and layer, ten vectors a
    token, the slopes of the MLP. Held patterns and norms keep no more."""
    of_layer = 3 * shape.n_heads * pos + 10 * shape.d_model + 4 * shape.d_mlp
    return pos * shape.n_layers * of_layer * shape.element


def fits(shape: Shape, pos: int, layers: int, *, max_memory: int) -> bool:
    """Whether the exact run has a plan at all."""
    return _forecast(shape, pos, layers, None, 1, whole=False).peak <= max_memory


def _forecast(
    shape: Shape, pos: int, layers: int, rows: int | None, chunk: int, *, whole: bool
) -> MemoryPlan:
    """Counted in numbers, from the shapes that are allocated; times the size of one in the end."""
    d_model, heads, n_layers, element = shape.d_model, shape.n_heads, shape.n_layers, shape.element
    size, vectors, head_vectors = strip_size(shape, pos), pos * d_model, pos * heads * shape.d_head
    # The scores that are held at once: of all queries, or of a long prompt of one strip of them,
    # with the mask of the whole.
    square, mask = heads * pos * (size or pos), 0 if size is None else 2 * pos**2
    cast = shape.view_bytes(element) // element if shape.cast else 0
    kept = (
        graph_bytes(shape, pos) // element // (1 if whole else n_layers)
        + (1 + 2 * n_layers) * vectors
    )
    back = chunk * (3 * square + 8 * vectors + 4 * pos * shape.d_mlp + 4 * head_vectors)
    places = pos * layers
    # Of the exact Jacobians their squares, some tokens at a time; of a sketch the Gram matrices of
    # all tokens in float64.
    norms = (
        min(3 * places * d_model**2 * element, 3 * NORM_BUDGET)
        if rows is None
        else 3 * places * rows**2 * 8
    )
    # Held patterns are one a layer, or of a long prompt its queries and keys; a graph has them
    # anyway.
    held = n_layers * (square if size is None else 2 * head_vectors)
    check = 12 * square + mask + 4 * (6 * vectors + 3 * pos * shape.d_mlp) + held + cast
    graph = (
        kept + back + square + mask + cast + (0 if whole else (rows or d_model) * vectors + held)
    )
    # Beside the rows: the graph, and of each linearisation their norms while it stands; then,
    # without it, the checks.
    rows_bytes = places * (rows or d_model) * d_model * element
    return MemoryPlan(
        chunk, whole, ALLOCATOR + rows_bytes + max(graph * element + norms, check * element)
    )


_WITHOUT_LIMIT = 1 << 62


def sensitivity_bytes(
    shape: Shape,
    pos: int,
    *,
    layers: int = 1,
    method: str = "auto",
    cotangents: int = COTANGENTS,
    max_memory: int | None = None,
    one_row: bool = False,
) -> int:
    """Peak of a prompt of `pos` tokens, at `layers` residual streams, within `max_memory` bytes
    beside the model. `one_row`: of a logit, whose derivative is one row.

    Raises `InsufficientMemoryError` where not even the smallest steps fit into `max_memory`.
    """
    work, d_model = in_full(shape), shape.d_model
    limit = _WITHOUT_LIMIT if max_memory is None else max_memory
    if method == "auto" and not one_row:
        method = choose_method(d_model, exact_fits=fits(work, pos, layers, max_memory=limit)).method
    kept_rows = (
        1 if one_row else None if method == "exact" else most_rows(d_model, method, cotangents)
    )
    return plan(work, pos, layers, max_memory=limit, rows=kept_rows).peak


def require_exact_logit(
    logit: str | int | Sequence[str | int], method: str, linearisations: Sequence[str]
) -> None:
    """Raises `InputError` for what is not measured of a logit, and for more than two tokens."""
    one_or_two(logit)
    if method in ("sketch", "estimate"):
        raise InputError(
            "sensitivity: a logit's is exact in one backward pass, expected method 'auto' or 'exact' with logit=, found "
            f"{method!r}"
        )
    if "detached" in linearisations:
        raise InputError(
            "sensitivity: expected another linearisation than 'detached' with logit=: use "
            "attribution(model, prompt, logit=...), which has its parts"
        )


def sensitivity_memory(
    model: Unloaded,
    pos: int,
    *,
    linearisations: str | Sequence[str] | None = None,
    layers: Sequence[int] | str = (0,),
    method: str = "auto",
    cotangents: int = COTANGENTS,
    accuracy: float | None = None,
    position: int | str | None = None,
    logit: str | int | Sequence[str | int] | None = None,
) -> int:
    """Bytes of a prompt's Jacobians, or of those of its beginning up to `position`."""
    method = method if accuracy is None else "estimate"
    if logit is not None:
        names = (
            (linearisations,)
            if isinstance(linearisations, str)
            else linearisations or DEFAULT_LINEARISATIONS
        )
        require_exact_logit(logit, method, names)
    return sensitivity_bytes(
        model.shape,
        read_up_to(position if isinstance(position, int) else None, pos),
        layers=model.shape.n_layers + 1 if isinstance(layers, str) else len(layers),
        method=method,
        cotangents=cotangents,
        one_row=logit is not None,
        max_memory=model.limit,
    )
