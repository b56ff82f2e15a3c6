"""Representational collapse (Theorem 4.2 / B.3): how far v and v* = v with its last token repeated still are apart.

Two floors stand beside every distance. The machine line is one representable step of the dtype in every coordinate; the
noise is what rounding did to v itself, ||y_dtype(v) - y_float64(v)||. A distance below the noise is not information.
y_float64 is of the model as it was given: the noise of a float32 model cast to bfloat16 includes the rounding of its weights,
that of a model loaded in bfloat16 does not (the provenance has the dtype).

Cost: one forward pass per dtype and seed for all lengths (two where prompts branch much), the same once in float64 for the
reference, and in each a shorter pass to check it; O(N) tokens for N lengths, where a loop reads O(N^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools import tasks
from ostools.errors import InputError
from ostools.measure.pair_distances import Measured, pair_columns, require_finite, vector_distances
from ostools.measure.prefixes import Route, Unembedding, last_rows, route, separate_rows
from ostools.measure.prompt_sets import PromptSet
from ostools.measure.prompts import Progress
from ostools.models import cast_copy
from ostools.results import Provenance, Result
from ostools.tasks import CollapseTask
from ostools.theory.distances import collapse_start, dtype_named

if TYPE_CHECKING:
    import altair as alt

_CURVE = ["task", "pair", "seed", "length", "site"]
_NUMBERS = ["mean", "minimum", "maximum", "relative", "ulps", "noise", "machine_line", "total_variation"]
_FLAGS = ["same_top_token", "identical_logits"]
COLUMNS = ["task", "pair", "seed", "length", "tokens", "dtype", "site", "per", "norm", *_NUMBERS, *_FLAGS]
TOP_TOKEN, IDENTICAL = "top-token", "identical-logits"
REFERENCE = "float64"

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
)
# A one-pass route agrees with a prompt's own pass to rounding, in float64 far below this.
_SAME = 1e-8
# The unembedding of one row against the model's own: the same product in another order of summation.
_SAME_LOGITS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True, eq=False)
class Collapse(Result):
    """One row per pair, length, dtype, site, reading and norm.

    Columns: task, pair (theorem | one-more-digit | task), seed, length (items of v), tokens (of v), dtype, site (residual:
    v^(L), y, logits, attention: the last block's heads), per (vector | head-chunk | head-output), norm (l1 | l2 | linf |
    cosine); mean, minimum, maximum of the distance over the pieces (all the same for a vector); relative (to the same norm of
    v), ulps (distance / machine line), noise, machine_line, each the mean over the pieces; and, on `logits` rows,
    total_variation (sum |p - p*|, no factor 1/2), same_top_token, identical_logits (bit for bit). NA where a column has no
    meaning. Head chunks are left out where the number of heads does not divide d_model.

    `reference`: the float64 L2 distances (task, pair, seed, length, site, distance) that collapse lengths are read from.
    """

    reference: pd.DataFrame

    def plot(self) -> alt.TopLevelMixin:
        from ostools.reporting.charts import collapse_chart

        return collapse_chart(self)

    def collapse_lengths(self) -> pd.DataFrame:
        """The collapse length of each (task, pair, seed, dtype, site): measured, not extrapolated.

        The smallest n0 such that at every n >= n0, on consecutive lengths up to n_max >= max(2 n0, n0 + 32), the float64
        L2 distance is below the dtype's rounding noise (sites residual, y, logits), the top token is the same
        ("top-token"), or the logits are the same bit for bit ("identical-logits"). Otherwise NA. Columns: task, pair, seed,
        dtype, site, collapse_length, n_max, status (in words).
        float64 is the reference, and has no row.
        """
        vectors = self.frame.query(f"per == 'vector' and norm == 'l2' and dtype != '{REFERENCE}'")
        joined = vectors.merge(self.reference, on=_CURVE, validate="many_to_one").sort_values(
            by="length", kind="stable"
        )
        rows = []
        for key, group in joined.groupby(["task", "pair", "seed", "dtype", "site"], sort=False):
            *curve, site = key  # pyright: ignore[reportGeneralTypeIssues]
            lengths = group["length"].tolist()
            rows.append((*curve, site, *_verdict((group["distance"] < group["noise"]).tolist(), lengths)))
            if site == "logits":
                rows.append((*curve, TOP_TOKEN, *_verdict(group["same_top_token"].tolist(), lengths)))
                rows.append((*curve, IDENTICAL, *_verdict(group["identical_logits"].tolist(), lengths)))
        names = ["task", "pair", "seed", "dtype", "site", "collapse_length", "n_max", "status"]
        return pd.DataFrame(rows, columns=names).astype({"collapse_length": "Int64"})


def _verdict(below: list[bool], lengths: list[int]) -> tuple[int | None, int, str]:
    """The collapse length (None: not shown), n_max, and the finding in words."""
    start = collapse_start(below, lengths)
    n_max = lengths[-1]
    if start is None:
        return None, n_max, f"not reached by {n_max}"
    return start, n_max, f"reached at {start}" + (", the shortest measured" if start == lengths[0] else "")


def collapse(
    model: TransformerBridge,
    task: CollapseTask | str,
    *,
    lengths: Iterable[int],
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seeds: Sequence[int] = (0,),
    bos: bool = True,
    progress: Progress | None = None,
) -> Collapse:
    """Distances between the last-token representations of a task's pairs, at every length and dtype.

    Args:
        task: `tasks.figure_5a()` to `tasks.figure_5d()`, `tasks.RepeatTask(...)`, `tasks.task_pairs(...)`, or the name of one.
        lengths: numbers of sequence items; length n compares the prompt of n items with its last token repeated.
        dtypes: float32, bfloat16, float16 or float64. Copies of the model are cast; the model itself stays as it is.
        seeds: one digit stream each, for a task that draws digits.
        bos: false takes the tokenizer's BOS, which attention sinks into, out of every prompt.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for lengths below 1 or beyond the context, an unknown task or dtype, a tokenizer that merges the
    repeated item, numbers that are not finite (with dtype, site and length), and under an active edit of the forward pass,
    which would not reach the cast copies. Memory: a float64 copy of the model, then one in each dtype, one at a time.

    Source: arXiv 2406.04267, Theorem 4.2 / B.3 and Figure 5.
    """
    task = task if isinstance(task, CollapseTask) else tasks.get(task)
    wanted, names, seeds = _checked_lengths(lengths), _checked_dtypes(dtypes), _checked_seeds(seeds, task)
    _check_model(model)
    run = _Run(model, task, [PromptSet.build(model, task, wanted, seed, bos) for seed in seeds], progress, names)
    references = run.measure(REFERENCE)
    tables = [
        run.table(references, None, name) if name == REFERENCE else run.table(run.measure(name), references, name)
        for name in names
    ]
    provenance = Provenance.collect(
        model,
        max((prompts.longest() for prompts in run.sets), key=len),
        measurement="collapse",
        task=task.name,
        items=task.items,
        bos=bos,
        lengths=wanted,
        dtypes=names,
        seeds=seeds,
        route=run.way.name,
        route_reason=run.way.reason,
        difference_from_separate_pass=run.differences,
    )
    return Collapse(pd.concat(tables, ignore_index=True), provenance, run.curves(references))


class _Run:
    """One call of `collapse`: the forward passes in each dtype, and the tables made of them."""

    def __init__(
        self,
        model: TransformerBridge,
        task: CollapseTask,
        sets: list[PromptSet],
        progress: Progress | None,
        names: list[str],
    ) -> None:
        self.model = model
        self.task = task
        self.sets = sets
        self.progress = progress
        self.done, self.total = 0, len({REFERENCE, *names}) * len(sets)
        self.way = route(model, [pack.tree for prompts in sets for pack in prompts.packs])
        if any(pair.kind == "task" for prompts in sets for pair in prompts.pairs):
            self.way = Route("loop", "text follows the sequence: every prompt has an end of its own")
        self.differences: dict[str, float] = {}

    def measure(self, name: str) -> list[Measured]:
        """The last tokens of every prompt in that dtype, a `Measured` per seed.

        float64 comes first: it can show that the one-pass route does not fit the model, and then all goes by the loop.
        """
        dtype = dtype_named(name)
        own = {parameter.dtype for parameter in self.model.parameters()}
        model = self.model if own == {dtype} else cast_copy(self.model, dtype)
        found = []
        for prompts in self.sets:
            measured, difference = _measured(model, prompts, self.way, self.task.name)
            if name == REFERENCE and self.way.name != "loop" and not difference <= _SAME:
                reason = f"the {self.way.name} differs from a prompt's own pass by {difference:.2g} (relative, float64)"
                self.way = Route("loop", reason)
                return self.measure(name)
            self.differences[name] = max(difference, self.differences.get(name, 0.0))
            found.append(measured)
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)
        return found

    def table(self, measured: list[Measured], references: list[Measured] | None, name: str) -> pd.DataFrame:
        """The rows of one dtype."""
        parts = []
        for index, (prompts, here) in enumerate(zip(self.sets, measured, strict=True)):
            reference = None if references is None else references[index]
            same = prompts.columns() | {"task": self.task.name, "dtype": name}
            for site, per, norm, columns in pair_columns(here, reference, prompts.first, prompts.second):
                parts.append(same | {"site": site, "per": per, "norm": norm} | columns)
        sizes = [len(part["mean"]) for part in parts]
        table = {
            column: np.concatenate([np.full(n, part.get(column, np.nan)) for part, n in zip(parts, sizes, strict=True)])
            for column in COLUMNS
        }
        return pd.DataFrame(table).astype(_KINDS)

    def curves(self, references: list[Measured]) -> pd.DataFrame:
        """The float64 distances that collapse lengths are read from."""
        parts = []
        for prompts, here in zip(self.sets, references, strict=True):
            same = {name: values for name, values in prompts.columns().items() if name != "tokens"}
            for site, found in vector_distances(here, prompts.first, prompts.second).items():
                columns = same | {"task": self.task.name, "site": site, "distance": found}
                parts.append(pd.DataFrame(columns, columns=pd.Index([*_CURVE, "distance"])))
        return pd.concat(parts, ignore_index=True)


def _measured(model: TransformerBridge, prompts: PromptSet, way: Route, what: str) -> tuple[Measured, float]:
    """The last tokens of all prompts by this route, and how far one of them is from a pass of its own.

    The difference is ||y - y'||_2 / ||y'||_2. Raises `InputError` for numbers that are not finite, and where W_U y (with the
    soft-cap) is not what the model itself returns.
    """
    dtype = next(model.parameters()).dtype
    rows = last_rows(model, prompts.prompts, prompts.packs, way)
    w_o = model.blocks[int(model.cfg.n_layers) - 1].attn.W_O.detach()
    measured = Measured(dtype, rows, Unembedding.of(model), w_o)
    require_finite(measured, what, prompts.prompt_lengths())
    probe = prompts.probe()
    alone, logits = separate_rows(model, prompts.prompts[probe])
    error = _relative(measured.unembedding(alone.y)[0], logits)
    if not error <= _SAME_LOGITS[dtype]:
        raise InputError(
            f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
            f"{model.cfg.architecture} does something after the final norm that collapse does not know"
        )
    return measured, _relative(rows.y[probe], alone.y[0])


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())


def _checked_lengths(lengths: Iterable[int]) -> list[int]:
    """Ascending and without doubles."""
    given = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    wrong = [n for n in given if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1]
    if wrong or not given:
        found = repr(wrong[0]) if wrong else "none"
        raise InputError(f"lengths: expected whole numbers of at least 1, found {found}; for example range(1, 257)")
    return sorted({int(n) for n in given})


def _checked_dtypes(dtypes: Sequence[str]) -> list[str]:
    names = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    if not names:
        raise InputError("dtypes: expected at least one, found none; for example ('float32', 'bfloat16')")
    for name in names:
        dtype_named(name)
    return list(dict.fromkeys(names))


def _checked_seeds(seeds: Sequence[int], task: CollapseTask) -> list[int]:
    given = [seeds] if isinstance(seeds, int) else list(seeds)
    wrong = [seed for seed in given if isinstance(seed, bool) or not isinstance(seed, int)]
    if wrong:
        raise InputError(f"seeds: expected whole numbers, found {wrong[0]!r}")
    chosen = list(dict.fromkeys(given))
    if not chosen:
        raise InputError("seeds: expected at least one, found none")
    if len(chosen) > 1 and not task.random:
        raise InputError(
            f"{task.name} draws nothing at random, so {len(chosen)} seeds would repeat the same numbers: give one"
        )
    return chosen


def _check_model(model: TransformerBridge) -> None:
    edits = hooks.active_edits(model)
    if edits:
        raise InputError(
            f"collapse runs on copies of the model in other dtypes, which the active edit {edits[0].kind!r} at "
            f"{edits[0].where} would not reach: leave the edit's block first"
        )
    device = next(model.parameters()).device
    if device.type == "mps":
        raise InputError("collapse needs float64 as its reference, which mps lacks: load the model with device='cpu'")
