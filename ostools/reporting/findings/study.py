"""What a study says of its mitigations, in one sentence."""

from __future__ import annotations

import math
from typing import Any

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import ABOUT, HELPS, HURTS, NO_EFFECT, UNDECIDED, bound, in_words
from ostools.results import Frame


def study_finding(study: Study) -> str:
    """Which mitigation helps or hurts what, by the verdicts on what was measured; and how often the model is right without."""
    parameters: Any = study.provenance.parameters
    lengths = parameters["lengths"]
    start = f"The task is {parameters['task']} ({len(lengths)} lengths, {lengths[0]} to {lengths[-1]} items)."
    effects: Frame = study.effects
    said, unconfirmed = [], []
    for about in ABOUT:
        if about not in set(effects["about"]):
            continue
        changes = {row["mitigation"]: row for row in effects[effects["about"] == about].to_dict("records")}
        groups: dict[str, list[str]] = {}
        for row in study.verdicts.to_dict("records"):
            name = str(row["mitigation"])
            groups.setdefault(str(row[about]), []).append(f"{name}{_change(changes[name], str(row[about]))}")
            if row[about] == NO_EFFECT and _excludes_zero(changes[name]):
                unconfirmed.append(f"{name} ({about})")
        words = "; ".join(f"{verdict} ({', '.join(names)})" for verdict, names in _ordered(groups))
        said.append(f" {about.capitalize()}: {words}.")
    return f"{start}{''.join(said)}{_open(unconfirmed)}{_room(effects)}"


def _change(row: dict[str, Any], verdict: str) -> str:
    """The effect itself, with its interval only where that and the verdict differ; nothing where nothing was measured."""
    if verdict == NO_EFFECT and _excludes_zero(row):
        return f" {in_words(row, 'verdict_low', 'verdict_high')}"
    return f" {in_words({**row, 'low': math.nan, 'high': math.nan})}" if row["pairs"] else ""


def _excludes_zero(row: dict[str, Any]) -> bool:
    """Whether the interval that a verdict is read from excludes zero."""
    return not bound(row) and (row["verdict_low"] > 0 or row["verdict_high"] < 0)


def _open(unconfirmed: list[str]) -> str:
    """Of effects that the verdict calls none: what stands against it."""
    if not unconfirmed:
        return ""
    return (
        f" The interval of {', '.join(unconfirmed)} excludes zero. A sign-flip test over so few lengths did not confirm it. "
        "An effect may be there."
    )


def _ordered(groups: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """What helps and hurts first, what is not decided last."""
    rank = {HELPS: 0, HURTS: 1, UNDECIDED: 3}
    return sorted(groups.items(), key=lambda item: rank.get(item[0], 2))


def _room(effects: Frame) -> str:
    answers = effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]
    if answers.empty:
        return ""
    share = float(answers["baseline"].iloc[0])
    return (
        " All answers are right without a mitigation, so a mitigation could not make more of them right."
        if share == 1
        else f" Without a mitigation {share:.0%} of the answers are right."
    )
