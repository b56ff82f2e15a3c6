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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground.errors import NonFiniteError
from ostools.ground.out_of_memory import chunk
from ostools.measure.collapse.verdicts import HEAD_CHUNK, HEAD_OUTPUT, READINGS, VECTOR
from ostools.measure.passes.last_tokens import LastRows, Unembedding
from ostools.measure.passes.precisions import AS_GIVEN, Precision
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

Columns: TypeAlias = dict[str, np.ndarray]
Place: TypeAlias = tuple[str, int, str, str]
"""Site, layer, per and norm."""


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of all prompts in one precision, with what turns them into logits and head
    outputs (no heads where blocks are closed). `weights`: the key of the weights that it stores.
    """

    precision: Precision
    weights: str
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
        after = ["y", LOGITS, "attention"] if len(self.w_o) else ["y", LOGITS]
        return [*(("residual", layer) for layer in layers), *((site, layers[-1]) for site in after)]

    def pieces(self, site: str) -> dict[str, int]:
        """Into how many pieces a site's vectors are cut, by what is compared there; chunks where
        the heads divide them.
        """
        heads = len(self.w_o)
        counts = {VECTOR: 1, HEAD_CHUNK: heads, HEAD_OUTPUT: heads}
        divides = heads > 0 and self.rows.y.shape[-1] % heads == 0
        return {per: counts[per] for per in READINGS[site] if divides or per != HEAD_CHUNK}

    def at(self, site: str, layer: int, index: Int[Tensor, " row"]) -> Float[Tensor, "row ..."]:
        """A site's vectors in the model's dtype, at "residual" v^(layer); "attention" [row, head,
        d_model], each head's own z W_O.
        """
        index = index.to(self.rows.y.device)
        if site == "residual":
            return self.rows.residuals[layer][index]
        if site == "y":
            return self.rows.y[index]
        if site == LOGITS:
            return self.unembedding(self.rows.y[index])
        z = self.rows.z[index]
        with float32_products():  # attention may run in float32 over 16-bit weights
            return torch.einsum("rhe,hed->rhd", z, self.w_o.to(z))

    def read(
        self, site: str, layer: int, first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A site's vectors of v and of v*, a chunk of pairs at a time. Prompts with the same y have
        the same logits to the bit: these are made once for both. Raises `NonFiniteError` for logits
        that are not finite.
        """
        width = self.width(site)
        step = max(1, chunk(CHUNK) // width)
        at_once = step * max(1, logits_rows(width) // step) if site == LOGITS else step
        for v, v_star in zip(first.split(at_once), second.split(at_once), strict=True):
            index = torch.cat([v, v_star])
            rows = torch.arange(len(index), device=self.rows.y.device)
            if site == LOGITS:
                y, rows = torch.unique(self.at("y", layer, index), dim=0, return_inverse=True)
                vectors = self.unembedding(y)
                _require_finite_logits(vectors, self.precision)
            else:
                vectors = self.at(site, layer, index)
            pairs = zip(rows[: len(v)].split(step), rows[len(v) :].split(step), strict=True)
            yield from ((vectors[row], vectors[row_star]) for row, row_star in pairs)

    def width(self, site: str) -> int:
        """Numbers that a site has per row."""
        if site == "attention":
            return int(self.w_o.shape[0] * self.w_o.shape[2])
        return int(self.unembedding.d_vocab if site == LOGITS else self.rows.y.shape[-1])


@dataclass(frozen=True)
class PairVectors:
    """v and v* of a chunk of pairs, in pieces and in float64."""

    v: Float[Tensor, "pair piece d"]
    v_star: Float[Tensor, "pair piece d"]

    @classmethod
    def cut(cls, v: Tensor, v_star: Tensor, pieces: int) -> PairVectors:
        """Vectors [pair, d] in so many pieces; a head's output is one already."""
        vectors = (x.double() for x in (v, v_star))
        return cls(*(distances.head_chunks(x, pieces) if x.ndim == 2 else x for x in vectors))

    @cached_property
    def difference(self) -> Float[Tensor, "pair piece d"]:
        return self.v - self.v_star

    def relative(self, norm: str) -> Float[Tensor, "pair piece"]:
        """||v - v*|| / ||v||; NaN where v is 0."""
        size = distances.vector_norm(self.v, norm)
        distance = distances.vector_norm(self.difference, norm)
        return torch.where(size > 0, distance / size, float("nan"))


def pair_columns(
    runs: Sequence[LastTokens],
    exact: Mapping[str, LastTokens],
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
) -> list[dict[Place, Columns]]:
    """Columns of each run over pairs of rows, v = `first` and v* = `second`, for each (site, layer,
    per, norm). `exact`: the float64 runs by the key of their weights. Every vector is read once,
    whatever it is compared with.
    """
    readers = {id(tokens): tokens for tokens in (*exact.values(), *runs)}
    tables: list[dict[Place, list[Columns]]] = [defaultdict(list) for _ in runs]
    for site, layer in runs[0].sites:
        streams = (tokens.read(site, layer, first, second) for tokens in readers.values())
        for vectors in zip(*streams, strict=True):
            for per, pieces in runs[0].pieces(site).items():
                pairs = (PairVectors.cut(v, v_star, pieces) for v, v_star in vectors)
                by_reader = dict(zip(readers, pairs, strict=True))
                original = by_reader[id(exact[AS_GIVEN])]
                for run, table in zip(runs, tables, strict=True):
                    pair, stored = by_reader[id(run)], by_reader[id(exact[run.weights])]
                    for norm, columns in _columns_at(site, run.precision, pair, stored, original):
                        table[site, layer, per, norm].append(columns)
    return [{place: _joined(parts) for place, parts in table.items()} for table in tables]


def _joined(parts: Sequence[Columns]) -> Columns:
    """The columns of all chunks, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns_at(
    site: str, precision: Precision, run: PairVectors, exact: PairVectors, original: PairVectors
) -> Iterator[tuple[str, Columns]]:
    if site != LOGITS:
        yield from norm_columns(precision, run, exact, original)
        return
    flags = _of_logits(run)
    for norm, columns in norm_columns(precision, run, exact, original, ["l2"]):
        yield norm, columns | flags


def _of_logits(vectors: PairVectors) -> Columns:
    v, v_star = vectors.v[:, 0], vectors.v_star[:, 0]
    top = v.argmax(-1)
    columns = {
        "same_top_token": top == v_star.argmax(-1),
        "next_token": top,
        # Row by row, as the comparison ends at the first number that differs.
        "identical_logits": torch.tensor(list(map(torch.equal, v, v_star))),
        "total_variation": distances.total_variation(v.softmax(-1), v_star.softmax(-1)),
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def norm_columns(
    precision: Precision,
    run: PairVectors,
    exact: PairVectors,
    original: PairVectors,
    norms: Sequence[str] = distances.NORMS,
) -> Iterator[tuple[str, Columns]]:
    """The columns in every norm, beside float64's vectors with the weights that the precision
    stores (`exact`), and with those of the model (`original`). Of `exact` itself rounding is not
    known.
    """
    steps = precision.steps(run.v, run.v_star)
    differences = {
        "float64_distance": exact.difference,
        "given_distance": original.difference,
        "weight_shift": exact.v - original.v,
    }
    if run is not exact:
        differences["noise"] = run.v - exact.v
        differences["pair_noise"] = run.difference - exact.difference
    for norm in norms:
        distance = distances.vector_norm(run.difference, norm)
        line = distances.vector_norm(steps, norm)
        columns = {
            "minimum": distance.amin(-1),
            "maximum": distance.amax(-1),
            "mean": distance.mean(-1),
            "ulps": (distance / line).mean(-1),
            "machine_line": line.mean(-1),
            "relative": run.relative(norm).mean(-1),
            "float64_relative": exact.relative(norm).mean(-1),
            "given_relative": original.relative(norm).mean(-1),
            **{
                name: distances.vector_norm(difference, norm).mean(-1)
                for name, difference in differences.items()
            },
        }
        yield norm, {name: values.cpu().numpy() for name, values in columns.items()}


def logits_rows(d_vocab: int) -> int:
    """Number of rows whose logits are made by one product."""
    return max(1, chunk(_LOGITS) // d_vocab)


def _require_finite_logits(logits: Tensor, precision: Precision) -> None:
    if not math.isfinite(float(logits.sum(dtype=torch.float64))):
        raise NonFiniteError(
            f"collapse in {precision.name}: logits are not finite where y is: leave this dtype "
            "out, or check the model's weights"
        )


def require_finite(tokens: LastTokens, what: str, lengths: Sequence[int], *, logits: bool) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length.

    lengths: items of each row. logits: whether to make them for this.
    """
    dtype = tokens.precision.dtype
    # Logits last: of what is not finite, the first is named.
    for site, layer in sorted(tokens.sites, key=lambda place: place[0] == LOGITS):
        if site == LOGITS and not logits:
            continue
        parts = torch.arange(len(lengths)).split(logits_rows(tokens.width(site)))
        finite = [tokens.at(site, layer, part).isfinite().flatten(1).all(-1) for part in parts]
        wrong = ~torch.cat(finite)
        if bool(wrong.any()):
            length = min(lengths[int(i)] for i in wrong.nonzero()[:, 0])
            name, most = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
            raise NonFiniteError(
                f"{what} in {tokens.precision.name}: {site} at length {length} is not finite; "
                f"{name} holds numbers up to {most:.3g}"
            )
