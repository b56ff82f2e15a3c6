"""A measured or predicted profile beside those of null models: which of its shape was there before training?

Cost: one sensitivity, or path sum, for the model and one for every null (kinds times seeds), one null in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name, checked_names
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_seeds
from ostools.measure.jacobian.linearisations import LINEARISATIONS
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.paths.path_sum import path_sum
from ostools.measure.paths.variants import VARIANTS
from ostools.measure.profiles.profile import Profile, profile, profile_of
from ostools.measure.prompts import as_prompt
from ostools.models import Prompt, null_model
from ostools.models.null import KINDS
from ostools.results import Frame, Result
from ostools.theory.profiles import rank_correlation

SENSITIVITY = "sensitivity"
PREDICTIONS = tuple(name for name, variant in VARIANTS.items() if variant.kind == "predicted")
MEASURES = (SENSITIVITY, *PREDICTIONS)
OWN = "model"
"""The source of the model's own rows."""


@dataclass(frozen=True, eq=False)
class Nulls(Result):
    """Profiles over the tokens of one prompt: of the model, and of its null models.

    `frame`, one row a token and profile: position, token_id, token, source ("model", or a kind of null), seed (NA of the
    model), measure ("sensitivity", or the variant that predicts it), linearisation, norm, method (exact, estimate, predicted),
    value, share (of the sum over all tokens: norms of different weights have different sizes, shares compare).

    `summary`, one row a profile: source, seed, verdict (the shape without the first token; `ost.profile`), start_contrast,
    end_contrast (decades), end_without_last (the same without the last token), sink_share, last_share, spearman (rank
    correlation with the model's own profile), cesaro_spearman (with the `cesaro` path sum of the same weights; NaN where no
    formula describes the family), weight_hash.

    `band`, one row a token and kind of null: low, median, high of the shares over the seeds.
    """

    summary: pd.DataFrame

    @property
    def band(self) -> Frame:
        table: Any = self.frame
        of_nulls = table[table["source"] != OWN]
        grouped = of_nulls.groupby(["source", "position", "token"], sort=False)["share"]
        return grouped.agg(low="min", median="median", high="max").reset_index()


