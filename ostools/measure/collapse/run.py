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
from ostools.ground.progress import Progress, part_of, tell
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.measure.collapse.distances import (
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
_KEYS = ["task", "pair", "seed", "length", "tokens", "dtype", "weights"]
COLUMNS = [*_KEYS, "site", "layer", "per", "norm", *_NUMBERS, *_FLAGS, _NEXT, "status"]
REFERENCE = Precision.of_name("float64")

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens", "layer"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
    | {_NEXT: "str"}
)
_OVERFLOWS = (RangeError, hooks.RangeError)
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
    """Last tokens in one precision with the weights that this key names, one `LastTokens` a set of
    prompts; and how far, at most, they are from those of a prompt's own pass."""

    precision: Precision
    weights: str
    tokens: list[LastTokens]
    batching: Batching
    difference: float


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
        keys = {precision: precision.weights_key(self.views.model) for precision in self.precisions}
        exact, measured, not_finite = self._all_passes(keys, progress)
        # The float64 curves of weights that only overflowing precisions store are not shown.
        weights = {AS_GIVEN, *(passes.weights for passes in measured.values())}
        shown = {key: passes for key, passes in exact.items() if key in weights}
        runs = measured or {REFERENCE.name: exact[AS_GIVEN]}
        tables, curves = self._measured_tables(runs, shown, exact)
        own_pass_lengths, differences = self._deciding_alone(tables, runs, exact)
        like = next(iter(tables.values()))
        blank = dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys([*_FLAGS, _NEXT], pd.NA)
        for name in not_finite:
            weights_key = keys[Precision.of_name(name)]
            rows = like.assign(dtype=name, weights=weights_key, status=OVERFLOWS, **blank)
            tables[name] = rows.astype(_KINDS)
        batching = exact[AS_GIVEN].batching
        about = {
            "route": batching.name,
            "route_reason": batching.reason,
            "difference_at_probed_lengths": differences,
            "lengths_in_passes_of_their_own": own_pass_lengths,
            "not_finite": not_finite,
        }
        in_order = [tables[precision.name] for precision in self.precisions]
        return pd.concat(in_order, ignore_index=True), curves, about

    def _all_passes(
        self, keys: Mapping[Precision, str], progress: Progress | None
    ) -> tuple[dict[str, Passes], dict[str, Passes], dict[str, str]]:
        """The float64 run of each way of storing weights (`keys`), the given ones first; the run of
        each precision; and where those that overflow do.

        Raises `InputError` for a precision that cannot overflow where float64 does not: there the
        weights are broken.
        """
        runs = [
            (key, precision)
            for key in dict.fromkeys([AS_GIVEN, *keys.values()])
            for precision in (REFERENCE, *_storing(keys, key))
        ]
        exact: dict[str, Passes] = {}
        measured: dict[str, Passes] = {}
        not_finite: dict[str, str] = {}
        batching = self._batching()
        for index, (key, precision) in enumerate(runs):
            stored = _storing(keys, key)
            step = part_of(progress, index, index + 1, len(runs))
            concerned = stored if precision == REFERENCE else [precision]
            try:
                if precision == REFERENCE:
                    view = self.views.exact(stored[0] if stored else REFERENCE, key)
                    exact[key] = self._passes(key, precision, view, batching, step)
                    batching = exact[key].batching
                elif key in exact:
                    view = self.views.prepared(precision)
                    measured[precision.name] = self._passes(key, precision, view, batching, step)
            except _OVERFLOWS as error:
                if AS_GIVEN not in exact:
                    raise _broken(error) from None
                not_finite |= _left_out(concerned, error)
        if REFERENCE in keys:
            measured[REFERENCE.name] = exact[AS_GIVEN]
        return exact, measured, not_finite

    def _measured_tables(
        self, runs: Mapping[str, Passes], shown: Mapping[str, Passes], exact: Mapping[str, Passes]
    ) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
        """The table of each precision of `runs`, and the float64 curves of the weights of `shown`."""
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in runs}
        curve_parts: dict[str, list[pd.DataFrame]] = {key: [] for key in shown}
        for index, prompts in enumerate(self.sets):
            compared = [
                (passes.tokens[index], _references(passes, exact)[index])
                for passes in runs.values()
            ]
            exact_runs = [passes.tokens[index] for passes in shown.values()]
            columns, distances = pair_columns(compared, exact_runs, prompts.first, prompts.second)
            for (name, passes), table in zip(runs.items(), columns, strict=True):
                parts[name].append(self._rows(prompts, passes, table))
            for key, by_site in zip(shown, distances, strict=True):
                for site, (distance, relative) in by_site.items():
                    names = {"task": self.task, "weights": key, "site": site}
                    numbers = {"distance": distance, "relative": relative}
                    rows = prompts.columns() | names | numbers
                    columns_shown = pd.Index([*CURVE, "distance", "relative"])
                    curve_parts[key].append(pd.DataFrame(rows, columns=columns_shown))
        tables = {name: pd.concat(part, ignore_index=True) for name, part in parts.items()}
        curves = [rows for part in curve_parts.values() for rows in part]
        return tables, pd.concat(curves, ignore_index=True)

    def _batching(self) -> Batching:
        """The way to begin with. Hooks may act on absolute positions, which a packed tree does not
        have.
        """
        if changes_pass(self.mitigation):
            name = label(self.mitigation)
            return Batching("loop", f"{name} changes the forward pass: every prompt has its own")
        return batching_of(self.views.model, [prompts.tree for prompts in self.sets])

    def _passes(
        self,
        key: str,
        precision: Precision,
        view: TransformerBridge,
        batching: Batching,
        progress: Progress | None,
    ) -> Passes:
        """The last tokens of every prompt. float64 can show that a packed way does not fit: then
        all go by the loop, again.
        """
        tokens, differences = [], []
        for prompts in self.sets:
            with running(view, self.mitigation), precision.running(view, prompts.longest()):
                last_tokens, difference = _last_tokens(view, precision, prompts, batching, self)
                y = last_tokens.rows.y[:1]
                logits = last_tokens.unembedding(y) if changes_pass(self.mitigation) else None
            if logits is not None and not torch.equal(last_tokens.unembedding(y), logits):
                raise InputError(
                    f"{label(self.mitigation)} changes the unembedding itself, which collapse applies to y when the run is "
                    "over: its logits would be those of the model without it"
                )
            if precision == REFERENCE and batching.name != "loop" and not difference <= _SAME:
                reason = f"the {batching.name} differs from a prompt's own pass by {difference:.2g} (relative, float64)"
                return self._passes(key, precision, view, Batching("loop", reason), progress)
            tokens.append(last_tokens)
            differences.append(difference)
            tell(progress, len(tokens), len(self.sets))
        return Passes(precision, key, tokens, batching, max(differences))

    def _deciding_alone(
        self,
        tables: Mapping[str, pd.DataFrame],
        runs: Mapping[str, Passes],
        exact: Mapping[str, Passes],
    ) -> tuple[dict[str, list[int]], dict[str, float]]:
        """Measure what decides in 16 bits again, in passes of its own: the lengths by precision;
        and how far passes are at most from passes of their own, by precision and by float64 run.
        """
        own_pass_lengths: dict[str, list[int]] = {}
        differences = {
            REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}": passes.difference
            for key, passes in exact.items()
        }
        for name, passes in runs.items():
            error = 0.0
            if passes.precision.dtype in SIXTEEN_BITS and passes.batching.name != "loop":
                references = _references(passes, exact)
                lengths, error = self._remeasure_deciding(tables[name], passes, references)
                own_pass_lengths[name] = lengths
            differences[name] = max(passes.difference, error)
        return own_pass_lengths, differences

    def _remeasure_deciding(
        self, table: pd.DataFrame, passes: Passes, references: list[References]
    ) -> tuple[list[int], float]:
        """Replace the rows of the lengths that decide a collapse length by those of passes of their
        prompts' own, until all of them are: in 16 bits a kernel may round otherwise at another
        length, which can move it. Gives those lengths, and how far such a pass is at most from
        those of `passes`."""
        replaced: set[tuple[str, int, int]] = set()
        largest, precision = 0.0, passes.precision
        view = self.views.prepared(precision)
        while undecided := deciding(hidden_curves(table)) - replaced:
            for prompts, shared, reference in zip(
                self.sets, passes.tokens, references, strict=True
            ):
                keys = [(pair.kind, prompts.seed, pair.length) for pair in prompts.pairs]
                if not (pairs := [index for index, key in enumerate(keys) if key in undecided]):
                    continue
                cut, prompt_indices = prompts.only(pairs)
                shared = shared.of(prompt_indices)
                with running(view, self.mitigation), precision.running(view, cut.longest()):
                    alone = replace(shared, rows=own_rows(view, cut.prompts, self.layers))
                largest = max(largest, *map(_relative, shared.rows.y, alone.rows.y))
                compared = [(alone, reference.of(prompt_indices))]
                (columns,), _ = pair_columns(compared, [], cut.first, cut.second)
                rows = self._rows(cut, passes, columns)
                # Both tables have the rows of a pair, a length and a seed in one order.
                old_index, new_index = (
                    part.set_index(["pair", "seed", "length"]).index for part in (table, rows)
                )
                for column in COLUMNS:
                    table.loc[old_index.isin(new_index), column] = rows[column].array
            replaced |= undecided
        return sorted({length for _, _, length in replaced}), largest

    def _rows(
        self, prompts: PromptSet, passes: Passes, column_sets: list[SiteColumns]
    ) -> pd.DataFrame:
        """The rows of a set of prompts, with the text of each likeliest next token for its id."""
        names = {"dtype": passes.precision.name, "weights": passes.weights, "status": MEASURED}
        same = prompts.columns() | names | {"task": self.task}
        parts = [pd.DataFrame(same | places | columns) for places, columns in column_sets]
        rows = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
        ids = rows[_NEXT].dropna().astype(int)
        texts = token_texts(self.views.model.tokenizer, ids.tolist())
        return rows.assign(**{_NEXT: ids.map(texts.get)}).astype(_KINDS)


