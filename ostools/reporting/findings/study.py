"""Sentences on a study of mitigations: what helps or hurts, and what was tried."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

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
from ostools.reporting.findings import first_few, present
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
    limit = baseline = ""
    if len(answers):
        limit = at_limit(answers.iloc[0].to_dict()).replace("without it", "without a mitigation")
        baseline = (
            f" Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are "
            "right."
        )
    outcomes = "; ".join(
        f"{row['mitigation']} (answers: {_OUTCOMES.get(row['answers'], row['answers'])})"
        for row in rows
    )
    sentences = present(
        (f"Answers: {limit}. " if limit else "")
        + ("; ".join(changes) or "No mitigation is shown to help or to hurt")
        + ".",
        f"Tried on {result.provenance.parameters['task']}: {outcomes}.{baseline}",
        where_read(result.provenance.parameters),
        *(row.get("sentence", "") for row in rows),
    )
    return first_few(sentences)


def _changes(row: Mapping[Hashable, object], effects: Frame) -> list[str]:
    """What a mitigation changes, by its verdicts, with the effect and its interval."""
    words = {
        HELPS: "helps ({}: {})",
        HURTS: "hurts ({}: {})",
        LARGER: "raises {}: {}",
        SMALLER: "lowers {}: {}",
    }
    sentences = []
    for about in (about for about in ABOUT if row.get(about) in words):
        effect = effects[(effects["mitigation"] == row["mitigation"]) & (effects["about"] == about)]
        change = words[str(row[about])].format(
            ABOUT_WORDS[about], effect_words(effect.iloc[0].to_dict())
        )
        sentences.append(f"{row['mitigation']} {change}")
    return sentences
