"""Every distance between the last-token representations of pairs of prompts, with its floors, as
columns of a table.

Cost: all in float64, in chunks of pairs that stay in the processor's cache. Logits are made once
for all precisions that are compared with them, and are never held for all prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import tasks
from ostools.ground.errors import RangeError
from ostools.ground.memory import keep_freed_memory
from ostools.ground.out_of_memory import chunk
from ostools.measure.collapse.verdicts import HEAD_CHUNK, HEAD_OUTPUT, READINGS, VECTOR
from ostools.measure.passes.batches import cast_bytes, pass_bytes
from ostools.measure.passes.last_tokens import LastRows, Unembedding
from ostools.measure.passes.precisions import Precision
from ostools.measure.unloaded import Unloaded
from ostools.mitigations import Mitigation
from ostools.models.precision.torch_state import float32_products
from ostools.models.shape import Shape
from ostools.models.tokens import EncodingOptions
from ostools.tasks import CollapseTask, Task, TaskPairs
from ostools.theory import distances

CHUNK = 1 << 18
"""Numbers in one float64 chunk: 2 MB, which stay in a processor's cache. Out of it a step takes
three times as long.
"""
_LOGITS = 1 << 24
"""Logits of one product, 128 MB in float64: to cast a large unembedding takes longer than to work
with a chunk of logits.
"""
_NA = float("nan")

VECTOR_SITES = tuple(site for site, readings in READINGS.items() if VECTOR in readings)
Columns = dict[str, np.ndarray]
SiteColumns = tuple[dict[str, Any], Columns]
"""The site, layer, per and norm of some rows, and the numbers in them."""
VectorDistances = tuple[Float[np.ndarray, " pair"], Float[np.ndarray, " pair"]]
Heads = Float[Tensor, "head d_head d_model"]


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of all prompts in one precision, with what turns them into logits and head
    outputs.
    """

    precision: Precision
    rows: LastRows
    unembedding: Unembedding
    w_o: Heads

    def of(self, prompts: Int[Tensor, " row"]) -> LastTokens:
        """Rows of some of the prompts alone, in that order."""
        return replace(self, rows=self.rows.of(prompts))

    @property
    def places(self) -> list[tuple[str, int]]:
        """Sites with the number of blocks before each: v^(l) of the layers kept, and the others
        after all blocks.
        """
        layers = sorted(self.rows.residuals)
        no_heads = not len(self.w_o)  # where blocks are closed
        others = [
            site
            for site in READINGS
            if site != "residual" and not (site == "attention" and no_heads)
        ]
        return [
            *(("residual", layer) for layer in layers),
            *((site, layers[-1]) for site in others),
        ]

    def at(
        self, site: str, index: Int[Tensor, " row"], layer: int | None = None
    ) -> Float[Tensor, "row ..."]:
        """A site's vectors in the model's dtype; "attention" [row, head, d_model], each head's own
        z W_O.

        layer: at "residual", which v^(l); None is L.
        """
        index = index.to(self.rows.y.device)
        if site == "residual":
            return (self.rows.residual if layer is None else self.rows.residuals[layer])[index]
        if site == "y":
            return self.rows.y[index]
        if site == "logits":
            return self.unembedding(self.rows.y[index])
        z = self.rows.z[index]
        with float32_products():
            return torch.einsum(
                "rhe,hed->rhd", z, self.w_o.to(z)
            )  # attention may run in float32 over 16-bit weights

    def read(
        self,
        site: str,
        first: Int[Tensor, " pair"],
        second: Int[Tensor, " pair"],
        layer: int | None = None,
    ) -> Iterator[tuple[Float[Tensor, "some ..."], Float[Tensor, "some ..."]]]:
        """A site's vectors of v and of v*, a chunk of pairs at a time. Prompts with the same y have
        the same logits to the bit: they are made once for both."""
        step = max(1, chunk(CHUNK) // self.width(site))
        if site != "logits":
            for v, v_star in zip(first.split(step), second.split(step), strict=True):
                yield self.at(site, v, layer), self.at(site, v_star, layer)
            return
        at_once = step * max(1, logits_rows(self.unembedding.d_vocab) // step)
        for v, v_star in zip(first.split(at_once), second.split(at_once), strict=True):
            distinct, row = torch.unique(
                self.at("y", torch.cat([v, v_star])), dim=0, return_inverse=True
            )
            logits, rows = self.unembedding(distinct), (row[: len(v)], row[len(v) :])
            for v_row, v_star_row in zip(*(part.split(step) for part in rows), strict=True):
                yield logits[v_row], logits[v_star_row]

    def width(self, site: str) -> int:
        """Numbers that a site has per row."""
        if site == "attention":
            return int(self.w_o.shape[0] * self.w_o.shape[2])
        return int(self.unembedding.d_vocab if site == "logits" else self.rows.y.shape[-1])


@dataclass(frozen=True)
class References:
    """Two float64 runs: of the weights as this precision stores them (None where the run itself is
    that one, whose own rounding is not known), and of the weights as the model was given (None
    where they are the same)."""

    same_weights: LastTokens | None
    given_weights: LastTokens | None

    def of(self, prompts: Int[Tensor, " row"]) -> References:
        """Rows of some of the prompts alone, in that order."""
        return References(
            *(run and run.of(prompts) for run in (self.same_weights, self.given_weights))
        )


def pair_columns(
    compared: Sequence[tuple[LastTokens, References]],
    exact_runs: Sequence[LastTokens],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
) -> tuple[list[list[SiteColumns]], list[dict[str, VectorDistances]]]:
    """Columns over pairs of rows, v = `first` and v* = `second`, for each (site, layer, per, norm):
    of every run beside its references. And of each of the `exact_runs`, by site, the L2 distance of
    the whole vectors and that over ||v||: what a collapse length is read from. Every vector is read
    once, whatever it is compared with.

    noise: ||y - y_float64||, both with the weights that this precision stores; pair_noise: the same of the difference,
    ||(y - y*) - (y_float64 - y*_float64)||, smaller where v and v* are rounded alike; weight_shift: what storing the weights
    did to y, ||y_float64 of these weights - y_float64 of the given ones||, which v and v* have in common; float64_distance: the
    distance itself, ||y_float64 - y*_float64|| with the weights that this precision stores.
    """
    keep_freed_memory()
    used = [
        run
        for tokens, other in compared
        for run in (tokens, other.same_weights, other.given_weights)
    ]
    runs = {id(run): run for run in (*used, *exact_runs) if run is not None}
    tables: list[list[SiteColumns]] = [[] for _ in compared]
    curves: list[dict[str, VectorDistances]] = [{} for _ in exact_runs]
    places = next(iter(runs.values())).places
    for site, layer in places:
        has_curve = site in VECTOR_SITES and layer == places[-1][1]
        columns_by_run, sizes = _columns_at(
            (site, layer), runs, compared, exact_runs if has_curve else (), (first, second)
        )
        for table, columns in zip(tables, columns_by_run, strict=True):
            for (per, norm), values in columns.items():
                table.append(({"site": site, "layer": layer, "per": per, "norm": norm}, values))
        for curve, (distance, size) in zip(curves, sizes, strict=False):  # no sizes: no curve here
            with np.errstate(divide="ignore", invalid="ignore"):
                curve[site] = distance, distance / size
    return tables, curves


def _columns_at(
    place: tuple[str, int],
    runs: Mapping[int, LastTokens],
    compared: Sequence[tuple[LastTokens, References]],
    curve_runs: Sequence[LastTokens],
    pairs: tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]],
) -> tuple[list[dict[tuple[str, str], Columns]], Float[np.ndarray, "run two pair"]]:
    """Return every compared run's columns at one site and layer, and of each of `curve_runs` the L2
    distances and ||v||."""
    count = len(pairs[0])
    columns_by_run: list[dict[tuple[str, str], Columns]] = [{} for _ in compared]
    sizes = np.empty((len(curve_runs), 2, count))
    for rows, vectors in _read_together(runs, place, pairs):
        for columns, (tokens, references) in zip(columns_by_run, compared, strict=True):
            for reading, values in _chunk_columns(place[0], vectors, tokens, references):
                _fill(columns, reading, rows, count, values)
        for row, run in zip(sizes, curve_runs, strict=True):
            v, v_star = vectors[id(run)]
            norms = distances.distance(v, v_star, "l2"), distances.vector_norm(v, "l2")
            row[:, rows] = torch.stack(norms).cpu().numpy()
    return columns_by_run, sizes