def _broken(error: Exception) -> InputError:
    return InputError(f"{error}: leave this dtype out, or check the model's weights")


def _left_out(precisions: Sequence[Precision], error: Exception) -> dict[str, str]:
    """Where each of these precisions overflows. Raises `InputError` for one that cannot."""
    if not all(precision.narrow for precision in precisions):
        raise _broken(error) from None
    return {precision.name: str(error) for precision in precisions}


def _storing(keys: Mapping[Precision, str], key: str) -> list[Precision]:
    """The precisions but float64 itself that store the weights so."""
    return [one for one in keys if keys[one] == key and one != REFERENCE]


def _references(passes: Passes, exact: Mapping[str, Passes]) -> list[References]:
    """The float64 runs beside a precision, a pair of them for each set of prompts."""
    if passes.precision == REFERENCE:
        return [References()] * len(passes.tokens)
    same = exact[passes.weights].tokens
    given = [None] * len(same) if passes.weights == AS_GIVEN else exact[AS_GIVEN].tokens
    return [References(*runs) for runs in zip(same, given, strict=True)]


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
    probes = prompts.probes(_PROBES_16_BIT if precision.dtype in SIXTEEN_BITS else 1)
    if model not in run.views.unembedded:
        alone, logits = separate_rows(model, prompts.prompts[probes[0]])
        error = _relative(last_tokens.unembedding(alone.y)[0], logits)
        if not error <= _SAME_LOGITS[precision.dtype]:
            raise InputError(
                f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
                f"{model.cfg.architecture} does something after the final norm that collapse does not know"
            )
        run.views.unembedded.add(model)
    own_y = own_rows(model, [prompts.prompts[probe] for probe in probes]).y
    return last_tokens, max(map(_relative, rows.y[probes], own_y))


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
