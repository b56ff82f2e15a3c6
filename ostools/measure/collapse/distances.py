"""Every distance between the last-token representations of pairs of prompts, with its floors, as
columns of a table.

Cost: all in float64, in chunks of pairs that stay in the processor's cache. Logits are made once
for all precisions that are compared with them, and are never held for all prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground.errors import RangeError
from ostools.ground.memory import keep_freed_memory
from ostools.ground.out_of_memory import chunk
from ostools.measure.collapse.verdicts import HEAD_CHUNK, HEAD_OUTPUT, READINGS, VECTOR
from ostools.measure.passes.last_tokens import LastRows, Unembedding
from ostools.measure.passes.precisions import Precision
from ostools.models.precision.torch_state import float32_products
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
        # To cast a large unembedding takes longer than to work with a chunk of logits.
        at_once = step * max(1, logits_rows(self.width(site)) // step) if site == "logits" else step
        for v, v_star in zip(first.split(at_once), second.split(at_once), strict=True):
            prompts = torch.cat([v, v_star])
            if site == "logits":
                y, row = torch.unique(self.at("y", prompts), dim=0, return_inverse=True)
                vectors = self.unembedding(y)
            else:
                vectors, row = self.at(site, prompts, layer), torch.arange(len(prompts))
            for pair in zip(row[: len(v)].split(step), row[len(v) :].split(step), strict=True):
                yield vectors[pair[0]], vectors[pair[1]]

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

    same_weights: LastTokens | None = None
    given_weights: LastTokens | None = None

    def of(self, prompts: Int[Tensor, " row"]) -> References:
        """Rows of some of the prompts alone, in that order."""
        runs = (self.same_weights, self.given_weights)
        return References(*(run and run.of(prompts) for run in runs))


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

    noise: ||y - y_float64||, both with the weights that this precision stores; pair_noise: the same
    of the difference, ||(y - y*) - (y_float64 - y*_float64)||, smaller where v and v* are rounded
    alike; weight_shift: what storing the weights did to y, ||y_float64 of these weights - y_float64
    of the given ones||, which v and v* have in common; float64_distance: the distance itself,
    ||y_float64 - y*_float64|| with the weights that this precision stores.
    """
    keep_freed_memory()
    jobs = [*compared, *((run, None) for run in exact_runs)]
    runs = _runs_of(jobs)
    tables: list[list[SiteColumns]] = [[] for _ in compared]
    curves: list[dict[str, VectorDistances]] = [{} for _ in exact_runs]
    places = next(iter(runs.values())).places
    for site, layer in places:
        by_job = _columns_at(site, _read_together(runs, (site, layer), first, second), jobs)
        for table, by_reading in zip(tables, by_job, strict=False):
            for (per, norm), columns in by_reading.items():
                names = {"site": site, "layer": layer, "per": per, "norm": norm}
                table.append((names, columns))
        if VECTOR in READINGS[site] and layer == places[-1][1]:
            for curve, by_reading in zip(curves, by_job[len(compared) :], strict=True):
                distance, size = by_reading[VECTOR, "l2"].values()
                with np.errstate(divide="ignore", invalid="ignore"):
                    curve[site] = distance, distance / size
    return tables, curves


def _runs_of(jobs: Sequence[tuple[LastTokens, References | None]]) -> dict[int, LastTokens]:
    """Every run that is read, once, by its identity."""
    runs = [
        run for tokens, beside in jobs for run in (tokens, *vars(beside or References()).values())
    ]
    return {id(run): run for run in runs if run is not None}