def _read_together(
    runs: Mapping[int, LastTokens],
    place: tuple[str, int],
    pairs: tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]],
) -> Iterator[tuple[slice, dict[int, tuple[Tensor, Tensor]]]]:
    """Yield, a chunk of pairs at a time, which rows they are and v and v* of every run.

    Raises `RangeError` for logits that are not finite.
    """
    site, layer = place
    start = 0
    for vectors in zip(*(run.read(site, *pairs, layer) for run in runs.values()), strict=True):
        vectors_by_run = dict(zip(runs, vectors, strict=True))
        if site == "logits":
            _require_finite_logits(runs, vectors_by_run)
        rows = slice(start, start + len(vectors[0][0]))
        yield rows, vectors_by_run
        start = rows.stop


def _fill(
    columns: dict[tuple[str, str], Columns],
    reading: tuple[str, str],
    rows: slice,
    count: int,
    values: Columns,
) -> None:
    """Write a chunk's values of one reading (per, norm) into that reading's columns of `count`
    rows.

    The columns are made whole at the first chunk: small arrays kept chunk by chunk would hold the
    memory around them.
    """
    if reading not in columns:
        columns[reading] = {name: np.empty(count, part.dtype) for name, part in values.items()}
    for name, part in values.items():
        columns[reading][name][rows] = part


