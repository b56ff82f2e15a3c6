"""The forward passes of one collapse measurement, in every precision, and the tables made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks.sites import is_closed
from mitigations import Mitigation, changes_pass, label, running
from ostools.ground.errors import InputError, RangeError
from ostools.ground.progress import Progress, part_of, rising, tell
from ostools.measure.collapse.distances import LastTokens, References, pair_columns, require_finite, vector_distances
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.verdicts import MEASURED, OVERFLOWS, deciding, hidden_curves
from ostools.measure.passes.last_tokens import (
    Batching,
    LastRows,
    Unembedding,
    batching_of,
    joined,
    last_rows,
    separate_rows,
)
from ostools.measure.passes.precisions import AS_GIVEN, Precision

CURVE = ["task", "pair", "seed", "weights", "length", "site"]
_NUMBERS = [
    *("mean", "minimum", "maximum", "relative", "ulps"),
    *("float64_distance", "noise", "pair_noise", "machine_line", "weight_shift", "total_variation"),
]
_FLAGS = ["same_top_token", "identical_logits"]
COLUMNS = [
    "task",
    "pair",
    "seed",
    "length",
    "tokens",
    "dtype",
    "weights",
    "site",
    "layer",
    "per",
    "norm",
    *_NUMBERS,
    *_FLAGS,
    "status",
]
REFERENCE = Precision.of_name("float64")

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens", "layer"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
)
_OVERFLOWS = (RangeError, hooks.RangeError)
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_PROBES_16_BIT = 5
# A one-pass route agrees with a prompt's own pass to rounding, in float64 far below this.
_SAME = 1e-8
# The unembedding of one row against the model's own: the same product in another order of summation.
_SAME_LOGITS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Passes:
    """Last tokens in one precision, one `LastTokens` a set of prompts; how they were batched, and how far, at most, they are
    from those of a prompt's own pass."""

    tokens: list[LastTokens]
    batching: Batching
    difference: float


@dataclass(frozen=True)
class RunTables:
    """Tables of a run: one for each precision, in the order given, the float64 curves for each way of storing weights, the
    batching that it ended with, and each precision's `Passes.difference`; `own_pass_lengths`: in 16 bits, by precision, the
    lengths whose rows are of passes of their prompts' own; `not_finite`: the precisions that overflow, each with where."""

    tables: dict[str, pd.DataFrame]
    curves: list[pd.DataFrame]
    batching: Batching
    differences: dict[str, float]
    own_pass_lengths: dict[str, list[int]]
    not_finite: dict[str, str]


@dataclass(frozen=True)
class Views:
    """The model in each precision, and in float64 with the weights of each, made once for all tasks of a call."""

    model: TransformerBridge
    _prepared: dict[str, TransformerBridge] = field(default_factory=dict)

    def prepared(self, precision: Precision) -> TransformerBridge:
        return self._once(precision.name, precision.prepared)

    def exact(self, precision: Precision, key: str) -> TransformerBridge:
        """The float64 model with the weights that this precision stores, which its `weights_key` names."""
        return self.prepared(REFERENCE) if key == AS_GIVEN else self._once(f"float64 of {key}", precision.exact)

    def _once(self, name: str, make: Callable[[TransformerBridge], TransformerBridge]) -> TransformerBridge:
        if name not in self._prepared:
            self._prepared[name] = make(self.model)
        return self._prepared[name]