@measurement
def nulls(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    measure: str = SENSITIVITY,
    kinds: str | Sequence[str] = ("initialised",),
    seeds: Iterable[int] = range(3),
    linearisation: str | None = None,
    method: str | None = None,
    max_memory: int | None = None,
    mitigation: Mitigation | str | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Nulls:
    """The measured or predicted profile of `model` and of its null models, on one prompt.

    Args:
        measure: "sensitivity", or a predicted variant of `ost.path_sum` such as "second-moment".
        kinds: "initialised", "embeddings-kept", "shuffled": what `ost.null_model` makes.
        seeds: of the null models. There is one profile for each kind and seed.
        linearisation, method, announce: as in `ost.sensitivity`, for every profile; "full" and "auto" by default. They belong
            to the measure "sensitivity" alone. The norm is the operator norm; the Frobenius norm for estimates; that of the
            prediction for a prediction. It is the same for all profiles.
        max_memory, mitigation: as in `ost.sensitivity` and `ost.path_sum`, for every profile.
        progress: called as progress(done, total), in percent.

    Every profile is checked as `ost.sensitivity` and `ost.path_sum` check it. `ost.experiments.repeats` with `nulls` asks how
    far n and n + 1 items end apart in null models. Raises `InputError` for unknown measures, kinds and linearisations, for a
    linearisation or method of a prediction, and while edits are active, because a null model does not have them.
    """
    measured = Measured.asked(measure, linearisation, method)
    chosen = checked_names("kind of null model", [kinds] if isinstance(kinds, str) else kinds, KINDS)
    drawn = checked_seeds(seeds)
    tokens = as_prompt(model, prompt)
    if edits := hooks.active_edits(model):
        raise InputError(
            f"nulls: expected a model without edits, found {edits[0].kind!r} at {edits[0].where}: null models would not have "
            "it; leave its block"
        )
    cases: list[tuple[str, int | None]] = [(OWN, None), *((kind, seed) for kind in chosen for seed in drawn)]
    frames, rows, own = [], [], None
    for index, (source, seed) in enumerate(cases):
        one = model if seed is None else null_model(model, source, seed=seed)
        told = part_of(progress, index, index + 1, len(cases), units=100)
        found = measured.profile(one, tokens, max_memory, mitigation, announce, told)
        own = found if own is None else own
        shape: Any = found.shapes
        value = found.frame["value"].to_numpy()
        frames.append(
            found.frame.drop(columns=["rank", "share_without_sink", "over_frozen"]).assign(
                source=source, seed=seed, measure=measure
            )
        )
        rows.append(
            {
                "source": source,
                "seed": seed,
                **shape[shape["kept"] == "without the sink"].iloc[0][["verdict", "start_contrast", "end_contrast"]],
                "end_without_last": shape[shape["kept"] == "without sink and last"].iloc[0]["end_contrast"],
                **found.summary.iloc[0][["sink_share", "last_share"]],
                "spearman": rank_correlation(value, own.frame["value"].to_numpy()),
                "cesaro_spearman": _cesaro(one, tokens, mitigation, value),
                "weight_hash": found.provenance.model["weight_hash"],
            }
        )
    assert own is not None
    columns = ["position", "token_id", "token", "source", "seed", "measure", "linearisation", "norm", "method"]
    columns += ["value", "share"]
    table: Any = pd.concat([frame.astype({"seed": "Int64"}) for frame in frames], ignore_index=True)[columns]
    _require_one_norm(table)
    asked = {"kinds": chosen, "seeds": drawn, "measure": measure, **own.provenance.parameters}
    return Nulls(table, replace(own.provenance, parameters=asked), pd.DataFrame(rows).astype({"seed": "Int64"}))


@dataclass(frozen=True)
class Measured:
    """What is asked of every model."""

    name: str
    linearisation: str
    method: str

    @classmethod
    def asked(cls, name: str, linearisation: str | None, method: str | None) -> Measured:
        """Checked. Raises `InputError`."""
        if name == "collapse":
            raise InputError(
                "measure 'collapse': expected one that gives a profile over tokens, and a distance is one number a pair: ask "
                "ost.experiments.repeats(model, nulls=...)"
            )
        checked_name("measure", name, MEASURES)
        for option, value in (("linearisation", linearisation), ("method", method)):
            if value is not None and name != SENSITIVITY:
                raise InputError(
                    f"{option}: expected it with measure 'sensitivity' alone, found {name!r}: leave it out"
                )
        kind = checked_name("linearisation", "full" if linearisation is None else linearisation, LINEARISATIONS)
        return cls(name, kind, "auto" if method is None else method)

    def profile(
        self,
        model: TransformerBridge,
        tokens: Prompt,
        max_memory: int | None,
        mitigation: Mitigation | str | None,
        announce: Callable[[str], None] | None,
        progress: Progress | None,
    ) -> Profile:
        """Of one model."""
        if self.name != SENSITIVITY:
            asked: dict[str, Any] = {"variants": self.name, "mitigation": mitigation, "progress": progress or False}
            found = path_sum(model, tokens, **asked, max_memory=max_memory)
            return profile_of(found.frame.assign(method="predicted"), found.provenance)
        how: dict[str, Any] = {"linearisations": [self.linearisation], "method": self.method, "mitigation": mitigation}
        return profile(sensitivity(model, tokens, **how, max_memory=max_memory, announce=announce, progress=progress))


def _cesaro(model: TransformerBridge, tokens: Prompt, mitigation: Mitigation | str | None, value: np.ndarray) -> float:
    """How the profile of uniform causal attention ranks the tokens as they were measured."""
    try:
        predicted: Any = path_sum(model, tokens, variants="cesaro", mitigation=mitigation).frame
    except InputError:
        return float("nan")
    return rank_correlation(value, predicted["value"].to_numpy())


def _require_one_norm(table: Frame) -> None:
    if table["norm"].nunique() > 1:
        raise InputError(
            "nulls: expected one norm of all profiles, found some exact and some estimated ones: give method='exact' or "
            "method='sketch'"
        )
