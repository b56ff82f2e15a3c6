"""The claims about answers: copying (section 3.1, Figure 2) and counting (section 3.2, C.2, Figures
3, 4, 6 and 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pandas as pd

from ostools.ground.words import number
from ostools.paper.behaviour import PANELS, TASKS
from ostools.paper.claims.claim import (
    LEVEL,
    PaperClaim,
    ResultsByPart,
    UntestedError,
    Verdict,
    decide,
    first_is_better,
    require_data,
    trend,
)
from ostools.results import Column, Frame

_copying = partial(PaperClaim, needs=("figure-2",), figures=(2,))
_counting = partial(PaperClaim, needs=("figure-3",), figures=(3, 6))

QUESTION = ["length", "seed"]
_DIGITS = ("with the first digit", "with the last digit")
_TESTED = (
    f"The test is McNemar's exact test over the lengths, at {LEVEL:.0%}. There is no verdict if it "
    "does not reach that level, if all questions are right in both ways, if all are wrong in "
    "both, or if fewer than six are right in one way only."
)
HUNDRED = 100
NEAR = range(90, 111)
"""Lengths "near 100"."""
FEWEST_READ, FEWEST_LENGTHS, FEWEST_ANSWERS = 8, 5, 20
"""Fewest answers with a number, and lengths, of a curve that is judged; fewest answers with a
number for a favourite.
"""
_CURVES = (
    f"the absolute error rises with the length (Kendall's tau, {LEVEL:.0%}). A curve is left out "
    f"if it has fewer than {FEWEST_READ} answers with a number, or fewer than {FEWEST_LENGTHS} "
    "lengths with one, or if all its numbers are right. There is no verdict if every curve is "
    "left out."
)


def _panel(results: ResultsByPart, panel: str, task: str | None = None) -> Frame:
    """Rows of one panel of Figure 2 with an answer: of a model that runs elsewhere some may never
    have come.
    """
    frame = results["figure-2"]["figure"].frame
    rows = frame[frame["correct"].notna() & (frame["panel"] == panel)]
    return rows if task is None else rows[rows["task"] == task]


def _panel_helps(results: ResultsByPart, panel: str, change: str) -> Verdict:
    """Verdict on the same questions as panel (a) and `panel` ask them."""
    ways = change, "as (a) asks them"
    return first_is_better(_panel(results, panel), _panel(results, "a"), ["task", *QUESTION], ways)


def says_one_by_300(results: ResultsByPart) -> Verdict:
    last: Frame = _panel(results, "a", "copy-last")
    longest, wrong = int(last["length"].max()), ~last["correct"].astype(bool)
    line = last["answer"].astype(str).str.strip()
    ends_in_one = line.str.contains(r"(?:^|[^\d])1\W*$|\bone\W*$", regex=True, case=False)
    ones = last.loc[ends_in_one & wrong, "length"]
    sentence = (
        f"{len(ones)} of {len(last)} answers up to length {longest} are 'one' where the last digit "
        f"is a 0 (lengths: {', '.join(map(str, ones[:3])) or 'none'}); {wrong.sum()} are wrong"
    )
    require_data(len(ones) or (longest >= 300 and not wrong.all()), sentence)
    return decide(bool((ones <= 300).any()), sentence)


def _numeric(frame: Frame) -> Frame:
    """The answers that came, with `error` and `answered`, the number, as floats (NaN: no number was
    read).
    """
    came = frame[frame["correct"].notna()]
    columns = {"error": "absolute_error", "answered": "number"}
    return came.assign(
        **{name: came[column].astype("Float64").astype(float) for name, column in columns.items()}
    )


def _answers(
    results: ResultsByPart, mode: str | None = None, tasks: Sequence[str] = TASKS
) -> Frame:
    """Rows of Figure 3 of these tasks, asked so, as `_numeric` has them."""
    frame = _numeric(results["figure-3"]["figure"].frame)
    return frame[frame["task"].isin(tasks) & (True if mode is None else frame["mode"] == mode)]


def _with_a_number(answers: Frame) -> Frame:
    """The answers that hold a number. Raises `UntestedError` where there are too few for
    a curve.
    """
    read: Frame = answers[answers["error"].notna()]
    lengths = read["length"].nunique()
    require_data(
        len(read) >= FEWEST_READ and lengths >= FEWEST_LENGTHS,
        f"{len(read)} of {len(answers)} answers contain a number, at {lengths} lengths",
    )
    return read


def _numbers(answers: Frame, fewest: int, which: str = "") -> Column:
    """The numbers that were answered. Raises `UntestedError` for fewer than `fewest`."""
    numbers = answers["answered"].dropna()
    require_data(
        len(numbers) >= fewest,
        f"{len(numbers)} of {len(answers)} answers{which} contain a number, and {fewest} are "
        "needed",
    )
    return numbers


def _errors_rise(every: Frame) -> Verdict:
    """Kendall's tau of the absolute error against the length, in every curve that can be judged."""
    rising, judged, descriptions = [], [], []
    for (task, mode), answers in every.groupby(["task", "mode"], sort=False):
        name = f"{task} {mode}"
        try:
            read = _with_a_number(answers)
        except UntestedError as error:
            descriptions.append(f"{name}: {error}")
            continue
        if not read["error"].any():
            descriptions.append(f"{name}: every number right up to {int(read['length'].max())}")
            continue
        tau, p = trend(read["length"], read["error"])
        judged.append(name)
        descriptions.append(f"{name}: tau {number(tau)}")
        if tau > 0 and p < LEVEL:
            rising.append(name)
    sentence = "; ".join(descriptions)
    require_data(judged, f"no curve can be judged ({sentence})")
    sentence = (
        f"the error rises with length in {len(rising)} of {len(judged)} curves that can be judged "
        f"({sentence})"
    )
    return decide(2 * len(rising) > len(judged), sentence)


