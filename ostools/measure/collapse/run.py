"""The forward passes of one collapse measurement, in every precision, and the rows made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Progress, TransformerBridge, tell, with_progress
from ostools.ground.errors import NonFiniteError
from ostools.ground.memory import keep_freed_memory
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.measure.collapse.distances import (
    Columns,
    LastTokens,
    Place,
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
)
from ostools.measure.passes.precisions import AS_GIVEN, Precision
from ostools.mitigations import Mitigation, changes_pass, label, running
from ostools.models.tokenizer_calls import token_texts

_NUMBERS = [
    *("mean", "minimum", "maximum", "relative", "ulps"),
    *("float64_distance", "noise", "pair_noise", "machine_line", "weight_shift", "total_variation"),
]
_FLAGS = ["same_top_token", "identical_logits"]
_NEXT = "next_token"
_KEYS = ["task", "pair", "seed", "length", "tokens", "dtype", "weights"]
COLUMNS = [*_KEYS, "site", "layer", "per", "norm", *_NUMBERS, *_FLAGS, _NEXT, "status"]
STORED = {"distance": "float64_distance", "relative": "float64_relative"}
ORIGINAL = {"distance": "given_distance", "relative": "given_relative"}
REFERENCE_COLUMNS = ["float64_relative", *ORIGINAL.values()]
"""What `Collapse.reference` is made of, beside `float64_distance`."""
REFERENCE = Precision.of_name("float64")

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens", "layer"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
    | {_NEXT: "str"}
)
_BLANK = dict.fromkeys([*_NUMBERS, "float64_relative"], np.nan) | dict.fromkeys(
    [*_FLAGS, _NEXT], pd.NA
)
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


@dataclass
class Passes:
    """Last tokens by one view of the model, one `LastTokens` a set of prompts; and how far, at
    most, they are from those of a prompt's own pass.

    tables, own_lengths: the rows of each set, and the lengths whose rows come from passes of their
    prompts' own.
    """

    view: TransformerBridge
    tokens: list[LastTokens]
    batching: Batching
    difference: float
    tables: list[pd.DataFrame] = field(default_factory=list)
    own_lengths: set[int] = field(default_factory=set)

    @property
    def shares_16_bits(self) -> bool:
        """Whether prompts of other lengths may have moved the rounding of a row."""
        return self.tokens[0].precision.dtype in SIXTEEN_BITS and self.batching.name != "loop"


@dataclass(frozen=True)
class CollapseRun:
    """Passes of `collapse` for one task: the sets of prompts, under the mitigation; and the layers
    whose v^(l) it keeps, beside L.
    """

    model: TransformerBridge
    task: str
    sets: list[PromptSet]
    mitigation: Mitigation | None
    layers: Sequence[int] = ()

    def rows(
        self, precisions: Sequence[Precision], progress: Progress | None
    ) -> tuple[pd.DataFrame, dict[str, object]]:
        """The rows of all precisions in their order, with `REFERENCE_COLUMNS`; and what the
        provenance says of the passes.
        """
        keep_freed_memory()
        keys = {precision: precision.weights_key(self.model) for precision in precisions}
        exact, runs, not_finite = self._all_passes(keys, progress)
        runs = runs or {REFERENCE.name: exact[AS_GIVEN]}
        for index, prompts in enumerate(self.sets):
            references = {key: passes.tokens[index] for key, passes in exact.items()}
            tokens = [passes.tokens[index] for passes in runs.values()]
            columns = pair_columns(tokens, references, prompts.first, prompts.second)
            for passes, run, numbers in zip(runs.values(), tokens, columns, strict=True):
                passes.tables.append(self._table(prompts, run, numbers))
                if passes.shares_16_bits:
                    self._remeasure(prompts, passes, index, references)
        tables = {name: pd.concat(run.tables, ignore_index=True) for name, run in runs.items()}
        like = next(iter(tables.values()))
        for name in not_finite:  # the rows of another, without a number
            key = keys[Precision.of_name(name)]
            rows = like.assign(dtype=name, weights=key, status=OVERFLOWS, **_BLANK)
            tables[name] = rows.astype(_KINDS)
        in_order = [tables[precision.name] for precision in precisions]
        return pd.concat(in_order, ignore_index=True), _described(exact, runs, not_finite)

    def _all_passes(
        self, keys: Mapping[Precision, str], progress: Progress | None
    ) -> tuple[dict[str, Passes], dict[str, Passes], dict[str, str]]:
        """The float64 run of the given weights, and of every other way of storing them (`keys`) in
        which something is measured; the run of each precision; and where those that overflow do.

        Raises `InputError` for a precision that cannot overflow where float64 does not: there the
        weights are broken.
        """
        exact: dict[str, Passes] = {}
        runs: dict[str, Passes] = {}
        not_finite: dict[str, str] = {}
        batching = batching_of(self.model, [prompts.tree for prompts in self.sets])
        if changes_pass(self.mitigation):  # by absolute positions maybe: a packed tree has none
            name = label(self.mitigation)
            reason = f"{name} changes the forward pass: every prompt has its own"
            batching = Batching("loop", reason)
        in_order = dict.fromkeys((REFERENCE, *keys))
        for precision, step in with_progress(in_order, progress):
            key = keys.get(precision, AS_GIVEN)
            try:
                passes = self._passes(precision, key, self.model, batching, step)
                if precision == REFERENCE:
                    batching, exact[key] = passes.batching, passes
                elif key not in exact:  # of weights that only overflowing ones store nothing
                    exact[key] = self._passes(REFERENCE, key, passes.view, batching, None)
            except (NonFiniteError, hooks.FormatError) as error:
                if not precision.narrow:
                    reason = "leave this dtype out, or check the model's weights"
                    raise InputError(f"{error}: {reason}") from None
                not_finite[precision.name] = str(error)
                continue
            if precision in keys:
                runs[precision.name] = passes
        return exact, runs, not_finite

    def _passes(
        self,
        precision: Precision,
        weights: str,
        model: TransformerBridge,
        batching: Batching,
        progress: Progress | None,
    ) -> Passes:
        """The last tokens of every prompt, with the weights of `model` in that precision. float64
        can show that a packed way does not fit: then all go by the loop, again.
        """
        view = precision.prepared(model)
        tokens: list[LastTokens] = []
        differences: list[float] = []
        for prompts in self.sets:
            with running(view, self.mitigation), precision.running(view, prompts.longest()):
                last_tokens, difference = self._last_tokens(
                    view, precision, weights, prompts, batching
                )
                y = last_tokens.rows.y[:1]
                logits = last_tokens.unembedding(y) if changes_pass(self.mitigation) else None
            if logits is not None and not torch.equal(last_tokens.unembedding(y), logits):
                raise InputError(
                    f"{label(self.mitigation)} changes the unembedding itself, which collapse "
                    "applies to y when the run is over: its logits would be those of the model "
                    "without it"
                )
            if precision == REFERENCE and batching.name != "loop" and not difference <= _SAME:
                reason = (
                    f"the {batching.name} differs from a prompt's own pass by {difference:.2g} "
                    "(relative, float64)"
                )
                loop = Batching("loop", reason)
                return self._passes(precision, weights, model, loop, progress)
            tokens.append(last_tokens)
            differences.append(difference)
            tell(progress, len(tokens), len(self.sets))
        return Passes(view, tokens, batching, max(differences))

    def _last_tokens(
        self,
        view: TransformerBridge,
        precision: Precision,
        weights: str,
        prompts: PromptSet,
        batching: Batching,
    ) -> tuple[LastTokens, float]:
        """The last tokens of all prompts by this way, and how far, ||y - y'||_2 / ||y'||_2, some of
        them are at most from a pass of their own: more in 16 bits, where kernels may round
        otherwise at another length.

        Raises `NonFiniteError` for numbers that are not finite, and `InputError` where W_U y (with
        the soft-cap) is not what the model itself returns.
        """
        heads = 0 if is_closed(view) else int(view.cfg.n_heads)
        heads = heads if heads and view.cfg.d_model % heads == 0 else 0
        unembedding, lengths = Unembedding.of(view), prompts.prompt_lengths()
        if precision.narrow:  # what overflows mostly does so on every prompt: seen on one first
            shortest = min(prompts.prompts, key=len)
            first, _ = own_rows(view, [shortest])
            tokens = LastTokens(precision, weights, first, unembedding, heads)
            require_finite(tokens, self.task, [lengths[prompts.prompts.index(shortest)]])
        rows = last_rows(view, prompts.prompts, prompts.tree, batching, self.layers)
        tokens = LastTokens(precision, weights, rows, unembedding, heads)
        require_finite(tokens, self.task, lengths)
        probes = prompts.probes(_PROBES_16_BIT if precision.dtype in SIXTEEN_BITS else 1)
        probed = [prompts.prompts[probe] for probe in probes]
        alone, logits = own_rows(view, probed, logits_to_keep=1)
        error = max(map(_relative, unembedding(alone.y), logits[:, -1]))
        if not error <= _SAME_LOGITS[precision.dtype]:
            raise InputError(
                "expected the model's logits to be its unembedding of y, found a difference of "
                f"{error:.2g} (relative): {view.cfg.architecture} does something after the "
                "final norm that collapse does not know"
            )
        return tokens, max(map(_relative, rows.y[probes], alone.y))

    def _remeasure(
        self, prompts: PromptSet, passes: Passes, index: int, exact: Mapping[str, LastTokens]
    ) -> None:
        """Replace the rows of the lengths that decide a collapse length by those of passes of their
        prompts' own, until all of them are: in 16 bits a kernel may round otherwise at another
        length, which can move it.
        """
        table, tokens, view = passes.tables[index], passes.tokens[index], passes.view
        keys = [(pair.kind, prompts.seed, pair.length) for pair in prompts.pairs]
        replaced: set[tuple[str, int, int]] = set()
        while undecided := deciding(hidden_curves(table)) - replaced:
            cut, prompt_indices = prompts.only(
                [number for number, key in enumerate(keys) if key in undecided]
            )
            shared = tokens.of(prompt_indices)
            with running(view, self.mitigation), tokens.precision.running(view, cut.longest()):
                rows, _ = own_rows(view, cut.prompts, self.layers)
            alone = replace(shared, rows=rows)
            errors = map(_relative, shared.rows.y, alone.rows.y)
            passes.difference = max(passes.difference, *errors)
            references = {key: run.of(prompt_indices) for key, run in exact.items()}
            (columns,) = pair_columns([alone], references, cut.first, cut.second)
            measured = self._table(cut, alone, columns)
            # Both tables have the rows of a pair and a length in one order.
            old_index, new_index = (
                part.set_index(["pair", "length"]).index for part in (table, measured)
            )
            for column in COLUMNS:
                table.loc[old_index.isin(new_index), column] = measured[column].array
            replaced |= undecided
        passes.own_lengths |= {length for *_, length in replaced}

    def _table(
        self, prompts: PromptSet, tokens: LastTokens, columns: Mapping[Place, Columns]
    ) -> pd.DataFrame:
        """The rows of a set of prompts, with the text of each likeliest next token for its id."""
        names = {"dtype": tokens.precision.name, "weights": tokens.weights, "status": MEASURED}
        same = prompts.columns() | names | {"task": self.task}
        parts = [
            pd.DataFrame(same | {"site": site, "layer": layer, "per": per, "norm": norm} | numbers)
            for (site, layer, per, norm), numbers in columns.items()
        ]
        rows = pd.concat(parts, ignore_index=True).reindex(columns=[*COLUMNS, *REFERENCE_COLUMNS])
        ids = rows[_NEXT].dropna().astype(int)
        texts = token_texts(self.model.tokenizer, ids.tolist())
        return rows.assign(**{_NEXT: ids.map(texts.get)}).astype(_KINDS)


def _described(
    exact: Mapping[str, Passes], runs: Mapping[str, Passes], not_finite: Mapping[str, str]
) -> dict[str, object]:
    """What the provenance says of the passes: their ways, each once; in 16 bits, which lengths have
    passes of their own; how far others are at most from such passes; and where precisions overflow.
    """
    routes = dict.fromkeys(passes.batching for passes in (*exact.values(), *runs.values()))
    references = {
        REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}": passes
        for key, passes in exact.items()
    }
    by_name = {**references, **runs}
    return {
        "route": " and ".join(route.name for route in routes),
        "route_reason": "; ".join(route.reason for route in routes),
        "difference_at_probed_lengths": {n: passes.difference for n, passes in by_name.items()},
        "lengths_in_passes_of_their_own": {
            name: sorted(passes.own_lengths)
            for name, passes in runs.items()
            if passes.shares_16_bits
        },
        "not_finite": dict(not_finite),
    }


def _relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