def _require_finite_logits(
    runs: Mapping[int, LastTokens], logits: Mapping[int, tuple[Tensor, Tensor]]
) -> None:
    for key, rows in logits.items():
        if not all(math.isfinite(float(x.sum(dtype=torch.float64))) for x in rows):
            raise RangeError(
                f"collapse in {runs[key].precision.name}: logits are not finite where y is: leave this dtype out, or check the "
                "model's weights"
            )


def _chunk_columns(
    site: str,
    by_run: Mapping[int, tuple[Tensor, Tensor]],
    tokens: LastTokens,
    references: References,
) -> Iterator[tuple[tuple[str, str], Columns]]:
    """The columns of one run at a chunk of pairs, by (per, norm). `by_run`: v and v* of every run."""
    v, v_star = by_run[id(tokens)]
    exact, exact_star = (
        (None, None) if references.same_weights is None else by_run[id(references.same_weights)]
    )
    as_given = None if references.given_weights is None else by_run[id(references.given_weights)][0]
    logit_columns: Columns = {}
    if site == "logits":
        p, q = (torch.softmax(x.double(), dim=-1) for x in (v, v_star))
        top = v.argmax(-1)
        same: dict[str, Tensor] = {"same_top_token": top == v_star.argmax(-1), "next_token": top}
        same |= {
            "identical_logits": (v == v_star).all(-1),
            "total_variation": distances.total_variation(p, q),
        }
        logit_columns = {name: values.cpu().numpy() for name, values in same.items()}
    pieces = v.double(), v_star.double(), exact, exact_star, as_given
    for per, cut in _readings(site, pieces, int(tokens.w_o.shape[0])):
        for norm, columns in _floors_and_distances(cut, tokens.precision):
            yield (per, norm), columns | logit_columns


# v, v*, float64's v and v* with the same weights, and float64's v with the given ones (None: see
# `References`), in float64; [pair, piece, d], or [pair, d] for a vector not cut yet.
PairVectors = Float[Tensor, "pair ..."]
Pieces = tuple[PairVectors, PairVectors, PairVectors | None, PairVectors | None, PairVectors | None]


def _readings(site: str, pieces: Pieces, n_heads: int) -> Iterator[tuple[str, Pieces]]:
    """The vectors cut into the pieces of each reading."""

    def cut(cutter: Callable[[Tensor], Tensor]) -> Any:
        return tuple(None if vectors is None else cutter(vectors) for vectors in pieces)

    if site == "attention":
        yield HEAD_OUTPUT, pieces
        return
    yield VECTOR, cut(lambda x: x[:, None])
    if site != "logits" and n_heads and pieces[0].shape[-1] % n_heads == 0:
        yield HEAD_CHUNK, cut(partial(distances.head_chunks, n_heads=n_heads))


