"""Sentences on effects: of ablated parts, removed tokens, the place of a token in a text, patched
parts, and mitigations.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ostools.ground.words import number, runs
from ostools.measure import Faithfulness
from ostools.measure.faithfulness.faithfulness import BETWEEN
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
from ostools.reporting.findings import MOST, as_one_finding, first_few, present, shape_sentence
from ostools.reporting.findings.position import where_read
from ostools.reporting.style.theme import display_token
from ostools.results import Frame, Row

if TYPE_CHECKING:
    from ostools.measure import Patching
    from ostools.measure.ablation.ablation import Ablation
    from ostools.measure.profiles.position_effect import PositionEffect
    from ostools.measure.study.study import Study

QUANTITY_WORDS = {
    "frobenius_norm": "sensitivity (Frobenius)",
    "operator_norm": "sensitivity (operator)",
    "pair_distance": "collapse distance",
    "log_probability": "log p of the answer",
    "logit_difference": "difference of the two logits",
}
_RANGES = 3
"""Ranges of layers in one sentence."""
_SUBJECTS = {
    "model": "The model",
    "untrained": "The same architecture before training",
    "shuffled": "With tokens shuffled",
}
"""By the names of `measure.profiles.position_effect.MODEL`, `UNTRAINED` and `SHUFFLED`."""


# --- ablation


def ablation_findings(result: Ablation) -> list[str]:
    """Whether first order may be believed, on each prompt and quantity, what is not believed first;
    then the greatest real effects.
    """
    rows = result.agreement.to_dict("records")
    rows.sort(key=lambda row: {False: 0, True: 1}.get(row["believed"], 2))
    beliefs = [f"First order of {_subject(row)} is {row['words']}." for row in rows]
    effects = [_greatest_effect(row, result.frame) for row in rows]
    half = MOST // 2 if len(rows) > 1 else 1
    note = (
        "Predicted effects are first order, from one backward pass. Real effects are measured "
        "with the part taken out."
    )
    return [*first_few(beliefs, half), *first_few(effects, half), note]


def _subject(row: Mapping[Hashable, Any]) -> str:
    where = "" if pd.isna(row["length"]) else f", n = {row['length']}, seed {row['seed']}"
    return f"{QUANTITY_WORDS[str(row['quantity'])]}{where}"


def _greatest_effect(row: Mapping[Hashable, Any], frame: Frame) -> str:
    rows = frame[(frame["quantity"] == row["quantity"]) & (frame["target"] == row["largest"])]
    for column in ("task", "length", "seed"):
        rows = rows[rows[column].isna() if pd.isna(row[column]) else rows[column] == row[column]]
    greatest = rows.iloc[0]
    return (
        f"{_subject(row)}: {greatest['value']:.4g} with nothing taken out; the greatest real "
        f"effect is that of {row['largest']}, {greatest['effect']:+.3g} (predicted "
        f"{greatest['predicted_effect']:+.3g})."
    )


# --- faithfulness


def faithfulness_findings(result: Faithfulness) -> list[str]:
    """How the first profile ranks what removing tokens changes, a sentence a way."""
    name = str(result.provenance.parameters["profiles"][0])
    ranks: Frame = result.correlations
    ranks = ranks[(ranks["profile"] == name) & (ranks["kept"] == BETWEEN)]
    interval = ranks["low"].map(" [{:.2f}, ".format) + ranks["high"].map("{:.2f}]".format)
    # Of fewer than four tokens there is no interval.
    words = ranks["spearman"].map("{:.2f}".format) + interval.where(ranks["low"].notna(), "")
    ranks = ranks.assign(words=words)
    by_effect = ranks.pivot(index="way", columns="effect", values="words")
    ways = [
        f"Tokens {way}: the rank correlation of {name} with the change of y is {row['y_change']}. "
        f"With the change of log p it is {row['log_prob_drop']}."
        for way, row in by_effect.loc[ranks["way"].unique()].iterrows()
    ]
    note = "as of independent tokens. Neighbouring tokens are alike, so it is too narrow."
    return [answer_finding(result), *ways, f"In brackets: the 95% interval, {note}"]


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
        (
            f"{subject}: first third {_times(rows.loc[source], 'start')}, last third "
            f"{_times(rows.loc[source], 'end')}."
        )
        for source, subject in _SUBJECTS.items()
        if source in rows.index
    ]


def position_findings(result: PositionEffect) -> list[str]:
    """The shape of the model's profile, the two contrasts, and what the untrained model shows."""
    rows: Frame = result.contrasts.set_index("source")
    return [
        shape_sentence(result.verdict, "a text"),
        f"Over {int(rows.loc['model', 'passages'])} passages of "
        f"{result.provenance.parameters['tokens']} tokens, each in three rotations, so that every "
        "token stands once in each third. Times the middle third's norm (95% interval over "
        "passages): " + as_one_finding([*contrast_words(result), *_learnt(rows)]),
    ]


