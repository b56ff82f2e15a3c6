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

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import NonFiniteError, chunk
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.verdicts import HEAD_CHUNK, MEASURED, VECTOR
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
REFERENCE = Precision.of_name("float64")

NUMBERS = [
    *("mean", "minimum", "maximum", "relative", "ulps"),
    *("float64_distance", "noise", "pair_noise", "machine_line", "weight_shift", "total_variation"),
]
OF_GIVEN_WEIGHTS = ["given_distance", "given_relative"]
"""In float64 with the weights as given, whatever the precision."""
FLAGS = ["same_top_token", "identical_logits"]
COLUMNS = [
    *("task", "pair", "seed", "length", "tokens", "dtype", "weights"),
    *("site", "layer", "per", "norm", *NUMBERS, *OF_GIVEN_WEIGHTS, *FLAGS, "next_token", "status"),
]
KINDS = (
    dict.fromkeys(("seed", "length", "tokens", "layer"), "int64")
    | dict.fromkeys([*NUMBERS, *OF_GIVEN_WEIGHTS], "float64")
    | dict.fromkeys(FLAGS, "boolean")
)


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of all prompts in one precision, with what turns them into logits. `weights`:
    the key of the weights that it stores.
    """

    precision: Precision
    weights: str
    rows: LastRows
    unembedding: Unembedding

    def of(self, prompts: Int[Tensor, " row"]) -> "LastTokens":
        """Rows of some of the prompts alone, in that order."""
        at = prompts.to(self.rows.y.device)
        residuals = {layer: rows[at] for layer, rows in self.rows.residuals.items()}
        return replace(self, rows=LastRows(residuals, self.rows.y[at]))

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

    def read(self, site: str, layer: int, prompts: PromptSet) -> Iterator[tuple[Tensor, Tensor]]:
        """A site's vectors of v and of v*, a chunk of pairs at a time. Prompts with the same y have
        the same logits to the bit: these are made once for both. Raises `NonFiniteError` for logits
        that are not finite.
        """
        width = self.unembedding.d_vocab if site == LOGITS else self.rows.y.shape[-1]
        step = max(1, chunk(CHUNK) // width)
        at_once = step * max(1, logits_rows(width) // step) if site == LOGITS else step
        firsts, seconds = prompts.first.split(at_once), prompts.second.split(at_once)
        for v, v_star in zip(firsts, seconds, strict=True):
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


Vectors = tuple[Float[Tensor, "pair piece d"], Float[Tensor, "pair piece d"]]
"""v and v* of a chunk of pairs, in pieces and in float64."""


def pair_tables(
    runs: Sequence[LastTokens], exact: Mapping[str, LastTokens], prompts: PromptSet, heads: int
) -> list[pd.DataFrame]:
    """The rows of each run, by site, layer, `per` and norm; the likeliest next token by its id.

    exact: the float64 runs by the key of their weights. heads: into how many chunks a vector is cut
        too; 0: into none. Every vector is read once, whatever it is compared with.
    """
    readers = {id(tokens): tokens for tokens in (*exact.values(), *runs)}
    tables: list[dict[object, list[pd.DataFrame]]] = [defaultdict(list) for _ in runs]
    for site, layer in runs[0].sites:
        norms = ["l2"] if site == LOGITS else distances.NORMS
        for per, pairs in _cut_chunks(readers, site, layer, prompts, heads):
            original = pairs[id(exact[AS_GIVEN])]
            for run, table in zip(runs, tables, strict=True):
                pair, stored = pairs[id(run)], pairs[id(exact[run.weights])]
                flags = _of_logits(*pair) if site == LOGITS else {}
                numbers = norm_columns(run.precision, pair, stored, original, norms)
                for norm, of_norm in numbers:
                    columns = {name: x.cpu().numpy() for name, x in (of_norm | flags).items()}
                    place = {"site": site, "layer": layer, "per": per, "norm": norm}
                    table[site, layer, per, norm].append(pd.DataFrame(place | columns))
    return [_rows(run, table, prompts) for run, table in zip(runs, tables, strict=True)]


def _cut_chunks(
    readers: Mapping[int, LastTokens], site: str, layer: int, prompts: PromptSet, heads: int
) -> Iterator[tuple[str, dict[int, Vectors]]]:
    """A site's chunks of pairs, whole and then by head, of all readers at once: `per`, and the
    vectors by reader.
    """
    cuts = {VECTOR: 1} | ({HEAD_CHUNK: heads} if heads and site != LOGITS else {})
    streams = (tokens.read(site, layer, prompts) for tokens in readers.values())
    for vectors in zip(*streams, strict=True):
        for per, pieces in cuts.items():
            cut_pairs = [
                (
                    distances.head_chunks(v.double(), pieces),
                    distances.head_chunks(v_star.double(), pieces),
                )
                for v, v_star in vectors
            ]
            yield per, dict(zip(readers, cut_pairs, strict=True))


def _rows(
    run: LastTokens, table: Mapping[object, list[pd.DataFrame]], prompts: PromptSet
) -> pd.DataFrame:
    """The rows of all chunks, place by place, each beside its pair."""
    numbers = pd.concat(chain.from_iterable(table.values()), ignore_index=True)
    rows = pd.concat([prompts.columns()] * len(table), ignore_index=True).join(numbers)
    rows = rows.assign(dtype=run.precision.name, weights=run.weights, status=MEASURED)
    return rows.reindex(columns=COLUMNS).astype(KINDS)


def _of_logits(v: Tensor, v_star: Tensor) -> dict[str, Tensor]:
    v, v_star = v[:, 0], v_star[:, 0]
    top = v.argmax(-1)
    return {
        "same_top_token": top == v_star.argmax(-1),
        "next_token": top,
        # Row by row, as the comparison ends at the first number that differs.
        "identical_logits": torch.tensor(list(map(torch.equal, v, v_star))),
        "total_variation": distances.total_variation(v.softmax(-1), v_star.softmax(-1)),
    }


def norm_columns(
    precision: Precision,
    run: Vectors,
    exact: Vectors,
    original: Vectors,
    norms: Sequence[str] = distances.NORMS,
) -> Iterator[tuple[str, dict[str, Float[Tensor, " pair"]]]]:
    """The numbers of each pair in every norm, beside float64's vectors with the weights that the
    precision stores (`exact`), and with those of the model (`original`). Of float64 itself rounding
    is not known; relative to a v of 0, nothing is.
    """
    difference, exact_difference, given_difference = (
        v - v_star for v, v_star in (run, exact, original)
    )
    vectors = {
        "mean": difference,
        "machine_line": precision.steps(*run),
        "float64_distance": exact_difference,
        "given_distance": given_difference,
        "weight_shift": exact[0] - original[0],
    }
    if precision != REFERENCE:
        vectors["noise"] = run[0] - exact[0]
        vectors["pair_noise"] = difference - exact_difference
    for norm in norms:
        sizes = {name: distances.vector_norm(x, norm) for name, x in vectors.items()}
        size, given_size = (distances.vector_norm(v, norm) for v in (run[0], original[0]))
        given_relative = sizes["given_distance"] / given_size
        sizes |= {
            "ulps": sizes["mean"] / sizes["machine_line"],
            "relative": torch.where(size > 0, sizes["mean"] / size, torch.nan),
            "given_relative": torch.where(given_size > 0, given_relative, torch.nan),
        }
        ends = {"minimum": sizes["mean"].amin(-1), "maximum": sizes["mean"].amax(-1)}
        yield norm, ends | {name: x.mean(-1) for name, x in sizes.items()}


def logits_rows(d_vocab: int) -> int:
    """Number of rows whose logits are made by one product."""
    return max(1, chunk(_LOGITS) // d_vocab)


def require_finite(tokens: LastTokens, prompts: PromptSet) -> None:
    """Refuse rows that are not finite: say in which precision, where, and from which length.

    Where y is finite its logits are, in every dtype but float16, which has the fewest powers of
    two.
    """
    dtype = tokens.precision.dtype
    for site, layer in tokens.sites:
        if site == LOGITS and dtype != torch.float16:
            continue
        parts = torch.arange(len(prompts.prompts)).split(logits_rows(tokens.unembedding.d_vocab))
        wrong = ~torch.cat([tokens.at(site, layer, part).isfinite().all(-1) for part in parts])
        if bool(wrong.any()):
            of_pairs = (wrong[prompts.first] | wrong[prompts.second]).tolist()
            length = min(pair.length for pair in compress(prompts.pairs, of_pairs))
            name, most = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
            raise NonFiniteError(
                f"{prompts.task} in {tokens.precision.name}: {site} at length {length} is not "
                f"finite; {name} holds numbers up to {most:.3g}"
            )