def _floors_and_distances(pieces: Pieces, precision: Precision) -> Iterator[tuple[str, Columns]]:
    v, v_star, exact, exact_star, as_given = pieces
    steps = precision.steps(v, v_star)
    compared = {"distance": (v, v_star)}
    if exact is not None and exact_star is not None:
        compared |= {"exact": (exact, exact_star), "noise": (v, exact)}
    if as_given is not None:
        compared["shift"] = (v if exact is None else exact, as_given)
    differences = {name: x - y for name, (x, y) in compared.items()}
    if "exact" in differences:
        differences["pair_noise"] = differences["distance"] - differences["exact"]
    directions = {id(x): distances.direction(x) for pair in compared.values() for x in pair}
    for norm in distances.NORMS:
        if norm == "cosine":  # it has no length, so neither a share of one nor a step
            turned = {
                name: (directions[id(x)], directions[id(y)]) for name, (x, y) in compared.items()
            }
            sizes = {name: distances.direction_distance(*pair) for name, pair in turned.items()}
            distance = sizes["distance"]
            relative = ulps = line = unknown = torch.full_like(distance, _NA)
        else:
            sizes = {name: distances.vector_norm(x, norm) for name, x in differences.items()}
            size = distances.vector_norm(v, norm)
            distance, line = sizes["distance"], distances.vector_norm(steps, norm)
            unknown = torch.full_like(distance, _NA)
            relative, ulps = torch.where(size > 0, distance / size, unknown), distance / line
        columns = {
            "mean": distance.mean(-1),
            "minimum": distance.amin(-1),
            "maximum": distance.amax(-1),
            "relative": relative.mean(-1),
            "ulps": ulps.mean(-1),
            "float64_distance": sizes.get("exact", distance).mean(-1),
            "noise": sizes.get("noise", unknown).mean(-1),
            "pair_noise": sizes.get("pair_noise", unknown).mean(-1),
            "weight_shift": sizes.get("shift", torch.zeros_like(distance)).mean(-1),
            "machine_line": line.mean(-1),
        }
        yield norm, {name: values.cpu().numpy() for name, values in columns.items()}


def logits_rows(d_vocab: int) -> int:
    """Number of rows whose logits are made by one product."""
    return max(1, chunk(_LOGITS) // d_vocab)


def require_finite(last_tokens: LastTokens, what: str, lengths: list[int], *, logits: bool) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length.
    `lengths`: items of each row.
    `logits`: whether to make them for this."""
    name, dtype = last_tokens.precision.name, last_tokens.precision.dtype
    places = sorted(
        last_tokens.places, key=lambda place: place[0] == "logits"
    )  # of what is not finite, the first
    index = torch.arange(len(lengths))
    for site, layer in places:
        if site == "logits" and not logits:
            continue
        start = 0
        for rows, _ in last_tokens.read(site, index, index, layer):
            wrong = ~torch.isfinite(rows).flatten(1).all(-1)
            if bool(wrong.any()):
                length = min(lengths[start + int(i)] for i in wrong.nonzero()[:, 0])
                holds = f"{str(dtype).removeprefix('torch.')} holds numbers up to {torch.finfo(dtype).max:.3g}"
                raise RangeError(
                    f"{what} in {name}: {site} at length {length} is not finite; {holds}"
                )
            start += len(rows)


def collapse_bytes(
    shape: Shape, pos: int, pairs: int, dtypes: Sequence[str], *, layers: int = 1
) -> int:
    """Bytes that so many pairs hold, the longest prompt of `pos` tokens: the largest pass, in
    float64 or in a precision, and the chunks of distances and logits. `layers`: so many streams are
    compared."""
    precisions = [Precision.of_name(name) for name in dtypes]
    elements = [
        8,
        *(precision.dtype.itemsize for precision in precisions if precision.name != "float64"),
    ]
    # Weights that a precision rounds have a float64 run of their own; those of a 16-bit model in
    # its own dtype are rounded already, which is not known before they are read.
    elements += [8 for element in elements[1:] if element < shape.element]
    largest = max(
        pass_bytes(shape, 1, pos, 1, element) + cast_bytes(shape, element) for element in elements
    )
    chunks = (min(pairs, CHUNK // width + 1) * width for width in (shape.d_vocab, shape.d_model))
    streams = (
        2 * 8 * 2 * pairs * (layers - 1) * shape.d_model
    )  # last tokens alone, in float64 and in the precision
    logits = min(pairs, logits_rows(shape.d_vocab)) * shape.d_vocab * 2 * sum(elements)
    return largest + 12 * 8 * max(chunks) + streams + logits


def collapse_memory(
    model: Unloaded,
    task: Task | CollapseTask | str,
    lengths: Sequence[int],
    *,
    dtypes: Sequence[str],
    seeds: Sequence[int] = (0,),
    layers: Sequence[int] | str | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> int:
    """Bytes of the pairs of a task, in each dtype; of prompts in the chat template with the answer
    line begun, the most.
    """
    layer_count = model.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers or ())
    form = tasks.task(task, CollapseTask) if isinstance(task, str) else task
    form, most = (
        (form.form, max(lengths) + 1) if isinstance(form, TaskPairs) else (form, max(lengths))
    )
    longest = model.longest(form, [most], mitigation=mitigation, seed=next(iter(seeds)), **encoding)
    return collapse_bytes(
        model.shape, longest.tokens + longest.answer, len(lengths), dtypes, layers=layer_count
    )
