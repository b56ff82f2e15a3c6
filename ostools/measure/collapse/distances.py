"""Every distance between the last-token representations of pairs of prompts, with its floors, as
columns of a table.

noise: ||y - y_float64||, both with the weights that a precision stores; pair_noise: the same of the
difference, ||(y - y*) - (y_float64 - y*_float64)||, smaller where v and v* are rounded alike;
weight_shift: what storing the weights did to y, ||y_float64 of these weights - y_float64 of the
given ones||, which v and v* have in common; float64_distance: the distance itself in float64, with
the weights that the precision stores.

Cost: all in float64, in chunks of pairs that stay in the processor's cache. Logits are made once
for all precisions that are compared with them, and are never held for all prompts; of so wide a
vector the L2 distance alone is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

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
LOGITS = "logits"
_L2 = ("l2",)

Columns: TypeAlias = dict[str, np.ndarray]
Place: TypeAlias = tuple[str, int, str, str]
"""Site, layer, per and norm."""


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of all prompts in one precision, with what turns them into logits and head
    outputs (no heads where blocks are closed).
    """

    precision: Precision
    rows: LastRows
    unembedding: Unembedding
    w_o: Float[Tensor, "head d_head d_model"]

    def of(self, prompts: Int[Tensor, " row"]) -> LastTokens:
        """Rows of some of the prompts alone, in that order."""
        return replace(self, rows=self.rows.of(prompts))

    @property
    def sites(self) -> list[tuple[str, int]]:
        """Sites with the number of blocks before each: v^(l) of the layers kept, and the others
        after all blocks.
        """
        layers = sorted(self.rows.residuals)
        after = [
            site for site in ("y", LOGITS, "attention") if site != "attention" or len(self.w_o)
        ]
        return [*(("residual", layer) for layer in layers), *((site, layers[-1]) for site in after)]

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
        if site == LOGITS:
            return self.unembedding(self.rows.y[index])
        z = self.rows.z[index]
        with float32_products():  # attention may run in float32 over 16-bit weights
            return torch.einsum("rhe,hed->rhd", z, self.w_o.to(z))

    def read(
        self,
        site: str,
        layer: int,
        first: Int[Tensor, " pair"],
        second: Int[Tensor, " pair"],
        *,
        softmax: bool,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """A site's vectors of v and of v*, a chunk of pairs at a time; and of logits, where `softmax`
        is asked for, the total variation of the two softmaxes. Prompts with the same y have the same logits to the bit:
        these are made once for both. Raises `RangeError` for logits that are not finite.
        """
        step = max(1, chunk(CHUNK) // self.width(site))
        if site != LOGITS:
            for v, v_star in zip(first.split(step), second.split(step), strict=True):
                vectors = self.at(site, torch.cat([v, v_star]), layer)
                yield vectors[: len(v)], vectors[len(v) :], None
            return
        at_once = step * max(1, logits_rows(self.width(site)) // step)
        for v, v_star in zip(first.split(at_once), second.split(at_once), strict=True):
            y, row = torch.unique(self.at("y", torch.cat([v, v_star])), dim=0, return_inverse=True)
            logits = self.unembedding(y)
            if not math.isfinite(float(logits.sum(dtype=torch.float64))):
                raise RangeError(
                    f"collapse in {self.precision.name}: logits are not finite where y is: leave this dtype out, or check the "
                    "model's weights"
                )
            known: dict[int, Tensor] = {}
            for pair in zip(row[: len(v)].split(step), row[len(v) :].split(step), strict=True):
                if not softmax:
                    yield logits[pair[0]], logits[pair[1]], None
                    continue
                # v* of one pair is often v of the next, and has one softmax.
                known = {
                    key: known[key] if key in known else logits[key, None].double().softmax(-1)
                    for key in torch.cat(pair).tolist()
                }
                p, q = (torch.cat([known[key] for key in rows.tolist()]) for rows in pair)
                yield logits[pair[0]], logits[pair[1]], distances.total_variation(p, q)

    def width(self, site: str) -> int:
        """Numbers that a site has per row."""
        if site == "attention":
            return int(self.w_o.shape[0] * self.w_o.shape[2])
        return int(self.unembedding.d_vocab if site == LOGITS else self.rows.y.shape[-1])


@dataclass(frozen=True)
class PairDistances:
    """A run beside two float64 runs: of the weights as its precision stores them (None where the
    run is that one, whose own rounding is not known), and of the weights as the model was given
    (None where they are the same). `curve`: the L2 distance of whole vectors alone is wanted.
    """

    run: LastTokens
    exact: LastTokens | None = None
    given: LastTokens | None = None
    curve: bool = False

    @property
    def runs(self) -> list[LastTokens]:
        return [run for run in (self.run, self.exact, self.given) if run is not None]


def pair_columns(
    comparisons: Sequence[PairDistances], first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> list[dict[Place, Columns]]:
    """Columns over pairs of rows, v = `first` and v* = `second`, for each (site, layer, per, norm),
    of each comparison. Every vector is read once, whatever it is compared with.
    """
    keep_freed_memory()
    runs = {id(run): run for comparison in comparisons for run in comparison.runs}
    compared = {id(comparison.run) for comparison in comparisons if not comparison.curve}
    tables: list[dict[Place, list[Columns]]] = [{} for _ in comparisons]
    for site, layer in comparisons[0].run.sites:
        readers = (
            run.read(site, layer, first, second, softmax=key in compared)
            for key, run in runs.items()
        )
        for chunks in zip(*readers, strict=True):
            vectors = dict(zip(runs, chunks, strict=True))
            for table, comparison in zip(tables, comparisons, strict=True):
                for (per, norm), columns in _chunk_columns(site, vectors, comparison):
                    table.setdefault((site, layer, per, norm), []).append(columns)
    return [{place: _joined(parts) for place, parts in table.items()} for table in tables]


def _joined(parts: Sequence[Columns]) -> Columns:
    """The columns of all chunks, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _chunk_columns(
    site: str,
    vectors: Mapping[int, tuple[Tensor, Tensor, Tensor | None]],
    comparison: PairDistances,
) -> Iterator[tuple[tuple[str, str], Columns]]:
    """The columns of one comparison at a chunk of pairs, by (per, norm)."""
    v, v_star, variation = vectors[id(comparison.run)]
    compared = {"distance": (v.double(), v_star.double())}
    if (run := comparison.exact) is not None:
        exact, exact_star, _ = vectors[id(run)]
        compared |= {"exact": (exact, exact_star), "noise": (compared["distance"][0], exact)}
    if (run := comparison.given) is not None:
        compared["shift"] = compared.get("exact", compared["distance"])[0], vectors[id(run)][0]
    of_logits = {} if variation is None else _of_logits(v, v_star, variation)
    n_heads = int(comparison.run.w_o.shape[0])
    norms = _L2 if comparison.curve or site == LOGITS else distances.NORMS
    for per in _pieces_of(site, comparison, int(v.shape[-1])):
        cut = _CUTS[per]
        pieces = {name: (cut(x, n_heads), cut(y, n_heads)) for name, (x, y) in compared.items()}
        for norm, columns in _norm_columns(pieces, comparison.run.precision, norms):
            yield (per, norm), columns | of_logits


def _pieces_of(site: str, comparison: PairDistances, size: int) -> list[str]:
    """Into what the vectors of a site, of `size` numbers, are cut; heads where they part it."""
    n_heads = int(comparison.run.w_o.shape[0])
    has_chunks = bool(n_heads) and size % n_heads == 0
    pers = [per for per in READINGS[site] if per != HEAD_CHUNK or has_chunks]
    return [per for per in pers if per == VECTOR] if comparison.curve else pers


_CUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    VECTOR: lambda x, n_heads: x[:, None],
    HEAD_CHUNK: distances.head_chunks,
    HEAD_OUTPUT: lambda x, n_heads: x,
}
"""Vectors [pair, ...] as their pieces [pair, piece, d]."""


def _of_logits(v: Tensor, v_star: Tensor, variation: Tensor) -> Columns:
    top = v.argmax(-1)
    columns = {
        "same_top_token": top == v_star.argmax(-1),
        "next_token": top,
        "identical_logits": (v == v_star).all(-1),
        "total_variation": variation,
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _norm_columns(
    compared: Mapping[str, tuple[Tensor, Tensor]],
    precision: Precision,
    norms: Sequence[str] = distances.NORMS,
) -> Iterator[tuple[str, Columns]]:
    """The columns in every norm. `compared`: v and v*; where they are known float64's v and v* with
    the same weights (exact), v and float64's (noise), and float64's v of the two weights (shift);
    in float64, [pair, piece, d]."""
    v, v_star = compared["distance"]
    steps = precision.steps(v, v_star)
    differences = {name: x - y for name, (x, y) in compared.items()}
    if "exact" in differences:
        differences["pair_noise"] = differences["distance"] - differences["exact"]
    unknown = v.new_full(v.shape[:-1], float("nan"))
    for norm in norms:
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


def require_finite(tokens: LastTokens, what: str, lengths: list[int], *, logits: bool) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length.
    `lengths`: items of each row.
    `logits`: whether to make them for this."""
    name, dtype = tokens.precision.name, tokens.precision.dtype
    # Logits last: of what is not finite, the first is named.
    for site, layer in sorted(tokens.sites, key=lambda place: place[0] == LOGITS):
        if site == LOGITS and not logits:
            continue
        parts = torch.arange(len(lengths)).split(logits_rows(tokens.width(site)))
        finite = [tokens.at(site, part, layer).isfinite().flatten(1).all(-1) for part in parts]
        wrong = ~torch.cat(finite)
        if bool(wrong.any()):
            length = min(lengths[int(i)] for i in wrong.nonzero()[:, 0])
            holds = f"{str(dtype).removeprefix('torch.')} holds numbers up to {torch.finfo(dtype).max:.3g}"
            raise RangeError(f"{what} in {name}: {site} at length {length} is not finite; {holds}")
