"""A profile beside those of untrained models: which of its shape was there before training?

Cost: one sensitivity for the model and one for every null (kinds times seeds), one null in memory
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack, cast

import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Linearisation, Method, distinct
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_seeds
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.passes.contexts import require_no_edits
from ostools.measure.profiles.profile import NO_SINK, Profile, profile
from ostools.models import Prompt, untrained_model
from ostools.models.tokens import EncodingOptions
from ostools.models.untrained import Kind
from ostools.results import Chart, Frame, Result, frame_of
from ostools.tasks.questions import Question
from ostools.theory.profiles import rank_correlation

TRAINED = "model"
"""The source of the model's own rows."""


@dataclass(frozen=True, eq=False)
class UntrainedBaselines(Result):
    """Profiles over the tokens of one prompt: of the model, and of its untrained models.

    `frame`, one row a token and profile: position, token_id, token, source ("model", or a kind of
    null), seed (NA of the model), linearisation, norm, method (as in `ost.sensitivity`), value,
    share (of the sum over all tokens: norms of different weights have different sizes, shares
    compare).

    `summary`, one row a profile: source, seed, verdict (the shape without the first token;
    `ost.profile`), start_contrast, end_contrast (decades), sink_share, last_share, spearman (rank
    correlation with the model's own profile), weight_hash.

    `band`, one row a token and kind of null: low, median, high of the shares over the seeds.
    """

    summary: pd.DataFrame

    @property
    def band(self) -> Frame:
        table = frame_of(self)
        of_baselines = table[table["source"] != TRAINED]
        grouped = of_baselines.groupby(["source", "position", "token"], sort=False)["share"]
        return grouped.agg(low="min", median="median", high="max").reset_index()

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import baselines_chart

        return baselines_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import untrained_findings

        return untrained_findings(self)


@measurement(
    command="sensitivity untrained",
    examples=('--prompt "Once upon a time" --kinds initialised,shuffled --out untrained.png',),
    lines_of=(sensitivity,),
    memory=["rows"],
    second_model="kinds",
)
def untrained_baselines(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    kinds: Kind | Sequence[Kind] = ("initialised",),
    seeds: Iterable[int] = range(3),
    linearisation: Linearisation = "full",
    method: Method = "auto",
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> UntrainedBaselines:
    """Sensitivity to each token of one prompt, of `model` and of untrained models of its
    configuration.

    Args:
        kinds: what of the model is kept: "initialised" (nothing) or "shuffled", as in
            `ost.models.untrained_model`.
        seeds: seeds of the untrained models. There is one profile for each kind and seed.
        linearisation: what is held constant, as in `ost.sensitivity`, for every profile. The norm
            is the operator norm of exact Jacobians, else the Frobenius norm.
        method: how norms are taken, as in `ost.sensitivity`, for every profile.
        progress: called as progress(done, total), in percent.

    Raises `InputError` while edits are active, because an untrained model does not have them.
    """
    kind_names = distinct("kinds", kinds)
    seed_list = checked_seeds(seeds)
    require_no_edits("untrained_baselines", model, "untrained models would not have it")
    cases: list[tuple[str, int | None]] = [(TRAINED, None)]
    cases += [(kind, seed) for kind in kind_names for seed in seed_list]
    profiles: list[Profile] = []
    for index, (source, seed) in enumerate(cases):
        subject = model if seed is None else untrained_model(model, cast(Kind, source), seed=seed)
        norms = sensitivity(
            subject,
            prompt,
            linearisations=[linearisation],
            method=method,
            progress=part_of(progress, index, index + 1, len(cases), units=100),
        )
        profiles.append(profile(norms))
    tables = [
        case_profile.frame.assign(source=source, seed=seed).astype({"seed": "Int64"})
        for (source, seed), case_profile in zip(cases, profiles, strict=True)
    ]
    names = ["position", "token_id", "token", "source", "seed", "linearisation", "norm", "method"]
    table: Frame = pd.concat(tables, ignore_index=True)[[*names, "value", "share"]]
    if table["norm"].nunique() > 1:
        raise InputError(
            "untrained_baselines: expected one norm of all profiles, found some exact and some estimated ones: give "
            "method='exact' or method='sketch'"
        )
    rows = [
        {"source": source, "seed": seed, **_summary_row(case_profile, profiles[0])}
        for (source, seed), case_profile in zip(cases, profiles, strict=True)
    ]
    provenance = profiles[0].provenance
    parameters = {"kinds": kind_names, "seeds": seed_list, **provenance.parameters}
    summary = pd.DataFrame(rows).astype({"seed": "Int64"})
    return UntrainedBaselines(table, replace(provenance, parameters=parameters), summary)


def _summary_row(case_profile: Profile, trained_profile: Profile) -> dict[str, object]:
    """Shape and shares of one profile, and its rank correlation with the model's own."""
    shapes: Frame = case_profile.shapes
    shape = shapes[shapes["kept"] == NO_SINK].iloc[0]
    values = (result.frame["value"].to_numpy() for result in (case_profile, trained_profile))
    return {
        **shape[["verdict", "start_contrast", "end_contrast"]],
        **case_profile.summary.iloc[0][["sink_share", "last_share"]],
        "spearman": rank_correlation(*values),
        "weight_hash": case_profile.provenance.model["weight_hash"],
    }
