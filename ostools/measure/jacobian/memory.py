"""Memory of sensitivity: forecast before it runs, and fitted to what there is.

Too large a run takes fewer cotangents at a time first, then is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.ground.out_of_memory import chunk as chunk_of
from ostools.measure.formulas.forward import KEPT_BYTES, kept_weights
from ostools.measure.formulas.scores import strip_bounds
from ostools.measure.jacobian.norms import COTANGENTS, NORM_BUDGET, choose_method, most_rows
from ostools.measure.jacobian.routes import DEFAULT_LINEARISATIONS, FROZEN_PARTS, block_bytes, cores_bytes
from ostools.measure.passes.batches import in_full
from ostools.measure.passes.contexts import strip_size
from ostools.measure.passes.output import one_or_two, read_up_to
from ostools.measure.unloaded import Unloaded
from ostools.models.shape import Shape

# Rows of cotangents times tokens that one block of products carries: about what stays in a CPU's caches, what fills a GPU.
_BLOCK = {"cpu": 2048, "cuda": 1 << 16}
ALLOCATOR = 32 << 20
"""What the allocator keeps back of small blocks that were freed."""
_SMALLEST = {"cpu": 4, "cuda": 16}


@dataclass(frozen=True)
class MemoryPlan:
    """Plan of a run, and its forecast in bytes on top of the loaded model.

    `chunk` cotangents go through a block's products at a time. `reading`: while a block is read; `kept_bytes`: of the
    blocks that are held linearised, one or, of a short prompt, all; `work`: of a chunk; `rows`: of all products that are kept;
    `norms`: of taking their norms; `check`: of the finite differences, which hold every block's pattern where the
    linearisation does; `cores`: of every block's MLP as one matrix a token, kept for all linearisations; 0: not made.
    """

    chunk: int
    reading: int
    kept_bytes: int
    work: int
    rows: int
    norms: int
    check: int
    cores: int = 0

    @property
    def peak(self) -> int:
        """Beside the rows: the blocks are read and applied in turns, then the norms are taken and checked."""
        in_turns = max(self.reading, self.kept_bytes + max(self.work, self.norms, self.check))
        return ALLOCATOR + self.cores + self.rows + in_turns

    def __str__(self) -> str:
        return f"{self.peak / 2**30:.2f} GiB of memory, {self.chunk} rows at a time"


def plan(
    shape: Shape,
    pos: int,
    layers: int,
    *,
    live: bool,
    max_memory: int,
    rows: int | None = None,
    by_autograd: bool = False,
) -> MemoryPlan:
    """The fastest way through a prompt of `pos` tokens, measured at `layers` layers, within `max_memory` bytes.

    Args:
        live: the scores are differentiated too (`full`, `frozen-norm`).
        rows: how many products are kept; None for the exact Jacobians, all d_model of them.
        by_autograd: the generic route, whose graph holds `chunk` copies of the prompt.

    Raises `InsufficientMemoryError` where not even one row at a time fits.
    """
    d_model = shape.d_model
    largest = min(d_model, max(_SMALLEST.get(shape.device, 4), _BLOCK.get(shape.device, 2048) // pos))
    cores, chunk = cores_bytes(shape, pos), chunk_of(largest)
    forecast_of = partial(_forecast, shape, pos, layers, live, rows, by_autograd)
    forecast = forecast_of(chunk)
    if rows is None and not by_autograd and cores <= chunk_of(KEPT_BYTES):
        with_cores = replace(forecast, cores=cores)
        if with_cores.peak <= max_memory:
            return with_cores
    while forecast.peak > max_memory and chunk > 1:
        chunk //= 2
        forecast = forecast_of(chunk)
    if forecast.peak <= max_memory:
        return forecast
    raise InsufficientMemoryError(
        f"{pos} tokens at d_model {d_model} need {forecast.peak / 2**30:.2f} GiB at least, {max_memory / 2**30:.2f} GiB are "
        f"allowed: shorten the prompt, free memory, or raise max_memory (--max-memory)"
        + (", or take method 'sketch'" if rows is None else "")
    )


def graph_bytes(shape: Shape, pos: int) -> int:
    """Bytes that autograd keeps of one prompt: about four squares a head and layer, ten vectors a token, the slopes of the
    MLP."""
    of_layer = 4 * shape.n_heads * pos + 10 * shape.d_model + 4 * shape.d_mlp
    return pos * shape.n_layers * of_layer * shape.element


def fits(shape: Shape, pos: int, layers: int, *, live: bool, max_memory: int) -> bool:
    """Whether the exact run has a plan at all."""
    return _forecast(shape, pos, layers, live, None, False, 1).peak <= max_memory


def _forecast(
    shape: Shape,
    pos: int,
    layers: int,
    live: bool,
    rows: int | None,
    by_autograd: bool,
    chunk: int,
) -> MemoryPlan:
    """Counted in numbers, from the shapes that the routes allocate; times the size of one in the end."""
    d_model, heads, n_layers, element = shape.d_model, shape.n_heads, shape.n_layers, shape.element
    d_mlp = shape.d_mlp
    head_vectors = pos * heads * shape.d_head
    bounds, size = strip_bounds(pos), strip_size(shape, pos)
    # The scores that are held at once: of all queries, or of a long prompt of one strip of them, with the mask of the whole.
    square, mask = heads * pos * (size or pos), 0 if size is None else 2 * pos**2
    cast = shape.view_bytes(element) // element if shape.cast else 0
    block = block_bytes(shape, pos, live)
    kept_numbers = (
        block * (n_layers if n_layers * block <= chunk_of(KEPT_BYTES) else 1) + kept_weights(shape, element)
    ) // element
    vectors = pos * (7 * d_model + 3 * d_mlp) * element
    sites = shape.site_bytes(pos) if size is None else n_layers * vectors
    kept_sites = size is None and sites <= chunk_of(KEPT_BYTES)
    # One block as it is read: its pattern, and where they are differentiated the scores and what they are compared with; its
    # weights with the norms' gains in them. Or a plain pass, with a part of the unembedding.
    reading = (
        kept_numbers + (9 if live else 3) * square + mask + pos * (6 * d_mlp + 12 * d_model) + shape.block_parameters
    )
    plain = 2 * cast + 3 * square + mask + pos * (3 * d_mlp + 6 * d_model)
    strip = heads * max((stop - start) * stop for start, stop in bounds) if size is None else square
    strip = strip if live else 0
    work = chunk * (2 * strip + pos * (5 * d_model + 2 * d_mlp) + (6 if live else 3) * head_vectors)
    if by_autograd:
        kept_numbers = chunk * graph_bytes(shape, pos) // element  # read and walked
        reading, work = kept_numbers + cast, kept_numbers // n_layers + cast
    places = pos * layers
    # Of the exact Jacobians their squares, some tokens at a time; of a sketch the Gram matrices of all tokens in float64.
    norms = min(3 * places * d_model**2 * element, 3 * NORM_BUDGET) if rows is None else 3 * places * rows**2 * 8
    # Held patterns are one a layer, or of a long prompt its queries and keys.
    frozen_numbers = 0 if live else n_layers * (square if size is None else 2 * head_vectors)
    check = 3 * square + mask + frozen_numbers + cast
    return MemoryPlan(
        chunk=chunk,
        reading=max(reading, plain) * element + (sites if kept_sites else sites // n_layers),
        kept_bytes=kept_numbers * element,
        work=work * element,
        rows=places * (rows or d_model) * d_model * element,
        norms=norms,
        check=check * element,
    )


_WITHOUT_LIMIT = 1 << 62


def sensitivity_bytes(
    shape: Shape,
    pos: int,
    linearisations: Sequence[str] = DEFAULT_LINEARISATIONS,
    *,
    layers: int = 1,
    method: str = "auto",
    cotangents: int = COTANGENTS,
    max_memory: int | None = None,
    one_row: bool = False,
) -> int:
    """Peak of a prompt of `pos` tokens, at `layers` residual streams, within `max_memory` bytes beside the model. `one_row`: of
    a logit, whose derivative is one row.

    Raises `InsufficientMemoryError` where not even the smallest steps fit into `max_memory`.
    """
    work, d_model, peak = in_full(shape), shape.d_model, 0
    limit = _WITHOUT_LIMIT if max_memory is None else max_memory
    for name in linearisations:
        live, method_taken = not FROZEN_PARTS[name].attention, "exact" if one_row else method
        if method_taken == "auto":
            exact_fits = fits(work, pos, layers, live=live, max_memory=limit)
            method_taken = choose_method(d_model, exact_fits=exact_fits).method
        kept_rows = 1 if one_row else None if method_taken == "exact" else most_rows(d_model, method_taken, cotangents)
        peak = max(peak, plan(work, pos, layers, live=live, max_memory=limit, rows=kept_rows).peak)
    return peak


def require_exact_logit(logit: str | int | Sequence[str | int], method: str, linearisations: Sequence[str]) -> None:
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
    position: int | str | None = None,
    logit: str | int | Sequence[str | int] | None = None,
) -> int:
    """Bytes of a prompt's Jacobians, or of those of its beginning up to `position`."""
    names = (linearisations,) if isinstance(linearisations, str) else linearisations or DEFAULT_LINEARISATIONS
    if logit is not None:
        require_exact_logit(logit, method, names)
    return sensitivity_bytes(
        model.shape,
        read_up_to(position if isinstance(position, int) else None, pos),
        names,
        layers=model.shape.n_layers + 1 if isinstance(layers, str) else len(layers),
        method=method,
        cotangents=cotangents,
        one_row=logit is not None,
        max_memory=model.limit,
    )
