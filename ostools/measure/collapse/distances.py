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
from ostools.ground.memory import chunk
from ostools.measure.collapse.verdicts import HEAD_CHUNK, VECTOR
from ostools.measure.passes.last_tokens import LastRows, Unembedding
from ostools.measure.passes.precisions import AS_GIVEN, Precision
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
    """The last tokens of all prompts in one precision, with what turns them into logits. `weights`:
    the key of the weights that it stores. `heads`: into how many chunks a vector is cut too, 0 where
    the heads do not divide it.
    """

    precision: Precision
    weights: str
    rows: LastRows
    unembedding: Unembedding
    heads: int

    def of(self, prompts: Int[Tensor, " row"]) -> LastTokens:
        """Rows of some of the prompts alone, in that order."""
        return replace(self, rows=self.rows.of(prompts))

    @property
    def sites(self) -> list[tuple[str, int]]:
        """Sites with the number of blocks before each: v^(l) of the layers kept, then y and the
        logits.
        """
        layers = sorted(self.rows.residuals)
        return [*(("residual", layer) for layer in layers), ("y", layers[-1]), (LOGITS, layers[-1])]

    def at(self, site: str, layer: int, index: Int[Tensor, " row"]) -> Float[Tensor, "row d"]:
        """A site's vectors in the model's dtype, at "residual" v^(layer)."""
        rows = self.rows.residuals[layer] if site == "residual" else self.rows.y
        vectors = rows[index.to(rows.device)]
        return self.unembedding(vectors) if site == LOGITS else vectors

    def read(
        self, site: str, layer: int, first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A site's vectors of v and of v*, a chunk of pairs at a time. Prompts with the same y have
        the same logits to the bit: these are made once for both. Raises `NonFiniteError` for logits
        that are not finite.
        """
        width = self.unembedding.d_vocab if site == LOGITS else self.rows.y.shape[-1]
        step = max(1, chunk(CHUNK) // width)
        at_once = step * max(1, logits_rows(width) // step) if site == LOGITS else step
        for v, v_star in zip(first.split(at_once), second.split(at_once), strict=True):
            index = torch.cat([v, v_star])
            rows = torch.arange(len(index), device=self.rows.y.device)
            if site == LOGITS:
                y, rows = torch.unique(self.at("y", layer, index), dim=0, return_inverse=True)
                vectors = self.unembedding(y)
                if not math.isfinite(float(vectors.sum(dtype=torch.float64))):
                    raise NonFiniteError(
                        f"collapse in {self.precision.name}: logits are not finite where y is: "
                        "leave this dtype out, or check the model's weights"
                    )
            else:
                vectors = self.at(site, layer, index)
            pairs = zip(rows[: len(v)].split(step), rows[len(v) :].split(step), strict=True)
            yield from ((vectors[row], vectors[row_star]) for row, row_star in pairs)


@dataclass(frozen=True)
class PairVectors:
    """v and v* of a chunk of pairs, in pieces and in float64."""

    v: Float[Tensor, "pair piece d"]
    v_star: Float[Tensor, "pair piece d"]

    @classmethod
    def cut(cls, v: Tensor, v_star: Tensor, pieces: int) -> PairVectors:
        """Vectors [pair, d] in so many pieces."""
        return cls(*(distances.head_chunks(x.double(), pieces) for x in (v, v_star)))

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
    readers = [*exact.values(), *runs]
    tables: list[dict[Place, list[Columns]]] = [defaultdict(list) for _ in runs]
    for site, layer in runs[0].sites:
        norms = ["l2"] if site == LOGITS else distances.NORMS
        for per, by_reader in _read_pairs(readers, site, layer, first, second):
            original = by_reader[id(exact[AS_GIVEN])]
            for run, table in zip(runs, tables, strict=True):
                pair, stored = by_reader[id(run)], by_reader[id(exact[run.weights])]
                flags = _of_logits(pair) if site == LOGITS else {}
                for norm, columns in norm_columns(run.precision, pair, stored, original, norms):
                    table[site, layer, per, norm].append(columns | flags)
    return [{place: _joined(parts) for place, parts in table.items()} for table in tables]


def _read_pairs(
    readers: Sequence[LastTokens],
    site: str,
    layer: int,
    first: Int[Tensor, " pair"],
    second: Int[Tensor, " pair"],
) -> Iterator[tuple[str, dict[int, PairVectors]]]:
    """v and v* chunk by chunk, whole and in the heads' pieces: `per`, and the vectors by the id of
    the run that they are read from. A run given twice is read once.
    """
    runs = {id(tokens): tokens for tokens in readers}
    heads = readers[0].heads
    cuts = {VECTOR: 1} | ({HEAD_CHUNK: heads} if heads and site != LOGITS else {})
    streams = (tokens.read(site, layer, first, second) for tokens in runs.values())
    for vectors in zip(*streams, strict=True):
        for per, pieces in cuts.items():
            pairs = (PairVectors.cut(v, v_star, pieces) for v, v_star in vectors)
            yield per, dict(zip(runs, pairs, strict=True))


def _joined(parts: Sequence[Columns]) -> Columns:
    """The columns of all chunks, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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


def require_finite(tokens: LastTokens, what: str, lengths: Sequence[int]) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length.

    lengths: items of each row. Where y is finite its logits are, in every dtype but float16, which
    has the fewest powers of two.
    """
    dtype = tokens.precision.dtype
    for site, layer in tokens.sites:
        if site == LOGITS and dtype != torch.float16:
            continue
        parts = torch.arange(len(lengths)).split(logits_rows(tokens.unembedding.d_vocab))
        wrong = ~torch.cat([tokens.at(site, layer, part).isfinite().all(-1) for part in parts])
        if bool(wrong.any()):
            length = min(lengths[int(i)] for i in wrong.nonzero()[:, 0])
            name, most = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
            raise NonFiniteError(
                f"{what} in {tokens.precision.name}: {site} at length {length} is not finite; "
                f"{name} holds numbers up to {most:.3g}"
            )
