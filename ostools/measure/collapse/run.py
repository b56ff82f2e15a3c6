"""The forward passes of one collapse measurement, in every precision, and the rows made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
import torch
from torch import Tensor

from ostools import hooks
from ostools.ground import (
    InputError,
    NonFiniteError,
    Progress,
    TransformerBridge,
    keep_freed_memory,
    tell,
    with_progress,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.measure.collapse.distances import (
    COLUMNS,
    FLAGS,
    KINDS,
    NUMBERS,
    REFERENCE,
    LastTokens,
    pair_tables,
    require_finite,
)
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.collapse.verdicts import OVERFLOWS, deciding, hidden_curves
from ostools.measure.passes.batches import Batching, batching_of
from ostools.measure.passes.last_tokens import (
    Unembedding,
    last_rows,
    own_rows,
)
from ostools.measure.passes.precisions import AS_GIVEN, Precision
from ostools.mitigations import Mitigation, changes_pass, label, running
from ostools.models.tokenizer_calls import token_texts

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
    batching: Batching
    tokens: list[LastTokens] = field(default_factory=list)
    difference: float = 0.0
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
    sets: list[PromptSet]
    mitigation: Mitigation | None
    layers: Sequence[int] = ()

    @property
    def heads(self) -> int:
        """Into how many chunks a vector is cut; 0 where the heads are unknown or do not divide
        it.
        """
        heads = 0 if is_closed(self.model) else int(self.model.cfg.n_heads)
        return heads if heads and self.model.cfg.d_model % heads == 0 else 0

    def rows(
        self, precisions: Sequence[Precision], progress: Progress | None
    ) -> tuple[pd.DataFrame, dict[str, object]]:
        """The rows of all precisions in their order; and what the provenance says of the passes."""
        keep_freed_memory()
        keys = {precision: precision.weights_key(self.model) for precision in precisions}
        exact, runs, not_finite = self._all_passes(keys, progress)
        runs = runs or {REFERENCE.name: exact[AS_GIVEN]}
        for index, prompts in enumerate(self.sets):
            references = {key: passes.tokens[index] for key, passes in exact.items()}
            tokens = [passes.tokens[index] for passes in runs.values()]
            tables = pair_tables(tokens, references, prompts, self.heads)
            for passes, table in zip(runs.values(), tables, strict=True):
                passes.tables.append(table)
                if passes.shares_16_bits:
                    self._remeasure(prompts, passes, index, references)
        tables = {name: pd.concat(run.tables) for name, run in runs.items()}
        like = next(iter(tables.values()))
        for precision, key in keys.items():
            if precision.name in not_finite:  # the rows of another, without a number
                blank = dict.fromkeys([*NUMBERS, *FLAGS, "next_token"], float("nan"))
                names = {"dtype": precision.name, "weights": key, "status": OVERFLOWS}
                tables[precision.name] = like.assign(**names, **blank).astype(KINDS)
        table = pd.concat([tables[precision.name] for precision in precisions], ignore_index=True)
        ids = table["next_token"].dropna().astype(int)
        texts = token_texts(self.model.tokenizer, ids.tolist())
        table["next_token"] = ids.map(texts.get).reindex(table.index).astype("str")
        return table, _described(exact, runs, not_finite)

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
        batching = batching_of(
            self.model, is_chain=all(prompts.tree.is_chain for prompts in self.sets)
        )
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
        """The last tokens of every prompt, with the weights of `model` in that precision; and how
        far, ||y - y'||_2 / ||y'||_2, some of them are at most from a pass of their own: more in 16
        bits, where kernels may round otherwise at another length. float64 can show that a packed
        way does not fit: then all go by the loop, again.

        Raises `NonFiniteError` for numbers that are not finite, and `InputError` where W_U y (with
        the soft-cap), made when the run is over, is not what the model itself returns.
        """
        passes = Passes(precision.prepared(model), batching)
        view, unembedding = passes.view, Unembedding.of(passes.view)
        for prompts in self.sets:
            probes = prompts.probes(_PROBES_16_BIT if precision.dtype in SIXTEEN_BITS else 1)
            with running(view, self.mitigation), precision.running(view, prompts.longest()):
                if precision.narrow:  # what overflows mostly does so on every prompt
                    shortest = min(prompts.pairs, key=lambda pair: len(pair.ids))
                    some = PromptSet.of(prompts.task, prompts.seed, [shortest])
                    rows, _ = own_rows(view, some.prompts)
                    require_finite(LastTokens(precision, weights, rows, unembedding), some)
                rows = last_rows(view, prompts.prompts, prompts.tree, batching, self.layers)
                passes.tokens.append(LastTokens(precision, weights, rows, unembedding))
                require_finite(passes.tokens[-1], prompts)
                probed = [prompts.prompts[probe] for probe in probes]
                alone, logits = own_rows(view, probed, logits_to_keep=1)
            error = max(map(_relative, unembedding(alone.y), logits[:, -1]))
            if not error <= _SAME_LOGITS[precision.dtype]:
                raise InputError(
                    "expected the model's logits to be its unembedding of y, found a difference of "
                    f"{error:.2g} (relative): after the final norm {view.cfg.architecture}, or the "
                    "mitigation, does something that collapse does not know"
                )
            difference = max(map(_relative, rows.y[probes], alone.y))
            if precision == REFERENCE and batching.name != "loop" and not difference <= _SAME:
                reason = (
                    f"the {batching.name} differs from a prompt's own pass by {difference:.2g} "
                    "(relative, float64)"
                )
                loop = Batching("loop", reason)
                return self._passes(precision, weights, model, loop, progress)
            passes.difference = max(passes.difference, difference)
            tell(progress, len(passes.tokens), len(self.sets))
        return passes

    def _remeasure(
        self, prompts: PromptSet, passes: Passes, index: int, exact: Mapping[str, LastTokens]
    ) -> None:
        """Replace the rows of the lengths that decide a collapse length by those of passes of their
        prompts' own, until all of them are: in 16 bits a kernel may round otherwise at another
        length, which can move it.
        """
        table, tokens, view = passes.tables[index], passes.tokens[index], passes.view
        replaced: set[tuple[str, int, int]] = set()
        while undecided := deciding(hidden_curves(table)) - replaced:
            undecided_pairs = [
                p for p in prompts.pairs if (p.kind, prompts.seed, p.length) in undecided
            ]
            some = PromptSet.of(prompts.task, prompts.seed, undecided_pairs)
            places = torch.tensor([prompts.prompts.index(ids) for ids in some.prompts])
            with running(view, self.mitigation), tokens.precision.running(view, some.longest()):
                rows, _ = own_rows(view, some.prompts, self.layers)
            errors = map(_relative, tokens.of(places).rows.y, rows.y)
            passes.difference = max(passes.difference, *errors)
            references = {key: run.of(places) for key, run in exact.items()}
            (new,) = pair_tables([replace(tokens, rows=rows)], references, some, self.heads)
            # Both tables have the rows of a pair and a length in one order.
            pairs, new_pairs = (part.set_index(["pair", "length"]).index for part in (table, new))
            for column in COLUMNS:
                table.loc[pairs.isin(new_pairs), column] = new[column].array
            replaced |= undecided
        passes.own_lengths |= {length for *_, length in replaced}


def _described(
    exact: Mapping[str, Passes], runs: Mapping[str, Passes], not_finite: Mapping[str, str]
) -> dict[str, object]:
    """What the provenance says of the passes: their ways, each once; in 16 bits, which lengths have
    passes of their own; how far others are at most from such passes; and where precisions overflow.
    """
    references = {
        REFERENCE.name if key == AS_GIVEN else f"{REFERENCE.name} of {key}": passes
        for key, passes in exact.items()
    }
    by_name = references | dict(runs)
    routes = dict.fromkeys(passes.batching for passes in by_name.values())
    own_lengths = {
        name: sorted(run.own_lengths) for name, run in runs.items() if run.shares_16_bits
    }
    return {
        "route": " and ".join(route.name for route in routes),
        "route_reason": "; ".join(route.reason for route in routes),
        "difference_at_probed_lengths": {n: passes.difference for n, passes in by_name.items()},
        "lengths_in_passes_of_their_own": own_lengths,
        "not_finite": dict(not_finite),
    }


def _relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
