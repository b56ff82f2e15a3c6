"""What a measurement will need in memory: forecast before it runs, and fitted to what there is.

Too large a run takes fewer cotangents at a time first, then puts the Jacobians' rows into a file, then is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ostools.ground.chunks import chunk as chunk_of
from ostools.ground.errors import InsufficientMemoryError
from ostools.ground.memory import free_memory
from ostools.measure.formulas.forward import KEPT
from ostools.measure.formulas.strips import strip_bounds
from ostools.measure.jacobian.exact import NORM_BUDGET
from ostools.measure.jacobian.linearised import block_bytes
from ostools.models.shape import Shape
from ostools.theory.path_sum.operators import CHUNK_BUDGET

# Rows of cotangents times tokens that one block of products carries: about what stays in a CPU's caches, what fills a GPU.
_BLOCK = {"cpu": 2048, "cuda": 1 << 16}
# What the allocator keeps back of small blocks that were freed.
_ALLOCATOR = 32 << 20
_SMALLEST = {"cpu": 4, "cuda": 16}


@dataclass(frozen=True)
class MemoryPlan:
    """How a run will go, and its forecast in bytes on top of the loaded model.

    `chunk` cotangents go through a block's products at a time. `rows_on_disk`: so many rows are carried through the network
    together and then put into a file; None: all are kept in memory. `reading`: while a block is read; `kept`: of the blocks
    that are held linearised, one or, of a short prompt, all; `work`: of a chunk; `rows`: of all products that are kept,
    `one_row`: of one; `norms`: of taking their norms; `check`: of the finite differences, which hold every block's pattern
    where the linearisation does.
    """

    chunk: int
    rows_on_disk: int | None
    reading: int
    kept: int
    work: int
    rows: int
    one_row: int
    norms: int
    check: int

    @property
    def peak(self) -> int:
        """Beside the rows: the blocks are read and applied in turns, then the norms are taken and checked."""
        rows = self.rows if self.rows_on_disk is None else self.rows_on_disk * self.one_row
        return _ALLOCATOR + rows + max(self.reading, self.kept + max(self.work, self.norms, self.check))

    def __str__(self) -> str:
        where = "" if self.rows_on_disk is None else f" and {self.rows / 2**30:.2f} GiB in a temporary file"
        return f"{self.peak / 2**30:.2f} GiB of memory{where}, {self.chunk} rows at a time"


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still have on the device now."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory().bytes


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
        rows: how many products are kept; None for the exact Jacobians, all d_model of them, which a file can hold.
        by_autograd: the generic route, whose graph holds `chunk` copies of the prompt.

    Raises `InsufficientMemoryError` where not even one row at a time fits.
    """
    d_model = shape.d_model
    largest = min(d_model, max(_SMALLEST.get(shape.device, 4), _BLOCK.get(shape.device, 2048) // pos))
    largest = chunk_of(largest)
    asked = shape, pos, layers, live, rows or d_model
    forecast = None
    for on_disk in (False, True) if rows is None else (False,):
        chunk = largest
        while chunk >= 1:
            forecast = _forecast(*asked, chunk, 0 if on_disk else None, by_autograd)
            left = max_memory - forecast.peak
            if not on_disk and left >= 0:
                return forecast
            if on_disk and left >= chunk * forecast.one_row:
                return replace(forecast, rows_on_disk=min(d_model, left // forecast.one_row))
            chunk //= 2
    assert forecast is not None
    raise InsufficientMemoryError(
        f"{pos} tokens at d_model {d_model} need {forecast.peak / 2**30:.2f} GiB at least, {max_memory / 2**30:.2f} GiB are "
        f"allowed: shorten the prompt, free memory or raise max_memory, or predict with path_sum(variants=['second-moment'])"
    )


def fits(shape: Shape, pos: int, layers: int, *, live: bool, max_memory: int) -> bool:
    """Whether the exact run has a plan at all."""
    return _forecast(shape, pos, layers, live, shape.d_model, 1, 1, False).peak <= max_memory


def path_sum_bytes(shape: Shape, pos: int, *, heads: bool, live: bool) -> int:
    """The forecast of a path sum to the last token: O(n^2) numbers a head, of one block at a time.

    `heads`: a variant reads the heads' patterns one by one in float64; `live`: a variant of the real derivative. Measured on a
    CPU from 1,000 to 4,000 tokens it is within 30%, mostly below.
    """
    squares, square = shape.n_heads * pos**2 * shape.element, pos**2 * 8
    vectors = pos * (6 * shape.d_mlp + 20 * shape.d_model) * 8
    # The block as the model runs it, then what is read off it: rows in float64, scores and what they are compared with.
    reading = squares + 5 * square + (2 if heads else 0) * squares + (18 if live else 0) * squares
    sites = shape.site_bytes(pos)
    kept = sites if sites <= chunk_of(KEPT) else 0
    return _ALLOCATOR + 3 * chunk_of(CHUNK_BUDGET) + kept + vectors + max(7 * squares // 2, reading)


def _forecast(
    shape: Shape,
    pos: int,
    layers: int,
    live: bool,
    rows: int,
    chunk: int,
    rows_on_disk: int | None,
    by_autograd: bool,
) -> MemoryPlan:
    """Counted in numbers, from the shapes that the routes allocate; times the size of one in the end."""
    d_model, heads, n_layers, element = shape.d_model, shape.n_heads, shape.n_layers, shape.element
    d_mlp = shape.d_mlp
    head_vectors = pos * heads * shape.d_head
    bounds = strip_bounds(pos)
    cast = shape.view_bytes(element) // element if shape.cast else 0
    block = block_bytes(shape, pos, live)
    kept = block * (n_layers if n_layers * block <= chunk_of(KEPT) else 1) // element
    sites = shape.site_bytes(pos)
    # One block as it is read: its pattern, and where they are differentiated the scores and what they are compared with; its
    # weights with the norms' gains in them. Or a plain pass, with a part of the unembedding.
    reading = kept + (9 if live else 3) * heads * pos**2 + pos * (6 * d_mlp + 12 * d_model) + shape.block_parameters
    plain = cast + heads * pos**2 * 3 + pos * (3 * d_mlp + 6 * d_model)
    strip = heads * max((stop - start) * stop for start, stop in bounds) if live else 0
    work = chunk * (2 * strip + pos * (5 * d_model + 2 * d_mlp) + (6 if live else 3) * head_vectors)
    if by_autograd:
        # The graph: about four squares a head and layer, ten vectors a token, and the slopes of the MLP; read and walked.
        kept = chunk * pos * n_layers * (4 * heads * pos + 10 * d_model + 4 * d_mlp)
        reading, work = kept + cast, kept // n_layers + cast
    places = pos * layers
    norms = min(3 * places * d_model**2, 3 * NORM_BUDGET // element)
    check = heads * pos**2 * (3 if live else 3 + n_layers) + cast
    return MemoryPlan(
        chunk=chunk,
        rows_on_disk=rows_on_disk,
        reading=max(reading, plain) * element + (sites if sites <= chunk_of(KEPT) else sites // n_layers),
        kept=kept * element,
        work=work * element,
        rows=places * rows * d_model * element,
        one_row=places * d_model * element,
        norms=norms * element,
        check=check * element,
    )
