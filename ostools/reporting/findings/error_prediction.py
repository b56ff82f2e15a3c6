"""What collapse and sensitivity say of errors, in sentences: what was compared, what came of it, and what it does not say."""

from __future__ import annotations

from typing import Any

from ostools.experiments.error_prediction import LENGTH, LEVEL, NO_INTERVAL, UNTESTED, ErrorPrediction
from ostools.ground.words import number
from ostools.measure.answers.reading import ANSWERED
from ostools.results import Frame, Row, frame_of

PREDICTORS = {
    "distance_residual": "distance at v^(L)",
    "distance_y": "distance at y",
    "sensitivity": "sensitivity of the carriers",
    "sensitivity_share": "their share of all sensitivity",
}
"""What each predictor is called."""


def error_prediction_notes(result: ErrorPrediction) -> list[str]:
    """What was asked, of what the intervals are, and that a relation is no cause."""
    frame: Frame = frame_of(result)
    right, answered = int(frame["correct"].sum()), int(frame["kind"].eq(ANSWERED).sum())
    without = len(frame) - answered
    said = (
        f"{len(frame)} prompts, {frame['length'].nunique()} lengths, {frame['seed'].nunique()} seeds: {right} right, "
    )
    said += f"{answered - right} wrong" + (f", {without} without an answer, left out" if without else "") + "."
    summary: Frame = result.summary
    if summary["verdict"].eq(UNTESTED).all():
        why = " and ".join(dict.fromkeys(summary["why"]))
        return [said, f"Whether any of these predicts an error {UNTESTED}: {why}."]
    return [
        said,
        "The area is over pairs of a right and a wrong answer: the share in which the right answer has the larger value. An "
        "area of 0.5 says nothing.",
        f"The odds ratio is the factor by which the odds of a right answer grow where the value is one standard "
        f"deviation{_held(result)}",
        f"All intervals hold together at {LEVEL:.0%}, over seeds. A relation is not seen where the interval of an area holds "
        "0.5, or that of a ratio holds 1. A wide interval rules out little.",
        "Over all prompts the length may be what predicts. Among prompts of the same length it cannot be. This does not show a "
        "cause.",
    ]


def _held(result: ErrorPrediction) -> str:
    """How the sentence on odds ratios ends: what the regression holds."""
    held = " at the same length" if (result.odds["held"] == LENGTH).to_numpy().any() else ""
    return f" (of log10) larger{held} (logistic regression). A ratio of 1 says nothing."


def error_prediction_findings(result: ErrorPrediction) -> list[str]:
    """A sentence a predictor, then the notes."""
    summary: Frame = result.summary
    odds: Frame = result.odds
    said = []
    for name, rows in summary.groupby("predictor", sort=False):
        told = [f"{row['compared']}: {_told(row)}" for _, row in rows.iterrows()]
        told += [f"logistic regression: {_odds(row)}" for _, row in odds[odds["predictor"] == name].iterrows()]
        words = PREDICTORS[str(name)]
        said.append(f"{words[0].upper()}{words[1:]}. {'; '.join(told)}.")
    return [*said, *error_prediction_notes(result)]


def _told(row: Row) -> str:
    if row["verdict"] == UNTESTED:
        return f"{UNTESTED}, {row['why']}"
    found: Any = f"area {number(float(row['area']))} of {row['pairs']} pairs"
    if row["verdict"] == NO_INTERVAL:
        return f"{found}, {NO_INTERVAL} ({row['why']})"
    return f"{found} ({number(float(row['low']))} to {number(float(row['high']))}), {row['verdict']}"


def _odds(row: Row) -> str:
    if row["verdict"] == UNTESTED:
        return f"{UNTESTED}, {row['why']}"
    ratio, low, high, spread = (number(float(row[name])) for name in ("odds_ratio", "low", "high", "spread"))
    beside = ", with the length" if row["held"] == LENGTH else ""
    return f"odds ratio {ratio} for a step of {spread} decades{beside} ({low} to {high}), {row['verdict']}"
