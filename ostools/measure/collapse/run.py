"""The forward passes of one collapse measurement, in every precision, and the tables made of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation, changes_pass, label, running
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.collapse.distances import Measured, References, pair_columns, require_finite, vector_distances
from ostools.measure.collapse.prompt_sets import PromptSet
from ostools.measure.passes.last_tokens import Route, Unembedding, last_rows, route, separate_rows
from ostools.measure.passes.precisions import GIVEN, Precision

CURVE = ["task", "pair", "seed", "weights", "length", "site"]
_NUMBERS = [
    "mean",
    "minimum",
    "maximum",
    "relative",
    "ulps",
    "noise",
    "pair_noise",
    "machine_line",
    "weight_shift",
    "total_variation",
]
_FLAGS = ["same_top_token", "identical_logits"]
COLUMNS = ["task", "pair", "seed", "length", "tokens", "dtype", "weights", "site", "per", "norm", *_NUMBERS, *_FLAGS]
REFERENCE = Precision.named("float64")

_KINDS = (
    dict.fromkeys(("seed", "length", "tokens"), "int64")
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_FLAGS, "boolean")
)
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_PROBES_16_BIT = 5
# A one-pass route agrees with a prompt's own pass to rounding, in float64 far below this.
_SAME = 1e-8
# The unembedding of one row against the model's own: the same product in another order of summation.
_SAME_LOGITS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class Run:
    """One call of `collapse`: the forward passes in each precision, and the tables made of them."""

    def __init__(
        self,
        model: TransformerBridge,
        task: str,
        sets: list[PromptSet],
        precisions: list[Precision],
        mitigation: Mitigation | None,
        progress: Progress | None,
    ) -> None:
        self.model = model
        self.task = task
        self.sets = sets
        self.mitigation = mitigation
        self.progress = progress
        # The precisions by how they store the weights, the given ones first: they share a float64 reference.
        self.by_weights: dict[str, list[Precision]] = {GIVEN: []}
        for precision in precisions:
            self.by_weights.setdefault(precision.weights_key(model), []).append(precision)
        self.order = [precision.name for precision in precisions]
        runs = len(self.by_weights) + sum(precision != REFERENCE for precision in precisions)
        self.done, self.total = 0, runs * len(sets)
        # Hooks may act on absolute positions, which a packed tree does not have.
        edited = Route("loop", f"{label(mitigation)} changes the forward pass: every prompt has its own")
        self.way = edited if changes_pass(mitigation) else route(model, [prompts.tree for prompts in sets])
        self.differences: dict[str, float] = {}

    def tables(self) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
        """A table for each precision, in the order given, and the float64 curves for each way of storing weights."""
        tables: dict[str, pd.DataFrame] = {}
        curves: list[pd.DataFrame] = []
        given: list[Measured] = []
        for key, precisions in self.by_weights.items():
            exact = self.measure(
                REFERENCE, (REFERENCE.prepared if key == GIVEN else precisions[0].exact)(self.model), key
            )
            given = given or exact
            curves.append(self.curves(exact, key))
            for precision in precisions:
                if precision == REFERENCE:
                    here, references = exact, [References(None, None)] * len(exact)
                else:
                    here = self.measure(precision, precision.prepared(self.model), key)
                    moved = [None] * len(given) if key == GIVEN else given
                    references = [References(*runs) for runs in zip(exact, moved, strict=True)]
                tables[precision.name] = self.table(here, references, key)
        return [tables[name] for name in self.order], curves

    def measure(self, precision: Precision, prepared: TransformerBridge, key: str) -> list[Measured]:
        """The last tokens of every prompt in that precision, a `Measured` per seed. `key`: how the weights are stored.

        float64 comes first: it can show that the one-pass route does not fit the model, and then all goes by the loop.
        """
        found = []
        name = precision.name if key == GIVEN or precision != REFERENCE else f"{precision.name} of {key}"
        for prompts in self.sets:
            with running(prepared, self.mitigation), precision.running(prepared, prompts.longest()):
                measured, difference = _measured(prepared, precision, prompts, self.way, self.task)
                logits = measured.unembedding(measured.rows.y[:1])
            if not torch.equal(measured.unembedding(measured.rows.y[:1]), logits):
                raise InputError(
                    f"{label(self.mitigation)} changes the unembedding itself, which collapse applies to y when the run is "
                    "over: its logits would be those of the model without it"
                )
            if precision == REFERENCE and self.way.name != "loop" and not difference <= _SAME:
                reason = f"the {self.way.name} differs from a prompt's own pass by {difference:.2g} (relative, float64)"
                self.way = Route("loop", reason)
                return self.measure(precision, prepared, key)
            self.differences[name] = max(difference, self.differences.get(name, 0.0))
            found.append(measured)
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)
        return found

    def table(self, measured: list[Measured], references: list[References], key: str) -> pd.DataFrame:
        """The rows of one precision."""
        parts = []
        for prompts, here, reference in zip(self.sets, measured, references, strict=True):
            same = prompts.columns() | {"task": self.task, "dtype": here.precision.name, "weights": key}
            for site, per, norm, columns in pair_columns(here, reference, prompts.first, prompts.second):
                parts.append(same | {"site": site, "per": per, "norm": norm} | columns)
        sizes = [len(part["mean"]) for part in parts]
        table = {
            column: np.concatenate([np.full(n, part.get(column, np.nan)) for part, n in zip(parts, sizes, strict=True)])
            for column in COLUMNS
        }
        return pd.DataFrame(table).astype(_KINDS)

    def curves(self, references: list[Measured], key: str) -> pd.DataFrame:
        """The float64 distances that collapse lengths are read from."""
        parts = []
        for prompts, here in zip(self.sets, references, strict=True):
            same = {name: values for name, values in prompts.columns().items() if name != "tokens"}
            for site, (found, relative) in vector_distances(here, prompts.first, prompts.second).items():
                columns = same | {
                    "task": self.task,
                    "weights": key,
                    "site": site,
                    "distance": found,
                    "relative": relative,
                }
                parts.append(pd.DataFrame(columns, columns=pd.Index([*CURVE, "distance", "relative"])))
        return pd.concat(parts, ignore_index=True)


def _measured(
    model: TransformerBridge, precision: Precision, prompts: PromptSet, way: Route, what: str
) -> tuple[Measured, float]:
    """The last tokens of all prompts by this route, and how far some of them are at most from a pass of their own.

    The difference is ||y - y'||_2 / ||y'||_2. In 16 bits kernels may round otherwise at another length, so more prompts are
    tried there. Raises `InputError` for numbers that are not finite, and where W_U y (with the
    soft-cap) is not what the model itself returns.
    """
    rows = last_rows(model, prompts.prompts, prompts.tree, way)
    w_o = model.blocks[int(model.cfg.n_layers) - 1].attn.W_O.detach()
    measured = Measured(precision, rows, Unembedding.of(model), w_o)
    require_finite(measured, what, prompts.prompt_lengths())
    differences = []
    for probe in prompts.probes(_PROBES_16_BIT if precision.dtype in _SIXTEEN_BITS else 1):
        alone, logits = separate_rows(model, prompts.prompts[probe])
        error = _relative(measured.unembedding(alone.y)[0], logits)
        if not error <= _SAME_LOGITS[precision.dtype]:
            raise InputError(
                f"expected the model's logits to be its unembedding of y, found a difference of {error:.2g} (relative): "
                f"{model.cfg.architecture} does something after the final norm that collapse does not know"
            )
        differences.append(_relative(rows.y[probe], alone.y[0]))
    return measured, max(differences)


def _relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())
