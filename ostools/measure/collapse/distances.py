"""Every distance between the last-token representations of pairs of prompts, with its floors, as columns of a table.

Cost: all in float64, in chunks of pairs, so that the logits of a large vocabulary are never held for all prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mitigations import Mitigation
from ostools import tasks
from ostools.ground.errors import RangeError
from ostools.ground.out_of_memory import chunk
from ostools.measure.collapse.verdicts import HEAD_CHUNK, HEAD_OUTPUT, READINGS, VECTOR
from ostools.measure.passes.batches import cast_bytes, pass_bytes
from ostools.measure.passes.last_tokens import LastRows, Unembedding
from ostools.measure.passes.precisions import Precision
from ostools.measure.unloaded import Unloaded
from ostools.models.precision.torch_state import float32_products
from ostools.models.shape import Shape
from ostools.tasks import CollapseTask, Task
from ostools.theory import distances

CHUNK = 1 << 22
"""Numbers in one float64 chunk: 32 MB."""
_LOGITS = 1 << 24
"""Logits of one product, 128 MB in float64: to cast a large unembedding takes longer than to work with a chunk of logits."""
_NA = float("nan")

VECTOR_SITES = tuple(site for site, readings in READINGS.items() if VECTOR in readings)
Columns = dict[str, np.ndarray]
Heads = Float[Tensor, "head d_head d_model"]


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of all prompts in one precision, with what turns them into logits and head outputs."""

    precision: Precision
    rows: LastRows
    unembedding: Unembedding
    w_o: Heads

    def of(self, prompts: Int[Tensor, " row"]) -> LastTokens:
        """Rows of some of the prompts alone, in that order."""
        return replace(self, rows=self.rows.of(prompts))

    @property
    def places(self) -> list[tuple[str, int]]:
        """Sites with the number of blocks before each: v^(l) of the layers kept, and the others after all blocks."""
        layers = sorted(self.rows.residuals)
        return [("residual", layer) for layer in layers] + [
            (site, layers[-1])
            for site in READINGS
            if site != "residual"
            and (site != "attention" or len(self.w_o))  # no heads are known where blocks are closed
        ]

    def at(self, site: str, index: Int[Tensor, " row"], layer: int | None = None) -> Float[Tensor, "row ..."]:
        """A site's vectors in the model's dtype; "attention" [row, head, d_model], each head's own z W_O.

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
            return torch.einsum("rhe,hed->rhd", z, self.w_o.to(z))  # attention may run in float32 over 16-bit weights

    def read(
        self, site: str, index: Int[Tensor, " row"], layer: int | None = None
    ) -> Iterator[Float[Tensor, "some ..."]]:
        """A site's vectors, a chunk of rows at a time. Rows at the same places of two indices go through products of one shape:
        where they are equal, so are their logits, to the bit."""
        step = max(1, chunk(CHUNK) // self.width(site))
        rows_at_once = step if site != "logits" else step * max(1, logits_rows(self.unembedding.d_vocab) // step)
        for start in range(0, len(index), rows_at_once):
            yield from self.at(site, index[start : start + rows_at_once], layer).split(step)

    def width(self, site: str) -> int:
        """Numbers that a site has per row."""
        if site == "attention":
            return int(self.w_o.shape[0] * self.w_o.shape[2])
        return int(self.unembedding.d_vocab if site == "logits" else self.rows.y.shape[-1])


@dataclass(frozen=True)
class References:
    """Two float64 runs: of the weights as this precision stores them (None where the run itself is that one, whose own
    rounding is not known), and of the weights as the model was given (None where they are the same)."""

    same_weights: LastTokens | None
    given_weights: LastTokens | None

    def of(self, prompts: Int[Tensor, " row"]) -> References:
        """Rows of some of the prompts alone, in that order."""
        runs = (self.same_weights, self.given_weights)
        return References(*(None if run is None else run.of(prompts) for run in runs))


def pair_columns(
    last_tokens: LastTokens, references: References, first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> Iterator[tuple[dict[str, Any], Columns]]:
    """Columns over pairs of rows, v = `first` and v* = `second`, for each (site, layer, per, norm).

    noise: ||y - y_float64||, both with the weights that this precision stores; pair_noise: the same of the difference,
    ||(y - y*) - (y_float64 - y*_float64)||, smaller where v and v* are rounded alike; weight_shift: what storing the weights
    did to y, ||y_float64 of these weights - y_float64 of the given ones||, which v and v* have in common; float64_distance: the
    distance itself, ||y_float64 - y*_float64|| with the weights that this precision stores.
    """
    n_heads = int(last_tokens.w_o.shape[0])
    for site, layer in last_tokens.places:
        parts: dict[tuple[str, str], list[Columns]] = {}
        same, given_weights = references.same_weights, references.given_weights
        readings = ((last_tokens, first), (last_tokens, second), (same, first), (same, second), (given_weights, first))
        read = [repeat(None) if run is None else run.read(site, index, layer) for run, index in readings]
        for v, v_star, exact, exact_star, as_given in zip(*read, strict=False):  # None as often as it is asked for
            logit_columns = _logit_columns(v, v_star) if site == "logits" else {}
            for per, pieces in _readings(site, (v.double(), v_star.double(), exact, exact_star, as_given), n_heads):
                for norm, columns in _floors_and_distances(pieces, last_tokens.precision):
                    parts.setdefault((per, norm), []).append(columns | logit_columns)
        for (per, norm), chunks in parts.items():
            names = {"site": site, "layer": layer, "per": per, "norm": norm}
            yield names, {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def vector_distances(
    last_tokens: LastTokens, first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> dict[str, tuple[Float[np.ndarray, " pair"], Float[np.ndarray, " pair"]]]:
    """The L2 distance of the whole vectors of each pair, by site, and that over ||v||: what a collapse length is read from."""
    distances_by_site = {}
    for site in VECTOR_SITES:
        parts, sizes = [], []
        for v, v_star in zip(last_tokens.read(site, first), last_tokens.read(site, second), strict=True):
            parts.append(distances.distance(v.double(), v_star.double(), "l2"))
            sizes.append(distances.vector_norm(v.double(), "l2"))
        distance = torch.cat(parts)
        distances_by_site[site] = distance.cpu().numpy(), (distance / torch.cat(sizes)).cpu().numpy()
    return distances_by_site


# v, v*, float64's v and v* with the same weights, and float64's v with the given ones (None: see `References`), in float64;
# [pair, piece, d], or [pair, d] for a vector not cut yet.
PairVectors = Float[Tensor, "pair ..."]
Pieces = tuple[PairVectors, PairVectors, PairVectors | None, PairVectors | None, PairVectors | None]


def _readings(site: str, pieces: Pieces, n_heads: int) -> Iterator[tuple[str, Pieces]]:
    """The vectors cut into the pieces of each reading."""
    if site == "attention":
        yield HEAD_OUTPUT, pieces
        return
    yield VECTOR, _cut(pieces, lambda x: x[:, None])
    if site != "logits" and n_heads and pieces[0].shape[-1] % n_heads == 0:
        yield HEAD_CHUNK, _cut(pieces, partial(distances.head_chunks, n_heads=n_heads))


def _cut(pieces: Pieces, cut: Callable[[Tensor], Tensor]) -> Pieces:
    v, v_star, *references = pieces
    exact, exact_star, as_given = (None if reference is None else cut(reference) for reference in references)
    return cut(v), cut(v_star), exact, exact_star, as_given


def _floors_and_distances(pieces: Pieces, precision: Precision) -> Iterator[tuple[str, Columns]]:
    v, v_star, exact, exact_star, as_given = pieces
    steps = precision.steps(v, v_star)
    for norm in distances.NORMS:
        pair_distance = distances.distance(v, v_star, norm)
        unknown = torch.full_like(pair_distance, _NA)
        relative, ulps, line = unknown, unknown, unknown
        if norm != "cosine":  # it has no length, so neither a share of one nor a step
            size = distances.vector_norm(v, norm)
            line = distances.vector_norm(steps, norm)
            relative, ulps = torch.where(size > 0, pair_distance / size, unknown), pair_distance / line
        noise, pair_noise, exact_distance = unknown, unknown, pair_distance
        if exact is not None and exact_star is not None:
            noise = distances.distance(v, exact, norm)
            exact_distance = distances.distance(exact, exact_star, norm)
            if norm != "cosine":
                pair_noise = distances.distance(v - v_star, exact - exact_star, norm)
        shift = torch.zeros_like(pair_distance)
        if as_given is not None:
            shift = distances.distance(v if exact is None else exact, as_given, norm)
        columns = {
            "mean": pair_distance.mean(-1),
            "minimum": pair_distance.amin(-1),
            "maximum": pair_distance.amax(-1),
            "relative": relative.mean(-1),
            "ulps": ulps.mean(-1),
            "float64_distance": exact_distance.mean(-1),
            "noise": noise.mean(-1),
            "pair_noise": pair_noise.mean(-1),
            "weight_shift": shift.mean(-1),
            "machine_line": line.mean(-1),
        }
        yield norm, {name: values.cpu().numpy() for name, values in columns.items()}


def _logit_columns(logits: Float[Tensor, "pair d_vocab"], logits_star: Float[Tensor, "pair d_vocab"]) -> Columns:
    """Columns of the logits: delta of the two distributions, the same top token, the same logits bit for bit."""
    p, q = (torch.softmax(x.double(), dim=-1) for x in (logits, logits_star))
    same: Bool[Tensor, " pair"] = logits.argmax(-1) == logits_star.argmax(-1)
    return {
        "total_variation": distances.total_variation(p, q).cpu().numpy(),
        "same_top_token": same.cpu().numpy(),
        "identical_logits": (logits == logits_star).all(-1).cpu().numpy(),
    }


def logits_rows(d_vocab: int) -> int:
    """Number of rows whose logits are made by one product."""
    return max(1, chunk(_LOGITS) // d_vocab)


def require_finite(last_tokens: LastTokens, what: str, lengths: list[int]) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length. `lengths`: items of each row."""
    name, dtype = last_tokens.precision.name, last_tokens.precision.dtype
    places = sorted(last_tokens.places, key=lambda place: place[0] == "logits")  # of what is not finite, the first
    for site, layer in places:
        start = 0
        for rows in last_tokens.read(site, torch.arange(len(lengths)), layer):
            wrong = ~torch.isfinite(rows).flatten(1).all(-1)
            if bool(wrong.any()):
                length = min(lengths[start + int(i)] for i in wrong.nonzero()[:, 0])
                raise RangeError(
                    f"{what} in {name}: {site} at length {length} is not finite; "
                    f"{str(dtype).removeprefix('torch.')} holds numbers up to "
                    f"{torch.finfo(dtype).max:.3g}"
                )
            start += len(rows)


