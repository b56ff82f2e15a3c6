"""What is measured of a window: its profile of sensitivity, or how far it is from itself with its
last token once more.

The pairs are those of Theorem 4.2 on text that people wrote, which differs from window to window:
the theorem says that the two come together as windows grow longer, whatever stands in them. Cost:
`ost.sensitivity` of a window, or `ost.collapse` of one pair, times the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd

from ostools import mitigations
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import METHOD_KINDS
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.verdicts import VECTOR
from ostools.measure.jacobian.norms import choose_method
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.mitigated_prompts import MitigatedPrompts, of_the_pass
from ostools.measure.passes.precisions import checked_precisions
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.results import Frame
from ostools.sweep.corpus.texts import Window
from ostools.tasks.repeats import RepeatedIds

MeasureName = Literal["sensitivity", "collapse"]
PROFILES, PAIRS = get_args(MeasureName)
DTYPES = ("float32", "bfloat16")
_DISTANCES = ["distance", "relative", "float64_distance", "noise", "pair_noise", "weight_shift"]


@dataclass(frozen=True)
class WindowMeasure:
    """What is measured: the sensitivity in which linearisation and by which method ("" of pairs),
    or pairs in which dtypes; and under which mitigation of the forward pass."""

    name: str
    linearisation: str = ""
    method: str = ""
    dtypes: tuple[str, ...] = ()
    mitigation: Mitigation | None = None

    @classmethod
    def from_options(
        cls,
        name: str,
        linearisation: str | None,
        method: str | None,
        dtypes: Sequence[str] | None,
        d_model: int,
        mitigation: Mitigation | str | None = None,
    ) -> WindowMeasure:
        """Checked. `method` None: exact, but a sketch for models wider than d_model 256. Never by
        the memory that is free: one corpus holds one kind of number."""
        acting = of_the_pass(
            "corpus", mitigation, "the windows of a corpus are tokens, which it cannot rewrite"
        )
        of_pairs = {"dtypes": dtypes}
        of_profiles = {"linearisation": linearisation, "method": method}
        for option, value in (of_pairs if name == PROFILES else of_profiles).items():
            if value is not None:
                raise InputError(f"{option}: expected none with measure {name!r}, found {value!r}")
        if name == PROFILES:
            method = method or choose_method(d_model, exact_fits=True)[0]
            return cls(name, linearisation or "full", method, mitigation=acting)
        precisions = checked_precisions(DTYPES if dtypes is None else dtypes)
        names = tuple(precision.name for precision in precisions)
        if "float64" in names:
            raise InputError(
                "dtypes: expected ones that are held against float64, found 'float64' itself: leave it out"
            )
        return cls(name, dtypes=names, mitigation=acting)

    @property
    def as_dict(self) -> dict[str, Any]:
        """Its fields; whether its values are measured or estimated; and what they are: the operator
        norm is known of exact Jacobians alone."""
        columns: dict[str, Any] = {
            "measure": self.name,
            "linearisation": self.linearisation,
            "method": self.method,
            "kind": METHOD_KINDS.get(self.method, "measured"),
            "quantity": "operator norm" if self.method == "exact" else "Frobenius norm",
        }
        if self.name == PAIRS:
            columns |= {"dtypes": list(self.dtypes), "quantity": "L2 distance at y"}
        if self.mitigation is not None:
            columns["mitigation"] = mitigations.label(self.mitigation)
        return columns

    def rows(
        self, model: TransformerBridge, windows: Sequence[Window], first: int, seed: int
    ) -> Frame:
        """Of windows of one length, the first of which is number `first`: a row a token; of pairs a
        row a window and dtype.

        `seed`: of an estimate's directions. Raises `InactiveMitigationError` for a mitigation that
        does not change a logit of one of them.
        """
        is_pairs = self.name == PAIRS
        tables = self._pairs(model, windows) if is_pairs else self._profiles(model, windows, seed)
        for number, (table, window) in enumerate(zip(tables, windows, strict=True), start=first):
            table.insert(0, "length", len(window.ids))
            table.insert(1, "window", number)
            table.insert(2, "text", window.text)
            table.insert(3, "start", window.start)
        return pd.concat(tables, ignore_index=True)

    def _profiles(
        self, model: TransformerBridge, windows: Sequence[Window], seed: int
    ) -> list[pd.DataFrame]:
        prompts = [Prompt.from_ids(model, window.ids) for window in windows]
        how: Any = {"linearisations": [self.linearisation], "method": self.method, "seed": seed}
        results = sensitivity(model, prompts, **how, mitigation=self.mitigation, progress=False)
        column = "operator_norm" if self.method == "exact" else "frobenius_norm"
        tables = []
        for window, result in zip(windows, results, strict=True):
            columns = {"position": range(len(window.ids)), "token_id": window.ids}
            tables.append(pd.DataFrame({**columns, "value": result.frame[column]}))
        return tables

    def _pairs(self, model: TransformerBridge, windows: Sequence[Window]) -> list[pd.DataFrame]:
        """What `ost.collapse` says of y, in L2, and whether the two have the same top token."""
        if self.mitigation is not None:
            longer = [Prompt.from_ids(model, (*window.ids, window.ids[-1])) for window in windows]
            MitigatedPrompts.of("corpus", model, longer, self.mitigation).require_acting(model)
        pairs = [
            RepeatedIds(window.ids, name=f"window {index}") for index, window in enumerate(windows)
        ]
        how: Any = {"lengths": [1], "dtypes": list(self.dtypes), "mitigation": self.mitigation}
        tables = []
        results = [collapse(model, pair, **how, progress=False) for pair in pairs]
        for window, result in zip(windows, results, strict=True):
            result.require_finite("corpus")
            frame: Any = result.frame
            vectors = frame[(frame["per"] == VECTOR) & (frame["norm"] == "l2")]
            at_y, logits = (
                vectors[vectors["site"] == site].set_index("dtype").loc[how["dtypes"]]
                for site in ("y", "logits")
            )
            distances = at_y.rename(columns={"mean": "distance"})[_DISTANCES]
            table = distances.reset_index(names="compared")
            table.insert(0, "token_id", window.ids[-1])
            tables.append(
                table.assign(same_top_token=logits["same_top_token"].to_numpy(dtype=bool))
            )
        return tables
