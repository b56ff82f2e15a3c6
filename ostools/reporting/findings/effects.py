"""Sentences on effects: of ablated parts, removed tokens, the place of a token in a text, patched
parts, and mitigations.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from ostools.ground import number
from ostools.measure import Ablation, Faithfulness, Patching, PositionEffect, Study
from ostools.measure.faithfulness.faithfulness import BETWEEN
from ostools.measure.study.verdicts import (
    ABOUT,
    ABOUT_WORDS,
    HELPS,
    HURTS,
    LARGER,
    SMALLER,
)
from ostools.measure.study.verdicts import in_words as effect_words
from ostools.reporting.findings import MOST, SHAPES, present, where_read
from ostools.reporting.style.theme import display_token
from ostools.results import Frame, Row

QUANTITY_WORDS = {
    "pair_distance": "collapse distance",
    "log_probability": "log p of the answer",
    "logit_difference": "difference of the two logits",
}
_SUBJECTS = {
    "model": "The model",
    "untrained": "The same architecture before training",
    "model minus untrained": "The model over that before training",
    "shuffled": "With tokens shuffled",
}
"""By the sources of `measure.profiles.position_effect`."""


# --- ablation


def ablation_findings(result: Ablation) -> list[str]:
    """The greatest real effects; whether first order may be believed, on each prompt and quantity,
    what is not believed first; and where a task's questions were read.
    """
    rows = result.agreement.sort_values("believed", kind="stable").to_dict("records")
    beliefs = [f"First order of {_subject(row)} is {row['words']}." for row in rows]
    effects = [
        f"{_subject(row)}: {row['value']:.4g} with nothing taken out; the greatest real effect is "
        f"that of {row['target']}, {row['effect']:+.3g} (predicted {row['predicted_effect']:+.3g})."
        for row in result.top(1).to_dict("records")
    ]
    where = where_read(result.provenance.parameters)
    return present(*effects[: MOST // 2], *beliefs[: MOST // 2], where)


def _subject(row: Mapping[Hashable, Any]) -> str:
    where = "" if pd.isna(row["length"]) else f", n = {row['length']}, seed {row['seed']}"
    return f"{QUANTITY_WORDS[str(row['quantity'])]}{where}"


# --- faithfulness


def faithfulness_findings(result: Faithfulness) -> list[str]:
    """How the first profile ranks what removing tokens changes, a sentence a way."""
    name = str(result.provenance.parameters["profiles"][0])
    ranks: Frame = result.correlations
    ranks = ranks[(ranks["profile"] == name) & (ranks["kept"] == BETWEEN)]
    ways = [
        f"Tokens {way}: rank correlation of {name}, over {rows['tokens'].iloc[0]} tokens that "
        f"reach y, with {', '.join(map(_rank, rows.to_dict('records')))}"
        " (95% intervals as of independent tokens: too narrow where neighbours are alike)."
        for way, rows in ranks.groupby("way", sort=False)
    ]
    return [answer_finding(result), *ways][:MOST]


def _rank(row: Mapping[Hashable, Any]) -> str:
    low, high = number(row["low"]), number(row["high"])
    return f"{row['effect']} {number(row['spearman'])} [{low}, {high}]"


def answer_finding(result: Faithfulness) -> str:
    """The answer that is lost, and its log probability."""
    parameters = result.provenance.parameters
    difference = "difference of " * isinstance(parameters["logit"], Sequence)
    return (
        f"The answer is {parameters['token']!r}: {difference}log p {parameters['log_prob']:.3g} "
        "with every token in place."
    )


# --- position


def contrast_words(result: PositionEffect) -> list[str]:
    """For each source, the outer thirds' norm over the middle third's, with 95% intervals."""
    rows: Frame = result.contrasts.set_index("source")
    return [
        f"{subject}: first third {_times(rows.loc[source], 'start')}, last third "
        f"{_times(rows.loc[source], 'end')}."
        for source, subject in _SUBJECTS.items()
        if source in rows.index
    ]


def position_findings(result: PositionEffect) -> list[str]:
    """The shape of the model's profile, the two contrasts, and what the untrained model shows."""
    passages = int(result.contrasts.set_index("source").loc["model", "passages"])
    return [
        SHAPES[result.verdict][1].format("a text"),
        f"Over {passages} passages of {result.provenance.parameters['tokens']} tokens, each in "
        "three rotations, so that every token stands once in each third. Times the middle third's "
        f"norm (95% interval over passages): {' '.join(contrast_words(result))}",
    ]


