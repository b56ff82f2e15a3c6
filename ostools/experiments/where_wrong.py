"""Whether answers are wrong where the last token still tells n items from n + 1: one rule for reports and pages of findings.

The rule was fixed before anything was measured. The token is the one from which the answer is predicted. It tells n from n + 1
at a length where the two y are farther apart than the rounding noise of their difference, in the dtype that answers. That is
less than that the model can read it, and below the noise a probe may still read it: then nothing is concluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.measure import FailureStage
from ostools.measure.probes.failure_stage import best_probe
from ostools.results import Frame, frame_of

TELLS = "wrong where the last token still tells n from n + 1"
DOES_NOT_TELL = "wrong where the last token no longer tells n from n + 1"
CANNOT_BE_TOLD = "cannot be told"
FEWEST_WRONG, MOST = 6, 0.9
"""Fewer wrong answers conclude nothing; nor do wrong ones of which less than this share stand on one side of the noise."""


@dataclass(frozen=True)
class WhereWrong:
    """Conclusion on some answers, with its fields.

    conclusion: `TELLS`, `DOES_NOT_TELL` or `CANNOT_BE_TOLD`, the last with its `reason`. asked, wrong: answers. apart: wrong
    ones at lengths where the token tells n from n + 1. probed: wrong ones on whose sequences a probe was tested; decoded: those
    of them to which it says the right answer.
    """

    conclusion: str
    reason: str
    asked: int
    wrong: int
    apart: int
    probed: int
    decoded: int


def where_wrong(answers: Frame) -> WhereWrong:
    """The conclusion on one row an answer: correct; apart (whether the token tells n from n + 1 at that length); decoded
    (whether a probe says the right answer, NA where none was tested)."""
    correct, apart = (answers[name].to_numpy(bool) for name in ("correct", "apart"))
    decoded: Any = answers["decoded"].astype("boolean")[~correct]
    asked, wrong, wrong_apart = len(correct), int((~correct).sum()), int((~correct & apart).sum())
    probed, right = int(decoded.notna().sum()), int(decoded.fillna(False).sum())
    conclusion, reason = CANNOT_BE_TOLD, ""
    if wrong < FEWEST_WRONG:
        reason = f"{wrong} of {asked} answers are wrong, {FEWEST_WRONG} are needed"
    elif wrong == asked:
        reason = f"none of {asked} answers is right, so that the model may not do the task at all"
    elif wrong_apart >= MOST * wrong:
        conclusion = TELLS
    elif wrong - wrong_apart < MOST * wrong:
        reason = f"{wrong_apart} of {wrong} wrong answers are where it does, the others where it does not"
    elif 2 * right > probed:
        reason = f"the pair is below the noise, and a probe still says the right answer to {right} of {probed}"
    elif not apart[correct].mean() >= MOST:
        reason = "right answers are below the noise too"
    else:
        conclusion = DOES_NOT_TELL
    return WhereWrong(conclusion, reason, asked, wrong, wrong_apart, probed, right)


def of_failure_stage(result: FailureStage, dtype: str) -> WhereWrong:
    """The conclusion on the answers in one dtype, without a mitigation."""
    stages, answers = frame_of(result), result.answers
    stages = stages[(stages["dtype"] == dtype) & (stages["mitigation"] == "none")]
    apart = stages[["length"]].assign(apart=~stages["indistinguishable"].astype(bool))
    _, said = best_probe(result.probes, dtype)
    of_dtype = answers[(answers["dtype"] == dtype) & (answers["mitigation"] == "none")]
    rows = of_dtype.merge(apart, on="length").merge(
        said[["length", "seed", "right"]].rename(columns={"right": "decoded"}), on=["length", "seed"], how="left"
    )
    return where_wrong(rows)
