"""Sentences on a study of mitigations: what helps or hurts, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostools.measure.study.study import Study
from ostools.measure.study.verdicts import (
    ABOUT,
    ABOUT_WORDS,
    HELPS,
    HURTS,
    LARGER,
    NO_EFFECT,
    SMALLER,
    UNCHANGED,
    UNDECIDED,
    at_limit,
)
from ostools.measure.study.verdicts import in_words as effect_words
from ostools.reporting.findings import first_few
from ostools.reporting.findings.position import where_read
from ostools.results import Frame

_OUTCOMES = {
    UNCHANGED: "inactive, it changed nothing",
    UNDECIDED: "not decided",
    NO_EFFECT: "no measurable effect",
}


def measured_answers(study: Study) -> Frame:
    """The effects on answers that were measured."""
    effects: Frame = study.effects
    return effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]


def study_findings(result: Study) -> list[str]:
    """What helps or hurts by the study's verdicts, what was tried, where it was read, and a
    sentence on each mitigation.
    """
    rows, answers = result.verdicts.to_dict("records"), measured_answers(result)
    changes = [words for row in rows for words in _changes(row, result.effects)]
    limit = (
        ""
        if answers.empty
        else at_limit(answers.iloc[0].to_dict()).replace("without it", "without a mitigation")
    )
    verdict = "; ".join(changes) or "No mitigation is shown to help or to hurt"
    outcomes = "; ".join(
        f"{row['mitigation']} (answers: {_OUTCOMES.get(row['answers'], row['answers'])})"
        for row in rows
    )
    baseline = (
        ""
        if answers.empty
        else f" Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are right."
    )
    where = " ".join(where_read(result.provenance.parameters))
    sentences = [
        f"{f'Answers: {limit}. ' if limit else ''}{verdict}.",
        f"Tried on {result.provenance.parameters['task']}: {outcomes}.{baseline}",
        where,
        *(row["sentence"] for row in rows if "sentence" in row),
    ]
    return first_few([sentence for sentence in sentences if sentence])


def _changes(row: Mapping[Any, Any], effects: Frame) -> list[str]:
    """What a mitigation changes, by its verdicts, with the effect and its interval."""
    words = {
        HELPS: "helps ({}: {})",
        HURTS: "hurts ({}: {})",
        LARGER: "raises {}: {}",
        SMALLER: "lowers {}: {}",
    }
    changed = [about for about in ABOUT if row.get(about) in words]
    effect_of = {
        about: effects[(effects["mitigation"] == row["mitigation"]) & (effects["about"] == about)]
        for about in changed
    }
    return [
        f"{row['mitigation']} {words[row[about]].format(ABOUT_WORDS[about], effect_words(effect_of[about].iloc[0].to_dict()))}"
        for about in changed
    ]