def _times(row: Row, end: str) -> str:
    value, low, high = (
        number(10.0 ** float(row[f"{end}{suffix}"])) for suffix in ("", "_low", "_high")
    )
    return f"{value}× [{low}, {high}]"


def _learnt(rows: Frame) -> list[str]:
    """The contrasts that training changed; none where no untrained model stands beside it."""
    changed = [
        words
        for _, row in rows[rows.index == "model minus untrained"].iterrows()
        for end, words in (("start", "the first third"), ("end", "the last third"))
        if float(row[f"{end}_low"]) > 0 or float(row[f"{end}_high"]) < 0
    ]
    words = (
        f"Training changed {' and '.join(changed)}: the interval of the difference excludes zero."
    )
    none = ["That training changed this is not shown."] if "untrained" in rows.index else []
    return [words] if changed else none


# --- patching


def patching_findings(result: Patching) -> list[str]:
    """Where the answer is carried in each direction, whether the two runs have the two answers, and
    whether first order may be believed."""
    table: Frame = result.frame[result.frame["quantity"] != "log_probability"]
    carried = _ranges if result.provenance.parameters["what"] == "residual" else _greatest
    gap, have_both_answers = gap_words(table)
    if not have_both_answers:
        return [gap]
    sentences = [
        (
            f"Measured, {direction}, share of the gap in the logit {patched_logit(table)}: "
            f"{carried(rows)}."
        )
        for direction, rows in table.groupby("direction", sort=False)
    ]
    sentences.append(gap)
    if table["predicted_effect"].notna().all():
        agreement = result.agreement[result.agreement["quantity"] != "log_probability"]
        pairs = zip(agreement["direction"], agreement["words"], strict=True)
        sentences += [f"First order, {direction}, is {words}." for direction, words in pairs]
    return present(*sentences)[:MOST]


def gap_words(table: Frame) -> tuple[str, bool]:
    """The clean and the corrupt run's number, and whether each run has its own answer."""
    first = table.iloc[0]
    gap = (
        f"The gap is from {number(first['clean'])} (clean) to {number(first['corrupt'])} (corrupt)"
    )
    if not first["against"] or first["clean"] > 0 > first["corrupt"]:
        return f"{gap}.", True
    without = "the two runs do not have the two answers. No share is told of such a gap."
    return f"{gap}: {without}", False


def patched_logit(table: Frame) -> str:
    """The logit that is scored, or the difference."""
    answer, against = table[["answer", "against"]].iloc[0]
    return f"“{display_token(answer)}”" + (f" − “{display_token(against)}”" if against else "")


def _greatest(rows: Frame) -> str:
    """The part with the greatest share."""
    row = rows.loc[rows["share"].abs().idxmax()]
    token = f" (“{display_token(row['token'])}”)" if row["token"] else ""
    return f"the greatest of {len(rows)} parts is {row['part']}{token}, {row['share']:.0%}"


def _ranges(rows: Frame) -> str:
    """Which position has the greatest share, layers with the same one together; of more changes the
    longest ranges.
    """
    best = rows.loc[rows.groupby("layer")["share"].idxmax()]
    changes = (best["positions"] != best["positions"].shift()).cumsum()
    longest = sorted((group for _, group in best.groupby(changes)), key=len, reverse=True)[:_RANGES]
    return "; ".join(
        f"“{display_token(group['token'].iloc[0])}” (position {group['positions'].iloc[0]}), "
        f"layer{'s' * (len(group) > 1)} {runs(group['layer'].tolist())}: "
        f"{' to '.join(dict.fromkeys(f'{end:.0%}' for end in (group['share'].min(), group['share'].max())))}"
        for group in sorted(longest, key=lambda group: group["layer"].iloc[0])
    )


# --- a study of mitigations

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