def deteriorates(results: ResultsByPart) -> Verdict:
    only = [
        _numeric(result.frame).assign(task=task, mode="answer-only")
        for task, result in results["answer-only"].items()
    ]
    return _errors_rise(pd.concat([_answers(results), *only], ignore_index=True))


def predicts_hundred(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", ["sum-ones"])
    which = f" to sums of {min(NEAR)} or more ones"
    numbers = _numbers(
        answers[(answers["length"] >= min(NEAR)) & (answers["length"] != HUNDRED)],
        FEWEST_LENGTHS,
        which,
    )
    favourite = int(numbers.mode().iloc[0])
    top, hundreds = int((numbers == favourite).sum()), int((numbers == HUNDRED).sum())
    sentence = (
        f"{hundreds} of {len(numbers)} answers{which} are 100; the commonest answer is {favourite} "
        f"({top} times)"
    )
    return decide(hundreds == top and hundreds > 1, sentence)


def lower_near_hundred(results: ResultsByPart) -> Verdict:
    from scipy.stats import mannwhitneyu

    read = _with_a_number(_answers(results, "none", ["sum-ones", "count-ones"]))
    around: Frame = read[read["length"].between(50, 150)]
    near, far = (
        around.loc[around["length"].isin(NEAR) == is_near, "error"] for is_near in (True, False)
    )
    require_data(
        min(len(near), len(far)) >= 3,
        f"{len(near)} answers have a number near 100 and {len(far)} elsewhere from 50 to 150; 3 of "
        "each are needed",
    )
    require_data(
        around["error"].any(), "every number is right from 50 to 150, so no error can be lower"
    )
    p = float(mannwhitneyu(near, far, alternative="two-sided").pvalue)
    sentence = (
        f"the median error is {number(near.median())} near 100, and {number(far.median())} beside "
        "it"
    )
    require_data(p <= LEVEL, f"{sentence}: undecided (p = {number(p)})")
    return decide(bool(near.median() < far.median()), f"{sentence} (p = {number(p)})")


def hundred_is_commonest(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", PANELS)
    longest = int(answers["length"].max())
    require_data(longest >= HUNDRED, f"the longest sequence asked has {longest} items")
    numbers = _numbers(answers, FEWEST_ANSWERS)
    require_data(not (answers["error"] == 0).all(), "every answer is right, so none is a favourite")
    counts = Counter(numbers)
    hundreds = counts.pop(HUNDRED, 0)
    ((commonest, commonest_count),) = counts.most_common(1) or [(HUNDRED, 0)]
    right = int((answers["key"].astype(float) == HUNDRED).sum())
    sentence = (
        f"{hundreds} of {len(numbers)} answers with a number are 100, which is the right answer "
        f"{right} times; the commonest other number ({commonest:.0f}) is answered "
        f"{commonest_count} times"
    )
    return decide(hundreds >= 2 * max(commonest_count, 1) and hundreds > right, sentence)


def rises_near_hundred(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", ["count-ones-bernoulli"])
    read: Frame = _with_a_number(answers[answers["length"].between(50, 150)])
    tau, p = trend(read["length"], read["error"])
    require_data(
        p <= LEVEL,
        f"the error neither rises nor falls beyond chance from 50 to 150: {len(read)} answers",
    )
    return decide(
        tau > 0, f"from 50 to 150 items the error goes with the length: tau {number(tau)}"
    )


CLAIMS = (
    _copying(
        "first-is-easier",
        "Section 3.1, Figure 2 (a)",
        "the task seems considerably easier when asked to return the first rather than the last "
        "element",
        f"agrees if the first element is copied right more often than the last. {_TESTED}",
        lambda results: first_is_better(
            _panel(results, "a", "copy-first"), _panel(results, "a", "copy-last"), QUESTION, _DIGITS
        ),
    ),
    _copying(
        "says-one-by-300",
        "Section 3.1, Figure 2 (a)",
        "already at a sequence length of only 300 elements, Gemini incorrectly starts to output "
        "'one' when trying to copy the last element",
        "agrees if at some length up to 300 the model answers that the last digit, a 0, is a one. "
        "Does not agree if the first such answer is at a longer length. If there is no such "
        "answer, it does not agree if the lengths reach 300 and some answer is right; otherwise "
        "there is no verdict.",
        says_one_by_300,
    ),
    _copying(
        "hints-help",
        "Section 3.1, Figure 2 (b)",
        'providing hints in the form of: "*Hint* It\'s not necessarily a 1, check carefully", '
        "helps significantly with the performance",
        f"agrees if more of the same questions are right with the hint than without. {_TESTED}",
        lambda results: _panel_helps(results, "b", "with the hint"),
    ),
    _copying(
        "interleaving-helps",
        "Section 3.1, Figure 2 (c)",
        "replacing the constant sequence of ones with alternating ones and zeros seems to also "
        "help",
        "agrees if more of the same questions are right with zeros and ones in turn than with "
        f"ones. {_TESTED}",
        lambda results: _panel_helps(results, "c", "with zeros and ones in turn"),
    ),
    PaperClaim(
        "deteriorates-with-length",
        "Section 3.2, Figure 3 (Figure 6)",
        "It is clear that the performance rapidly deteriorates with the sequence length.",
        "agrees if in more than half of the curves (four tasks; three modes and `answer-only`) "
        f"{_CURVES}",
        deteriorates,
        needs=("figure-3", "answer-only"),
        figures=(3, 6),
    ),
    _counting(
        "persists-with-reasoning",
        "Section 2, Existing theory",
        "even with techniques like Chain-of-Thought that inability persists",
        "agrees if in more than half of the curves with a chain of thought (zero-shot and "
        f"few-shot) {_CURVES}",
        lambda results: _errors_rise(_answers(results).query("mode != 'none'")),
    ),
    _counting(
        "sum-predicts-100",
        "Section 3.2, Figure 3 (left)",
        "the LLM is quite likely to predict the value of '100' once the sequence reaches a size "
        "around or larger than 100",
        "agrees if 100 is the commonest answer (or as common as any other), given more than once, "
        f"to sums of {min(NEAR)} or more ones without reasoning. Sums of exactly 100 ones are left "
        f"out. There is no verdict with fewer than {FEWEST_LENGTHS} numbers.",
        predicts_hundred,
    ),
    _counting(
        "lower-error-near-100",
        "Section 3.2, Figure 3 (left, center)",
        "in tasks such as (i) and (ii) the values near 100 have relatively lower error",
        f"agrees if the errors at lengths {min(NEAR)} to {max(NEAR)} are lower than at the other "
        f"lengths from 50 to 150 (medians; Mann-Whitney test, {LEVEL:.0%}), in tasks (i) and (ii) "
        "together, without reasoning. There is no verdict if the test does not reach that level, "
        "if no error from 50 to 150 is above 0, if either group has fewer than three answers with "
        f"a number, or if the two tasks have fewer than {FEWEST_READ} such answers, or fewer than "
        f"{FEWEST_LENGTHS} lengths with one, over all lengths.",
        lower_near_hundred,
    ),
    PaperClaim(
        "100-is-commonest",
        "Section 3.2, Figure 4 (Figure 7)",
        "100 is by far the most common response",
        "agrees if 100 is answered at least twice as often as any other number, and more often "
        "than it is the right answer, over the three tasks of Figure 4 without reasoning. There "
        f"is no verdict with fewer than {FEWEST_ANSWERS} numbers, if every answer is right, or if "
        "the longest sequence is shorter than 100 items.",
        hundred_is_commonest,
        needs=("figure-3",),
        figures=(4, 7),
    ),
    _counting(
        "error-of-bernoulli-rises-near-100",
        "Section 3.2, Figure 3 (right)",
        "the absolute error actually seems to increase around a sequence length of 100",
        "agrees if the absolute error rises with the length from 50 to 150 in task (iii) without "
        f"reasoning (Kendall's tau, {LEVEL:.0%}). Does not agree if it falls. There is no verdict "
        f"if the test does not reach that level, with fewer than {FEWEST_READ} answers with a "
        f"number, or with fewer than {FEWEST_LENGTHS} lengths with one.",
        rises_near_hundred,
    ),
)