@dataclass(frozen=True)
class CollapseRun:
    """Passes of `collapse` for one task: the sets of prompts, in each precision, under the mitigation; and the layers whose
    v^(l) it keeps, beside L."""

    views: Views
    task: str
    sets: list[PromptSet]
    precisions: list[Precision]
    mitigation: Mitigation | None
    layers: Sequence[int] = ()

    def tables(self, progress: Progress | None) -> RunTables:
        """Tables of every precision beside the float64 run of the same stored weights."""
        by_weights = self._by_weights()
        parts = len(by_weights) + sum(precision != REFERENCE for precision in self.precisions)
        rising_progress = rising(progress)
        part_progress = (part_of(rising_progress, index, index + 1, parts) for index in range(parts))
        run_tables = RunTables({}, [], self._batching(), {}, {}, {})
        as_given: Passes | None = None
        for key, precisions in by_weights.items():
            step = next(part_progress)
            try:
                exact = self._exact(key, precisions, run_tables.batching, step)
            except _OVERFLOWS as error:
                for precision in precisions or [REFERENCE]:
                    self._leave_out(run_tables, precision, key, as_given, error)
                    tell(next(part_progress), 1, 1)
                tell(step, 1, 1)
                continue
            as_given = as_given or exact
            run_tables = replace(run_tables, batching=exact.batching)
            run_tables.differences[REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}"] = (
                exact.difference
            )
            for precision in precisions:
                precision_progress = None if precision == REFERENCE else next(part_progress)
                try:
                    self._measure(run_tables, precision, key, exact, as_given, precision_progress)
                except _OVERFLOWS as error:
                    self._leave_out(run_tables, precision, key, as_given, error)
                    tell(precision_progress, 1, 1)
            if key == AS_GIVEN or not {precision.name for precision in precisions} <= run_tables.not_finite.keys():
                run_tables.curves.append(self._curves(exact, key))
        return replace(
            run_tables, tables={precision.name: run_tables.tables[precision.name] for precision in self.precisions}
        )

    def _exact(self, key: str, precisions: list[Precision], batching: Batching, progress: Progress | None) -> Passes:
        """The float64 run of the weights as these precisions store them."""
        stored = self.views.exact(precisions[0] if precisions else REFERENCE, key)
        return self._passes(REFERENCE, stored, batching, progress)

    def _measure(
        self,
        run_tables: RunTables,
        precision: Precision,
        key: str,
        exact: Passes,
        as_given: Passes,
        progress: Progress | None,
    ) -> None:
        """Put the table of one precision into `run_tables`, beside the float64 run of the same stored weights."""
        passes, references = exact, [References(None, None)] * len(self.sets)
        if precision != REFERENCE:
            passes = self._passes(precision, self.views.prepared(precision), run_tables.batching, progress)
            given_tokens = [None] * len(self.sets) if key == AS_GIVEN else as_given.tokens
            references = [References(*runs) for runs in zip(exact.tokens, given_tokens, strict=True)]
        table, difference = self._table(passes.tokens, references, key), passes.difference
        if precision.dtype in _SIXTEEN_BITS and passes.batching.name != "loop":
            run_tables.own_pass_lengths[precision.name], error = self._remeasure_deciding(
                table, passes.tokens, references
            )
            difference = max(difference, error)
        if precision != REFERENCE:
            run_tables.differences[precision.name] = difference
        run_tables.tables[precision.name] = table

    def _leave_out(
        self,
        run_tables: RunTables,
        precision: Precision,
        key: str,
        as_given: Passes | None,
        error: InputError | hooks.HookError,
    ) -> None:
        """Put the rows of a precision that overflows into `run_tables`: they hold no number, and say why in `status`.

        Raises `InputError` for a precision that cannot overflow where float64 does not: there the weights are broken.
        """
        if as_given is None or not precision.narrow:
            raise InputError(f"{error}: leave this dtype out, or check the model's weights") from None
        run_tables.not_finite[precision.name] = str(error)
        table = self._table(as_given.tokens, [References(None, None)] * len(self.sets), key)
        blank = dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys(_FLAGS, pd.NA)
        table = table.assign(dtype=precision.name, status=OVERFLOWS, **blank)
        run_tables.tables[precision.name] = table.astype(_KINDS)

    def _by_weights(self) -> dict[str, list[Precision]]:
        """The precisions by how they store the weights, the given ones first: they share a float64 reference."""
        precisions_by_weights: dict[str, list[Precision]] = {AS_GIVEN: []}
        for precision in self.precisions:
            precisions_by_weights.setdefault(precision.weights_key(self.views.model), []).append(precision)
        return precisions_by_weights

    def _batching(self) -> Batching:
        """The way to begin with. Hooks may act on absolute positions, which a packed tree does not have."""
        if changes_pass(self.mitigation):
            return Batching("loop", f"{label(self.mitigation)} changes the forward pass: every prompt has its own")
        return batching_of(self.views.model, [prompts.tree for prompts in self.sets])

    def _passes(
        self, precision: Precision, prepared: TransformerBridge, batching: Batching, progress: Progress | None
    ) -> Passes:
        """The last tokens of every prompt. float64 can show that a packed way does not fit: then all go by the loop, again."""
        tokens, differences = [], []
        for prompts in self.sets:
            with running(prepared, self.mitigation), precision.running(prepared, prompts.longest()):
                last_tokens, difference = _last_tokens(prepared, precision, prompts, batching, self)
                logits = last_tokens.unembedding(last_tokens.rows.y[:1]) if changes_pass(self.mitigation) else None
            if logits is not None and not torch.equal(last_tokens.unembedding(last_tokens.rows.y[:1]), logits):
                raise InputError(
                    f"{label(self.mitigation)} changes the unembedding itself, which collapse applies to y when the run is "
                    "over: its logits would be those of the model without it"
                )
            if precision == REFERENCE and batching.name != "loop" and not difference <= _SAME:
                reason = f"the {batching.name} differs from a prompt's own pass by {difference:.2g} (relative, float64)"
                return self._passes(precision, prepared, Batching("loop", reason), progress)
            tokens.append(last_tokens)
            differences.append(difference)
            tell(progress, len(tokens), len(self.sets))
        return Passes(tokens, batching, max(differences))

    def _remeasure_deciding(
        self, table: pd.DataFrame, tokens: list[LastTokens], references: list[References]
    ) -> tuple[list[int], float]:
        """Measure anew the lengths that decide a collapse length: replace their rows, of whole vectors in L2, by those of
        passes of their prompts' own, until all of them are. Gives those lengths, and how far such a pass is at most from
        `tokens`.

        In 16 bits a kernel may round otherwise at another length, which can move a collapse length.
        """
        measured: set[tuple[str, int, int]] = set()
        largest, key = 0.0, str(table["weights"].iloc[0])
        while undecided := deciding(hidden_curves(table, REFERENCE.name)) - measured:
            for prompts, last_tokens, reference in zip(self.sets, tokens, references, strict=True):
                pair_indices = [
                    i for i, pair in enumerate(prompts.pairs) if (pair.kind, prompts.seed, pair.length) in undecided
                ]
                if not pair_indices:
                    continue
                cut, prompt_indices = prompts.only(pair_indices)
                shared = last_tokens.of(prompt_indices)
                own_passes = replace(shared, rows=self._in_own_passes(last_tokens.precision, cut))
                largest = max(largest, *map(_relative, shared.rows.y, own_passes.rows.y))
                new = self._rows(cut, own_passes, reference.of(prompt_indices), key)
                _replace_rows(table, new)
            measured |= undecided
        return sorted({length for _, _, length in measured}), largest

    def _in_own_passes(self, precision: Precision, prompts: PromptSet) -> LastRows:
        prepared = self.views.prepared(precision)
        with running(prepared, self.mitigation), precision.running(prepared, prompts.longest()):
            return joined([separate_rows(prepared, prompt, self.layers)[0] for prompt in prompts.prompts])

    def _table(self, tokens: list[LastTokens], references: list[References], key: str) -> pd.DataFrame:
        """The rows of one precision."""
        parts = zip(self.sets, tokens, references, strict=True)
        return pd.concat([self._rows(*part, key) for part in parts], ignore_index=True)

    def _rows(self, prompts: PromptSet, last_tokens: LastTokens, reference: References, key: str) -> pd.DataFrame:
        """The rows of one set of prompts."""
        same = prompts.columns() | {
            "task": self.task,
            "dtype": last_tokens.precision.name,
            "weights": key,
            "status": MEASURED,
        }
        column_sets = pair_columns(last_tokens, reference, prompts.first, prompts.second)
        parts = [same | names | columns for names, columns in column_sets]
        sizes = [len(part["mean"]) for part in parts]
        table = {
            column: np.concatenate([np.full(n, part.get(column, np.nan)) for part, n in zip(parts, sizes, strict=True)])
            for column in COLUMNS
        }
        return pd.DataFrame(table).astype(_KINDS)

    def _curves(self, exact: Passes, key: str) -> pd.DataFrame:
        """The float64 distances that collapse lengths are read from."""
        parts = []
        for prompts, last_tokens in zip(self.sets, exact.tokens, strict=True):
            same = {name: values for name, values in prompts.columns().items() if name != "tokens"}
            for site, (distance, relative) in vector_distances(last_tokens, prompts.first, prompts.second).items():
                columns = same | {
                    "task": self.task,
                    "weights": key,
                    "site": site,
                    "distance": distance,
                    "relative": relative,
                }
                parts.append(pd.DataFrame(columns, columns=pd.Index([*CURVE, "distance", "relative"])))
        return pd.concat(parts, ignore_index=True)


