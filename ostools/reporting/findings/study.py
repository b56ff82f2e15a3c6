"""What a study says of its mitigations, in one sentence."""

from __future__ import annotations

import math
from typing import Any

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import (
    ABOUT,
    ABOUT_WORDS,
    HELPS,
    HURTS,
    LARGER,
    NO_EFFECT,
    SMALLER,
    UNDECIDED,
    at_limit,
    bound,
    in_words,
)
from ostools.results import Frame


def study_finding(study: Study) -> str:
    """Which mitigation helps or hurts what, by the verdicts on what was measured; and how often the model is right without."""
    parameters: Any = study.provenance.parameters
    lengths = parameters["lengths"]
    start = f"The task is {parameters['task']} ({len(lengths)} lengths, {lengths[0]} to {lengths[-1]} items)."
    effects: Frame = study.effects
    limit = floor_or_ceiling(study)
    said, unconfirmed = [f" {limit}"] if limit else [], []
    for about in ABOUT:
        if about not in set(effects["about"]):
            continue
        changes = {row["mitigation"]: row for row in effects[effects["about"] == about].to_dict("records")}
        groups: dict[str, list[str]] = {}
        for row in study.verdicts.to_dict("records"):
            name = str(row["mitigation"])
            groups.setdefault(str(row[about]), []).append(f"{name}{_change(changes[name], str(row[about]))}")
            if row[about] == NO_EFFECT and _excludes_zero(changes[name]):
                unconfirmed.append(f"{name} ({ABOUT_WORDS[about]})")
        words = "; ".join(f"{verdict} ({', '.join(names)})" for verdict, names in _ordered(groups))
        named = ABOUT_WORDS[about]
        said.append(f" {named[0].upper()}{named[1:]}: {words}.")
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
    rank = {HELPS: 0, LARGER: 0, HURTS: 1, SMALLER: 1, UNDECIDED: 3}
    return sorted(groups.items(), key=lambda item: rank.get(item[0], 2))


def _measured_answers(effects: Frame) -> Frame:
    return effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]


def _room(effects: Frame) -> str:
    answers = _measured_answers(effects)
    if answers.empty or at_limit(answers.iloc[0].to_dict()):
        return ""
    return f" Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are right."


def floor_or_ceiling(study: Study) -> str:
    """What this study cannot show of answers, because none or all are right without a mitigation; else empty."""
    answers = _measured_answers(study.effects)
    limit = "" if answers.empty else at_limit(answers.iloc[0].to_dict())
    return f"Answers: {limit.replace('without it', 'without a mitigation')}." if limit else ""