def collapse_bytes(shape: Shape, pos: int, pairs: int, dtypes: Sequence[str], *, layers: int = 1) -> int:
    """Bytes that so many pairs hold, the longest prompt of `pos` tokens: the largest pass, in float64 or in a
    precision, and the chunks of distances and logits. `layers`: so many streams are compared."""
    precisions = [Precision.of_name(name) for name in dtypes]
    elements = [8, *(precision.dtype.itemsize for precision in precisions if precision.name != "float64")]
    # Weights that a precision rounds have a float64 run of their own; those of a 16-bit model in its
    # own dtype are rounded already, which is not known before they are read.
    elements += [8 for element in elements[1:] if element < shape.element]
    largest = max(pass_bytes(shape, 1, pos, 1, element) + cast_bytes(shape, element) for element in elements)
    chunks = (min(pairs, CHUNK // width + 1) * width for width in (shape.d_vocab, shape.d_model))
    streams = 2 * 8 * 2 * pairs * (layers - 1) * shape.d_model  # last tokens alone, in float64 and in the precision
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
) -> int:
    """Bytes of the pairs of a task, in each dtype."""
    layer_count = model.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers or ())
    form = tasks.task(task, CollapseTask) if isinstance(task, str) else task
    pos = model.longest(form, lengths, pairs=True, mitigation=mitigation, seed=next(iter(seeds))).tokens
    return collapse_bytes(model.shape, pos, len(lengths), dtypes, layers=layer_count)