def _replace_rows(table: pd.DataFrame, new: pd.DataFrame) -> None:
    """Put rows in the place of those of the same pairs, lengths and seed; both tables have them in one order."""
    old_index, new_index = (rows.set_index(["pair", "seed", "length"]).index for rows in (table, new))
    replaced = old_index.isin(new_index)
    for column in COLUMNS:
        table.loc[replaced, column] = new[column].array


def _last_tokens(
    model: TransformerBridge, precision: Precision, prompts: PromptSet, batching: Batching, run: CollapseRun
) -> tuple[LastTokens, float]:
    """The last tokens of all prompts by this way, and how far some of them are at most from a pass of their own.

    The difference is ||y - y'||_2 / ||y'||_2. In 16 bits kernels may round otherwise at another length, so more prompts are
    tried there. Raises `InputError` for numbers that are not finite, and where W_U y (with the
    soft-cap) is not what the model itself returns.
    """
    rows = last_rows(model, prompts.prompts, prompts.tree, batching, run.layers)
    if is_closed(model):
        w_o = rows.z.new_empty(0, 0, 0)
    else:
        w_o = hooks.residual_scale(model) * model.blocks[int(model.cfg.n_layers) - 1].attn.W_O.detach()
    last_tokens = LastTokens(precision, rows, Unembedding.of(model), w_o)
    require_finite(last_tokens, run.task, prompts.prompt_lengths())
    differences = []
    for probe in prompts.probes(_PROBES_16_BIT if precision.dtype in _SIXTEEN_BITS else 1):
        alone, logits = separate_rows(model, prompts.prompts[probe])
        error = _relative(last_tokens.unembedding(alone.y)[0], logits)
        if not error <= _SAME_LOGITS[precision.dtype]:
            raise InputError(
                f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
                f"{model.cfg.architecture} does something after the final norm that collapse does not know"
            )
        differences.append(_relative(rows.y[probe], alone.y[0]))
    return last_tokens, max(differences)


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
