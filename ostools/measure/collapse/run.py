"""The forward passes of one collapse measurement, in every precision, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError, RangeError
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress, part_of, tell
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.measure.collapse.distances import (
    Columns,
    LastTokens,
    PairDistances,
    Place,
    pair_columns,
    require_finite,
)
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.verdicts import (
    MEASURED,
    OVERFLOWS,
    VECTOR,
    deciding,
    hidden_curves,
)
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
_BLANK = dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys([*_FLAGS, _NEXT], pd.NA)
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
class CollapseTables:
    """`frame` and `reference` of a `Collapse`; the routes of the passes, each once; by precision, in
    16 bits, the lengths whose rows are of passes of their prompts' own, and how far the shared pass
    is from such passes; and where the precisions that overflow do.
    """

    frame: pd.DataFrame
    reference: pd.DataFrame
    routes: list[Batching]
    own_lengths: dict[str, list[int]]
    differences: dict[str, float]
    not_finite: dict[str, str]


@dataclass(frozen=True)
class CollapseRun:
    """Passes of `collapse` for one task: the sets of prompts, in each precision, under the
    mitigation; and the layers whose v^(l) it keeps, beside L."""

    model: TransformerBridge
    task: str
    sets: list[PromptSet]
    precisions: list[Precision]
    mitigation: Mitigation | None
    layers: Sequence[int] = ()
    _views: dict[str, TransformerBridge] = field(default_factory=dict)
    """The model in each precision, and in float64 with the weights of each."""
    _unembedded: set[TransformerBridge] = field(default_factory=set)
    """Views whose logits have been seen to be the unembedding of y."""

    def tables(self, progress: Progress | None) -> CollapseTables:
        """The tables of all precisions in their order, each beside the float64 run of the same
        stored weights.
        """
        keys = {precision: precision.weights_key(self.model) for precision in self.precisions}
        exact, measured, not_finite = self._all_passes(keys, progress)
        # The float64 curves of weights that only overflowing precisions store are not shown.
        weights = {AS_GIVEN, *(passes.weights for passes in measured.values())}
        references = {key: passes for key, passes in exact.items() if key in weights}
        runs = measured or {REFERENCE.name: exact[AS_GIVEN]}
        tables, reference = self._compared(runs, references)
        differences = {_exact_name(key): passes.difference for key, passes in exact.items()}
        own_lengths: dict[str, list[int]] = {}
        for name, passes in runs.items():
            error = 0.0
            if passes.precision.dtype in SIXTEEN_BITS and passes.batching.name != "loop":
                own_lengths[name], error = self._remeasure_deciding(tables[name], passes, exact)
            differences[name] = max(passes.difference, error)
        like = next(iter(tables.values()))
        tables |= {
            name: _overflowing(like, name, keys[Precision.of_name(name)]) for name in not_finite
        }
        frame = pd.concat(
            [tables[precision.name] for precision in self.precisions], ignore_index=True
        )
        routes = dict.fromkeys(passes.batching for passes in (*exact.values(), *runs.values()))
        return CollapseTables(frame, reference, [*routes], own_lengths, differences, not_finite)

    def _view(self, precision: Precision, *, exact: bool = False) -> TransformerBridge:
        """The model in that precision; `exact`: in float64 with the weights that it stores."""
        name = f"float64 of {precision.name}" if exact else precision.name
        if name not in self._views:
            make = precision.exact if exact else precision.prepared
            self._views[name] = make(self.model)
        return self._views[name]

    def _exact_view(self, key: str, stored: Sequence[Precision]) -> TransformerBridge:
        """The model in float64 with the weights of `key`, which the precisions `stored` store."""
        return self._view(REFERENCE) if key == AS_GIVEN else self._view(stored[0], exact=True)

    def _all_passes(
        self, keys: Mapping[Precision, str], progress: Progress | None
    ) -> tuple[dict[str, Passes], dict[str, Passes], dict[str, str]]:
        """The float64 run of each way of storing weights (`keys`), the given ones first; the run of
        each precision; and where those that overflow do.

        Raises `InputError` for a precision that cannot overflow where float64 does not: there the
        weights are broken.
        """
        storing = _storing(keys)
        runs = [(key, one) for key, stored in storing.items() for one in (REFERENCE, *stored)]
        exact: dict[str, Passes] = {}
        measured: dict[str, Passes] = {}
        not_finite: dict[str, str] = {}
        batching = self._batching()
        for index, (key, precision) in enumerate(runs):
            step = part_of(progress, index, index + 1, len(runs))
            concerned = storing[key] if precision == REFERENCE else [precision]
            try:
                if precision == REFERENCE:
                    view = self._exact_view(key, storing[key])
                    exact[key] = self._passes(key, precision, view, batching, step)
                    batching = exact[key].batching
                elif key in exact:
                    view = self._view(precision)
                    measured[precision.name] = self._passes(key, precision, view, batching, step)
            except (RangeError, hooks.RangeError) as error:
                _require_narrow(concerned if AS_GIVEN in exact else [REFERENCE], error)
                not_finite |= dict.fromkeys((stored.name for stored in concerned), str(error))
        if REFERENCE in keys:
            measured[REFERENCE.name] = exact[AS_GIVEN]
        return exact, measured, not_finite

    def _batching(self) -> Batching:
        """The way to begin with. Hooks may act on absolute positions, which a packed tree does not
        have.
        """
        if changes_pass(self.mitigation):
            name = label(self.mitigation)
            return Batching("loop", f"{name} changes the forward pass: every prompt has its own")
        return batching_of(self.model, [prompts.tree for prompts in self.sets])

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
        tokens: list[LastTokens] = []
        differences: list[float] = []
        for prompts in self.sets:
            with running(view, self.mitigation), precision.running(view, prompts.longest()):
                last_tokens, difference = self._last_tokens(view, precision, prompts, batching)
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

    def _last_tokens(
        self, model: TransformerBridge, precision: Precision, prompts: PromptSet, batching: Batching
    ) -> tuple[LastTokens, float]:
        """The last tokens of all prompts by this way, and how far, ||y - y'||_2 / ||y'||_2, some of
        them are at most from a pass of their own: more in 16 bits, where kernels may round
        otherwise at another length.

        Raises `RangeError` for numbers that are not finite, and `InputError` where W_U y (with the
        soft-cap) is not what the model itself returns.
        """
        rows = last_rows(model, prompts.prompts, prompts.tree, batching, self.layers)
        w_o = rows.z.new_empty(0, 0, 0)
        if not is_closed(model):
            last_block = model.blocks[int(model.cfg.n_layers) - 1]
            w_o = hooks.residual_scale(model) * last_block.attn.W_O.detach()
        tokens = LastTokens(precision, rows, Unembedding.of(model), w_o)
        # Where y is finite its logits are, in every dtype but the one with the fewest powers of
        # two.
        only = precision.dtype == torch.float16
        require_finite(tokens, self.task, prompts.prompt_lengths(), logits=only)
        probes = prompts.probes(_PROBES_16_BIT if precision.dtype in SIXTEEN_BITS else 1)
        own_y: list[Tensor] = []
        if model not in self._unembedded:
            alone, logits = separate_rows(model, prompts.prompts[probes[0]])
            own_y.append(alone.y)
            error = _relative(tokens.unembedding(alone.y)[0], logits)
            if not error <= _SAME_LOGITS[precision.dtype]:
                raise InputError(
                    f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
                    f"{model.cfg.architecture} does something after the final norm that collapse does not know"
                )
            self._unembedded.add(model)
        if others := [prompts.prompts[probe] for probe in probes[len(own_y) :]]:
            own_y.append(own_rows(model, others).y)
        return tokens, max(map(_relative, rows.y[probes], torch.cat(own_y)))

    def _compared(
        self, runs: Mapping[str, Passes], exact: Mapping[str, Passes]
    ) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
        """The table of each precision of `runs`, and the float64 curves of each way of storing
        weights: the L2 distance of whole vectors, and that over ||v||.
        """
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in runs}
        curves: dict[str, list[pd.DataFrame]] = {key: [] for key in exact}
        for index, prompts in enumerate(self.sets):
            comparisons = [
                *(_comparison(passes, exact, index) for passes in runs.values()),
                *(PairDistances(passes.tokens[index], curve=True) for passes in exact.values()),
            ]
            tables = pair_columns(comparisons, prompts.first, prompts.second)
            for (name, passes), table in zip(runs.items(), tables, strict=False):
                parts[name].append(self._rows(prompts, passes, table))
            for key, table in zip(exact, tables[len(runs) :], strict=True):
                curves[key] += self._curves(prompts, key, table)
        by_name = {name: pd.concat(part, ignore_index=True) for name, part in parts.items()}
        in_order = [rows for part in curves.values() for rows in part]
        return by_name, pd.concat(in_order, ignore_index=True)

    def _curves(
        self, prompts: PromptSet, key: str, table: Mapping[Place, Columns]
    ) -> Iterator[pd.DataFrame]:
        last = max(layer for _, layer, _, _ in table)
        names = pd.Index([*CURVE, "distance", "relative"])
        for (site, layer, per, norm), columns in table.items():
            if (layer, per, norm) == (last, VECTOR, "l2"):
                rows = prompts.columns() | {"task": self.task, "weights": key, "site": site}
                numbers = {"distance": columns["mean"], "relative": columns["relative"]}
                yield pd.DataFrame(rows | numbers, columns=names)

    def _remeasure_deciding(
        self, table: pd.DataFrame, passes: Passes, exact: Mapping[str, Passes]
    ) -> tuple[list[int], float]:
        """Replace the rows of the lengths that decide a collapse length by those of passes of their
        prompts' own, until all of them are: in 16 bits a kernel may round otherwise at another
        length, which can move it. Gives those lengths, and how far such a pass is at most from
        those of `passes`."""
        replaced: set[tuple[str, int, int]] = set()
        largest, precision = 0.0, passes.precision
        view = self._view(precision)
        while undecided := deciding(hidden_curves(table)) - replaced:
            for index, prompts in enumerate(self.sets):
                keys = [(pair.kind, prompts.seed, pair.length) for pair in prompts.pairs]
                if not (pairs := [place for place, key in enumerate(keys) if key in undecided]):
                    continue
                cut, chosen = prompts.only(pairs)
                shared = passes.tokens[index].of(chosen)
                with running(view, self.mitigation), precision.running(view, cut.longest()):
                    alone = replace(shared, rows=own_rows(view, cut.prompts, self.layers))
                largest = max(largest, *map(_relative, shared.rows.y, alone.rows.y))
                beside = _comparison(passes, exact, index)
                exact_rows, given_rows = (
                    run and run.of(chosen) for run in (beside.exact, beside.given)
                )
                comparison = PairDistances(alone, exact_rows, given_rows)
                (columns,) = pair_columns([comparison], cut.first, cut.second)
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
        self, prompts: PromptSet, passes: Passes, table: Mapping[Place, Columns]
    ) -> pd.DataFrame:
        """The rows of a set of prompts, with the text of each likeliest next token for its id."""
        names = {"dtype": passes.precision.name, "weights": passes.weights, "status": MEASURED}
        same = prompts.columns() | names | {"task": self.task}
        parts = [
            pd.DataFrame(same | {"site": site, "layer": layer, "per": per, "norm": norm} | columns)
            for (site, layer, per, norm), columns in table.items()
        ]
        rows = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
        ids = rows[_NEXT].dropna().astype(int)
        texts = token_texts(self.model.tokenizer, ids.tolist())
        return rows.assign(**{_NEXT: ids.map(texts.get)}).astype(_KINDS)


def _exact_name(key: str) -> str:
    """What the float64 run of those weights is called."""
    return REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}"


def _require_narrow(precisions: Sequence[Precision], error: Exception) -> None:
    """Refuse an overflow of a precision that cannot overflow where float64 does not."""
    if not all(precision.narrow for precision in precisions):
        raise InputError(f"{error}: leave this dtype out, or check the model's weights") from None


def _storing(keys: Mapping[Precision, str]) -> dict[str, list[Precision]]:
    """The precisions but float64 by the weights that they store, the given ones first."""
    storing: dict[str, list[Precision]] = {
        key: [] for key in dict.fromkeys([AS_GIVEN, *keys.values()])
    }
    for precision, key in keys.items():
        if precision != REFERENCE:
            storing[key].append(precision)
    return storing


def _overflowing(like: pd.DataFrame, name: str, weights_key: str) -> pd.DataFrame:
    """The rows of a precision that overflows: those of another, without a number."""
    rows = like.assign(dtype=name, weights=weights_key, status=OVERFLOWS, **_BLANK)
    return rows.astype(_KINDS)


def _comparison(passes: Passes, exact: Mapping[str, Passes], index: int) -> PairDistances:
    """One set of prompts in a precision beside its float64 runs."""
    run = passes.tokens[index]
    if passes.precision == REFERENCE:
        return PairDistances(run)
    given = None if passes.weights == AS_GIVEN else exact[AS_GIVEN].tokens[index]
    return PairDistances(run, exact[passes.weights].tokens[index], given)


def _relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
