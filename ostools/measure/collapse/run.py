"""The forward passes of one collapse measurement, in every precision, and the tables made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from ostools import hooks
from ostools.ground.errors import InputError, RangeError
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress, part_of, rising, tell
from ostools.hooks.sites import is_closed
from ostools.measure.collapse.distances import (
    Columns,
    LastTokens,
    References,
    SiteColumns,
    pair_columns,
    require_finite,
)
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.verdicts import MEASURED, OVERFLOWS, deciding, hidden_curves
from ostools.measure.passes.last_tokens import (
    Batching,
    Unembedding,
    batching_of,
    last_rows,
    own_rows,
    separate_rows,
)
from ostools.measure.passes.precisions import AS_GIVEN, Precision
from ostools.mitigations import Mitigation, changes_pass, label, running
from ostools.models.tokenizer_calls import token_texts

CURVE = ["task", "pair", "seed", "weights", "length", "site"]
_NUMBERS = [
    *("mean", "minimum", "maximum", "relative", "ulps"),
    *("float64_distance", "noise", "pair_noise", "machine_line", "weight_shift", "total_variation"),
]
_FLAGS = ["same_top_token", "identical_logits"]
_NEXT = "next_token"
COLUMNS = [
    *(
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
    ),
    *(*_NUMBERS, *_FLAGS, _NEXT, "status"),
]
REFERENCE = Precision.of_name("float64")

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens", "layer"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
    | {_NEXT: "str"}
)
_OVERFLOWS = (RangeError, hooks.RangeError)
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_PROBES_16_BIT = 5
# A one-pass route agrees with a prompt's own pass to rounding, in float64 far below this.
_SAME = 1e-8
# The unembedding of one row against the model's own: the same product in another order of
# summation.
_SAME_LOGITS = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}


@dataclass(frozen=True)
class Passes:
    """Last tokens in one precision, one `LastTokens` a set of prompts; and how far, at most, they
    are from those of a prompt's own pass."""

    tokens: list[LastTokens]
    batching: Batching
    difference: float


@dataclass
class RunPasses:
    """Passes of a run: `exact`, the float64 run of each way of storing weights; `measured`, the
    weights and the passes of each precision; `not_finite`, where each precision that overflows
    does."""

    batching: Batching
    exact: dict[str, Passes] = field(default_factory=dict)
    measured: dict[str, tuple[str, Passes]] = field(default_factory=dict)
    not_finite: dict[str, str] = field(default_factory=dict)

    def leave_out(self, precision: Precision, error: InputError | hooks.HookError) -> None:
        """Note a precision that overflows.

        Raises `InputError` for one that cannot overflow where float64 does not: there the weights
        are broken.
        """
        if AS_GIVEN not in self.exact or not precision.narrow:
            raise InputError(
                f"{error}: leave this dtype out, or check the model's weights"
            ) from None
        self.not_finite[precision.name] = str(error)

    def references(self, name: str) -> list[References]:
        """The float64 runs beside a precision, a pair of them for each set of prompts."""
        count = len(self.exact[AS_GIVEN].tokens)
        if name == REFERENCE.name:
            return [References(None, None)] * count
        key, _ = self.measured[name]
        given_tokens = [None] * count if key == AS_GIVEN else self.exact[AS_GIVEN].tokens
        return [
            References(*runs) for runs in zip(self.exact[key].tokens, given_tokens, strict=True)
        ]


@dataclass(frozen=True)
class Views:
    """The model in each precision, and in float64 with the weights of each, made once for all tasks
    of a call.
    """

    model: TransformerBridge
    unembedded: set[TransformerBridge] = field(default_factory=set)
    """Those whose logits have been seen to be the unembedding of y."""
    _prepared: dict[str, TransformerBridge] = field(default_factory=dict)

    def prepared(self, precision: Precision) -> TransformerBridge:
        if precision.name not in self._prepared:
            self._prepared[precision.name] = precision.prepared(self.model)
        return self._prepared[precision.name]

    def exact(self, precision: Precision, key: str) -> TransformerBridge:
        """The float64 model with the weights that this precision stores, which its `weights_key`
        names.
        """
        if key == AS_GIVEN:
            return self.prepared(REFERENCE)
        name = f"float64 of {key}"
        if name not in self._prepared:
            self._prepared[name] = precision.exact(self.model)
        return self._prepared[name]