def _columns_at(
    site: str,
    chunks: Iterator[dict[int, tuple[Tensor, Tensor]]],
    jobs: Sequence[tuple[LastTokens, References | None]],
) -> list[dict[tuple[str, str], Columns]]:
    """The columns at one site and layer by (per, norm), of every job."""
    parts: list[dict[tuple[str, str], list[Columns]]] = [{} for _ in jobs]
    for vectors in chunks:
        for part, (tokens, references) in zip(parts, jobs, strict=True):
            if references is None:
                readings = _size_columns(site, *vectors[id(tokens)])
            else:
                readings = _chunk_columns(site, vectors, tokens, references)
            for reading, columns in readings:
                part.setdefault(reading, []).append(columns)
    return [{reading: _joined(columns) for reading, columns in part.items()} for part in parts]


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read_together(
    runs: Mapping[int, LastTokens],
    place: tuple[str, int],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """v and v* of every run, a chunk of pairs at a time. Raises `RangeError` for logits that are
    not finite.
    """
    site, layer = place
    for chunks in zip(
        *(run.read(site, first, second, layer) for run in runs.values()), strict=True
    ):
        for run, pair in zip(runs.values(), chunks, strict=True):
            if site == "logits" and not all(
                math.isfinite(float(x.sum(dtype=torch.float64))) for x in pair
            ):
                raise RangeError(
                    f"collapse in {run.precision.name}: logits are not finite where y is: leave this dtype out, or check the "
                    "model's weights"
                )
        yield dict(zip(runs, chunks, strict=True))


def _size_columns(
    site: str, v: Tensor, v_star: Tensor
) -> Iterator[tuple[tuple[str, str], Columns]]:
    """The L2 distance and ||v|| of whole vectors, at a site that has them."""
    if VECTOR in READINGS[site]:
        norms = distances.distance(v, v_star, "l2"), distances.vector_norm(v, "l2")
        columns = (norm.cpu().numpy() for norm in norms)
        yield (VECTOR, "l2"), dict(zip(("distance", "size"), columns, strict=True))


def _chunk_columns(
    site: str,
    pairs: Mapping[int, tuple[Tensor, Tensor]],
    tokens: LastTokens,
    references: References,
) -> Iterator[tuple[tuple[str, str], Columns]]:
    """The columns of one run at a chunk of pairs, by (per, norm). `pairs`: v and v* of every run."""
    v, v_star = pairs[id(tokens)]
    columns_of_logits = _of_logits(v, v_star) if site == "logits" else {}
    compared = {"distance": (v.double(), v_star.double())}
    if (run := references.same_weights) is not None:
        compared |= {"exact": pairs[id(run)], "noise": (compared["distance"][0], pairs[id(run)][0])}
    if (run := references.given_weights) is not None:
        compared["shift"] = compared.get("exact", compared["distance"])[0], pairs[id(run)][0]
    n_heads = int(tokens.w_o.shape[0])
    for per in READINGS[site]:
        if per == HEAD_CHUNK and not (n_heads and v.shape[-1] % n_heads == 0):
            continue
        cut = _CUTS[per]
        pieces = {name: (cut(x, n_heads), cut(y, n_heads)) for name, (x, y) in compared.items()}
        for norm, columns in _norm_columns(pieces, tokens.precision):
            yield (per, norm), columns | columns_of_logits


_CUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    VECTOR: lambda x, n_heads: x[:, None],
    HEAD_CHUNK: distances.head_chunks,
    HEAD_OUTPUT: lambda x, n_heads: x,
}
"""Vectors [pair, ...] as their pieces [pair, piece, d]."""


def _of_logits(v: Tensor, v_star: Tensor) -> Columns:
    p, q = (torch.softmax(x.double(), dim=-1) for x in (v, v_star))
    top = v.argmax(-1)
    columns = {
        "same_top_token": top == v_star.argmax(-1),
        "next_token": top,
        "identical_logits": (v == v_star).all(-1),
        "total_variation": distances.total_variation(p, q),
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _norm_columns(
    compared: Mapping[str, tuple[Tensor, Tensor]], precision: Precision
) -> Iterator[tuple[str, Columns]]:
    """The columns in every norm. `compared`: v and v*; where they are known float64's v and v* with
    the same weights (exact), v and float64's (noise), and float64's v of the two weights (shift);
    in float64, [pair, piece, d]."""
    v, v_star = compared["distance"]
    steps = precision.steps(v, v_star)
    differences = {name: x - y for name, (x, y) in compared.items()}
    if "exact" in differences:
        differences["pair_noise"] = differences["distance"] - differences["exact"]
    unknown = v.new_full(v.shape[:-1], _NA)
    for norm in distances.NORMS:
        if norm == "cosine":  # it has no length, so neither a share of one nor a step
            sizes = {name: distances.distance(x, y, norm) for name, (x, y) in compared.items()}
            length = line = unknown
        else:
            sizes = {name: distances.vector_norm(x, norm) for name, x in differences.items()}
            length, line = distances.vector_norm(v, norm), distances.vector_norm(steps, norm)
        distance = sizes["distance"]
        columns = {
            "mean": distance.mean(-1),
            "minimum": distance.amin(-1),
            "maximum": distance.amax(-1),
            "relative": torch.where(length > 0, distance / length, unknown).mean(-1),
            "ulps": (distance / line).mean(-1),
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
    index = torch.arange(len(lengths))
    # Logits last: of what is not finite, the first is named.
    for site, layer in sorted(last_tokens.places, key=lambda place: place[0] == "logits"):
        if site == "logits" and not logits:
            continue
        chunks = last_tokens.read(site, index, index, layer)
        wrong = ~torch.cat([torch.isfinite(rows).flatten(1).all(-1) for rows, _ in chunks])
        if bool(wrong.any()):
            length = min(lengths[int(i)] for i in wrong.nonzero()[:, 0])
            holds = f"{str(dtype).removeprefix('torch.')} holds numbers up to {torch.finfo(dtype).max:.3g}"
            raise RangeError(f"{what} in {name}: {site} at length {length} is not finite; {holds}")