def _times(row: Row, end: str) -> str:
    value, low, high = (
        number(10.0 ** float(row[f"{end}{suffix}"])) for suffix in ("", "_low", "_high")
    )
    return f"{value}× [{low}, {high}]"


# --- patching


def patching_findings(result: Patching) -> list[str]:
    """Where the answer is carried in each direction, whether the two runs have the two answers, and
    whether first order may be believed."""
    table = result.of_logits
    gap = gap_words(result)
    if not result.has_both_answers:
        return [gap]
    sentences = [
        f"Measured, {direction}, share of the gap in the logit {patched_logit(table)}: the "
        f"greatest of {len(rows)} parts is {_greatest(rows)}."
        for direction, rows in table.groupby("direction", sort=False)
    ]
    agreement = result.agreement[result.agreement["quantity"] != "log_probability"]
    if table["predicted_effect"].isna().any():
        agreement = agreement[:0]
    pairs = zip(agreement["direction"], agreement["words"], strict=True)
    beliefs = [f"First order, {direction}, is {words}." for direction, words in pairs]
    return [*sentences, gap, *beliefs][:MOST]


def gap_words(result: Patching) -> str:
    """The clean and the corrupt run's number, and where the two do not have the two answers."""
    first = result.of_logits.iloc[0]
    gap = (
        f"The gap is from {number(first['clean'])} (clean) to {number(first['corrupt'])} (corrupt)"
    )
    if result.has_both_answers:
        return f"{gap}."
    without = "the two runs do not have the two answers. A share of such a gap says nothing."
    return f"{gap}: {without}"


def patched_logit(table: Frame) -> str:
    """The logit that is scored, or the difference."""
    answer, against = table[["answer", "against"]].iloc[0]
    return f"“{display_token(answer)}”" + (f" − “{display_token(against)}”" if against else "")


def _greatest(rows: Frame) -> str:
    """The part with the greatest share."""
    row = rows.loc[rows["share"].abs().idxmax()]
    token = f" (“{display_token(row['token'])}”)" if row["token"] else ""
    return f"{row['part']}{token}, {row['share']:.0%}"


# --- a study of mitigations

_CHANGES = {HELPS: "helps", HURTS: "hurts", LARGER: "raises", SMALLER: "lowers"}


def answers_without(study: Study) -> tuple[int, int]:
    """Number of questions whose answer is right without a mitigation, and of all questions."""
    rows: Frame = study.frame
    rows = rows[rows["quantity"] == "correct"].dropna(subset=["baseline"])
    right = rows.drop_duplicates(["length", "seed"])["baseline"]
    return int(right.sum()), len(right)


def study_findings(result: Study) -> list[str]:
    """What helps, hurts, raises or lowers by the study's verdicts, what was tried and how many
    answers are right without it, where it was read, and a sentence on each mitigation.
    """
    rows: Frame = result.verdicts
    abouts = [about for about in ABOUT if about in rows]
    verdicts = rows.melt(["mitigation"], abouts, "about", "verdict")
    changed = verdicts.merge(result.effects, on=["mitigation", "about"])
    changes = [
        f"{row['mitigation']} {_CHANGES[row['verdict']]} {ABOUT_WORDS[row['about']]}: "
        f"{effect_words(row)}"
        for row in changed.to_dict("records")
        if row["verdict"] in _CHANGES
    ]
    right, questions = answers_without(result)
    without = f" Without a mitigation {right} of {questions} answers are right."
    outcomes = zip(rows["mitigation"], rows["answers"], strict=True)
    outcome_words = "; ".join(
        f"{mitigation} (answers: {outcome})" for mitigation, outcome in outcomes
    )
    return present(
        f"{'; '.join(changes) or 'No mitigation is shown to help or to hurt'}.",
        f"Tried on {result.provenance.parameters['task']}: {outcome_words}."
        f"{without * bool(questions)}",
        where_read(result.provenance.parameters),
        *rows.get("sentence", ()),
    )[:MOST]