@dataclass(frozen=True)
class CollapseRun:
    """Passes of `collapse` for one task: the sets of prompts, in each precision, under the
    mitigation; and the layers whose v^(l) it keeps, beside L."""

    views: Views
    task: str
    sets: list[PromptSet]
    precisions: list[Precision]
    mitigation: Mitigation | None
    layers: Sequence[int] = ()

    def tables(
        self, progress: Progress | None
    ) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
        """The table of all precisions in their order, each beside the float64 run of the same
        stored weights; the float64 curves for each way of storing weights; and provenance entries:
        the route, in 16 bits the lengths whose rows are of passes of their prompts' own, how far
        the shared pass is from such passes, and where a precision overflows."""
        # By how they store the weights, the given ones first: these share a float64 reference.
        by_weights: dict[str, list[Precision]] = {AS_GIVEN: []}
        for precision in self.precisions:
            by_weights.setdefault(precision.weights_key(self.views.model), []).append(precision)
        parts = len(by_weights) + sum(precision != REFERENCE for precision in self.precisions)
        rising_progress = rising(progress)
        part_progress = (
            part_of(rising_progress, index, index + 1, parts) for index in range(parts)
        )
        run_passes = RunPasses(self._batching())
        for key, precisions in by_weights.items():
            step = next(part_progress)
            try:
                stored = self.views.exact(precisions[0] if precisions else REFERENCE, key)
                exact = self._passes(REFERENCE, stored, run_passes.batching, step)
            except _OVERFLOWS as error:
                for precision in precisions or [REFERENCE]:
                    run_passes.leave_out(precision, error)
                    tell(next(part_progress), 1, 1)
                tell(step, 1, 1)
                continue
            run_passes.batching, run_passes.exact[key] = exact.batching, exact
            for precision in precisions:
                if precision == REFERENCE:
                    run_passes.measured[precision.name] = key, exact
                    continue
                step = next(part_progress)
                try:
                    prepared = self.views.prepared(precision)
                    passes = self._passes(precision, prepared, run_passes.batching, step)
                    run_passes.measured[precision.name] = key, passes
                except _OVERFLOWS as error:
                    run_passes.leave_out(precision, error)
                    tell(step, 1, 1)
        return self._tables(run_passes, by_weights)

    def _tables(
        self, run_passes: RunPasses, by_weights: Mapping[str, list[Precision]]
    ) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
        measured = run_passes.measured or {REFERENCE.name: (AS_GIVEN, run_passes.exact[AS_GIVEN])}
        left_out = run_passes.not_finite.keys()
        shown = {
            key: passes
            for key, passes in run_passes.exact.items()
            if key == AS_GIVEN or not {precision.name for precision in by_weights[key]} <= left_out
        }
        tables, curves = self._measured_tables(run_passes, measured, shown)
        differences = {
            REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}": passes.difference
            for key, passes in run_passes.exact.items()
        }
        own_pass_lengths = {}
        for name, (_, passes) in measured.items():
            difference, precision = passes.difference, Precision.of_name(name)
            if precision.dtype in _SIXTEEN_BITS and passes.batching.name != "loop":
                references = run_passes.references(name)
                own_pass_lengths[name], error = self._remeasure_deciding(
                    tables[name], passes.tokens, references
                )
                difference = max(difference, error)
            if precision != REFERENCE:
                differences[name] = difference
        like, blank = (
            next(iter(tables.values())),
            dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys([*_FLAGS, _NEXT], pd.NA),
        )
        for key, precisions in by_weights.items():
            for name in (precision.name for precision in precisions if precision.name in left_out):
                rows = like.assign(dtype=name, weights=key, status=OVERFLOWS, **blank)
                tables[name] = rows.astype(_KINDS)
        about = {
            "route": run_passes.batching.name,
            "route_reason": run_passes.batching.reason,
            "difference_at_probed_lengths": differences,
            "lengths_in_passes_of_their_own": own_pass_lengths,
            "not_finite": dict(run_passes.not_finite),
        }
        in_order = [tables[precision.name] for precision in self.precisions]
        return pd.concat(in_order, ignore_index=True), curves, about

    def _measured_tables(
        self,
        run_passes: RunPasses,
        measured: Mapping[str, tuple[str, Passes]],
        shown: Mapping[str, Passes],
    ) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
        """The table of each precision that was `measured`, and the float64 curves of the weights of
        `shown`.
        """
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in measured}
        curve_parts: dict[str, list[pd.DataFrame]] = {key: [] for key in shown}
        for index, prompts in enumerate(self.sets):
            compared = [
                (passes.tokens[index], run_passes.references(name)[index])
                for name, (_, passes) in measured.items()
            ]
            exact_runs = [passes.tokens[index] for passes in shown.values()]
            columns, distances = pair_columns(compared, exact_runs, prompts.first, prompts.second)
            for (name, (key, _)), table in zip(measured.items(), columns, strict=True):
                parts[name].append(self._rows(prompts, Precision.of_name(name), key, table))
            same = {name: values for name, values in prompts.columns().items() if name != "tokens"}
            for key, by_site in zip(shown, distances, strict=True):
                for site, (distance, relative) in by_site.items():
                    names = {"task": self.task, "weights": key, "site": site}
                    rows = same | names | {"distance": distance, "relative": relative}
                    curve_parts[key].append(
                        pd.DataFrame(rows, columns=pd.Index([*CURVE, "distance", "relative"]))
                    )
        tables = {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
        return tables, pd.concat(
            [rows for parts in curve_parts.values() for rows in parts], ignore_index=True
        )

    def _batching(self) -> Batching:
        """The way to begin with. Hooks may act on absolute positions, which a packed tree does not
        have.
        """
        if changes_pass(self.mitigation):
            return Batching(
                "loop",
                f"{label(self.mitigation)} changes the forward pass: every prompt has its own",
            )
        return batching_of(self.views.model, [prompts.tree for prompts in self.sets])

    def _passes(
        self,
        precision: Precision,
        prepared: TransformerBridge,
        batching: Batching,
        progress: Progress | None,
    ) -> Passes:
        """The last tokens of every prompt. float64 can show that a packed way does not fit: then
        all go by the loop, again.
        """
        tokens, differences = [], []
        for prompts in self.sets:
            with running(prepared, self.mitigation), precision.running(prepared, prompts.longest()):
                last_tokens, difference = _last_tokens(prepared, precision, prompts, batching, self)
                logits = (
                    last_tokens.unembedding(last_tokens.rows.y[:1])
                    if changes_pass(self.mitigation)
                    else None
                )
            if logits is not None and not torch.equal(
                last_tokens.unembedding(last_tokens.rows.y[:1]), logits
            ):
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
        """Replace the rows of the lengths that decide a collapse length by those of passes of their
        prompts' own, until all of them are: in 16 bits a kernel may round otherwise at another
        length, which can move it. Gives those lengths, and how far such a pass is at most from
        `tokens`."""
        measured: set[tuple[str, int, int]] = set()
        largest, key = 0.0, str(table["weights"].iloc[0])
        while undecided := deciding(hidden_curves(table, REFERENCE.name)) - measured:
            for prompts, last_tokens, reference in zip(self.sets, tokens, references, strict=True):
                pair_indices = [
                    i
                    for i, pair in enumerate(prompts.pairs)
                    if (pair.kind, prompts.seed, pair.length) in undecided
                ]
                if not pair_indices:
                    continue
                cut, prompt_indices = prompts.only(pair_indices)
                shared = last_tokens.of(prompt_indices)
                precision = last_tokens.precision
                prepared = self.views.prepared(precision)
                with running(prepared, self.mitigation), precision.running(prepared, cut.longest()):
                    own_passes = replace(shared, rows=own_rows(prepared, cut.prompts, self.layers))
                largest = max(largest, *map(_relative, shared.rows.y, own_passes.rows.y))
                (columns,), _ = pair_columns(
                    [(own_passes, reference.of(prompt_indices))], [], cut.first, cut.second
                )
                _replace_rows(table, self._rows(cut, precision, key, columns))
            measured |= undecided
        return sorted({length for _, _, length in measured}), largest

    def _rows(
        self, prompts: PromptSet, precision: Precision, key: str, column_sets: list[SiteColumns]
    ) -> pd.DataFrame:
        same = prompts.columns() | {
            "task": self.task,
            "dtype": precision.name,
            "weights": key,
            "status": MEASURED,
        }
        parts = [same | names | self._shown(columns) for names, columns in column_sets]
        sizes = [len(part["mean"]) for part in parts]
        table = {
            column: np.concatenate(
                [np.full(n, part.get(column, np.nan)) for part, n in zip(parts, sizes, strict=True)]
            )
            for column in COLUMNS
        }
        return pd.DataFrame(table).astype(_KINDS)

    def _shown(self, columns: Columns) -> Columns:
        """The columns with the text of each likeliest next token in the place of its id."""
        if _NEXT not in columns:
            return columns
        ids = columns[_NEXT].tolist()
        texts = token_texts(self.views.model.tokenizer, ids)
        return columns | {_NEXT: np.array([texts[index] for index in ids], dtype=object)}


def _replace_rows(table: pd.DataFrame, new: pd.DataFrame) -> None:
    """Put rows in the place of those of the same pairs, lengths and seed; both tables have them in
    one order.
    """
    old_index, new_index = (
        rows.set_index(["pair", "seed", "length"]).index for rows in (table, new)
    )
    replaced = old_index.isin(new_index)
    for column in COLUMNS:
        table.loc[replaced, column] = new[column].array


def _last_tokens(
    model: TransformerBridge,
    precision: Precision,
    prompts: PromptSet,
    batching: Batching,
    run: CollapseRun,
) -> tuple[LastTokens, float]:
    """The last tokens of all prompts by this way, and how far, ||y - y'||_2 / ||y'||_2, some of
    them are at most from a pass of their own: more in 16 bits, where kernels may round otherwise at
    another length.

    Raises `InputError` for numbers that are not finite, and where W_U y (with the soft-cap) is not
    what the model itself returns."""
    rows = last_rows(model, prompts.prompts, prompts.tree, batching, run.layers)
    if is_closed(model):
        w_o = rows.z.new_empty(0, 0, 0)
    else:
        w_o = (
            hooks.residual_scale(model)
            * model.blocks[int(model.cfg.n_layers) - 1].attn.W_O.detach()
        )
    last_tokens = LastTokens(precision, rows, Unembedding.of(model), w_o)
    # Where y is finite its logits are, in every dtype but the one with the fewest powers of two.
    require_finite(
        last_tokens, run.task, prompts.prompt_lengths(), logits=precision.dtype == torch.float16
    )
    probes = prompts.probes(_PROBES_16_BIT if precision.dtype in _SIXTEEN_BITS else 1)
    own_y = []
    for prompt in (prompts.prompts[probe] for probe in probes):
        if model in run.views.unembedded:
            own_y.append(own_rows(model, [prompt]).y[0])
            continue
        alone, logits = separate_rows(model, prompt)
        _require_unembedding(model, alone.y, logits, last_tokens)
        run.views.unembedded.add(model)
        own_y.append(alone.y[0])
    return last_tokens, max(map(_relative, rows.y[probes], own_y))


def _require_unembedding(
    model: TransformerBridge, y: torch.Tensor, logits: torch.Tensor, last_tokens: LastTokens
) -> None:
    """Refuse a model whose own logits of a prompt are not W_U y, soft-cap included, with
    `InputError`.
    """
    error = _relative(last_tokens.unembedding(y)[0], logits)
    if not error <= _SAME_LOGITS[last_tokens.precision.dtype]:
        raise InputError(
            f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
            f"{model.cfg.architecture} does something after the final norm that collapse does not know"
        )


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
