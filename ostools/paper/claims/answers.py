"""The claims about answers: copying (section 3.1, Figure 2) and counting (section 3.2, C.2, Figures
3, 4, 6 and 7).
"""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from ostools.ground import number
from ostools.paper.behaviour import PANELS
from ostools.paper.claims.claim import (
    INDEPENDENT,
    LEVEL,
    UNDECIDED,
    PaperClaim,
    ResultsByPart,
    Verdict,
    decide,
    first_is_better,
    require_data,
    trend,
)
from ostools.results import Frame

_copying = partial(PaperClaim, needs=("figure-2",), figures=(2,))
_counting = partial(PaperClaim, needs=("figure-3",), figures=(3, 6))

QUESTION = ["length", "seed"]
_DIGITS = ("with the first digit", "with the last digit")
_TESTED = (
    f"The test is McNemar's exact test over the lengths, at {LEVEL:.0%}, {INDEPENDENT}. There is "
    "no verdict if it does not reach that level, if all questions are right in both ways, if all "
    "are wrong in both, or if fewer than six are right in one way only."
)
HUNDRED = 100
NEAR = range(90, 111)
"""Lengths "near 100"."""
FEWEST_READ, FEWEST_LENGTHS, FEWEST_ANSWERS = 8, 5, 20
"""Fewest answers with a number, and lengths, of a curve that is judged; fewest answers with a
number for a favourite.
"""
_CURVES = (
    f"the absolute error rises with the length (Kendall's tau, {LEVEL:.0%}, {INDEPENDENT}). Does "
    "not agree if in half of them or more it falls. Else there is no verdict. A curve is left out "
    f"if it has fewer than {FEWEST_READ} answers with a number, or fewer than {FEWEST_LENGTHS} "
    "lengths with one, or if all its numbers are right."
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
    line, wrong = last["answer"].astype(str).str.strip(), ~last["correct"].astype(bool)
    ends_in_one = line.str.contains(r"(?:^|[^\d])1\W*$|\bone\W*$", regex=True, case=False)
    ones, longest = last.loc[ends_in_one & wrong, "length"], int(last["length"].max())
    sentence = (
        f"{len(ones)} of {len(last)} answers up to length {longest} are 'one' where the last digit "
        f"is a 0 (lengths: {', '.join(map(str, ones[:3])) or 'none'}); {wrong.sum()} are wrong"
    )
    is_decided = len(ones) or (longest >= 300 and not wrong.all())
    return decide(bool((ones <= 300).any()), sentence, is_decided)


def _numeric(frame: Frame) -> Frame:
    """The answers that came, with `error` and `answered`, the number, as floats (NaN: no number was
    read).
    """
    came = frame[frame["correct"].notna()]
    error, numbers = (
        came[column].astype("Float64").astype(float) for column in ("absolute_error", "number")
    )
    return came.assign(error=error, answered=numbers)


def _answers(results: ResultsByPart, mode: str, tasks: Sequence[str]) -> Frame:
    """Rows of Figure 3 of these tasks, asked so, as `_numeric` has them."""
    frame = _numeric(results["figure-3"]["figure"].frame)
    return frame[frame["task"].isin(tasks) & (frame["mode"] == mode)]


def _with_a_number(answers: Frame) -> Frame:
    """The answers that hold a number. Raises `UntestedError` where there are too few for
    a curve.
    """
    read: Frame = answers[answers["error"].notna()]
    require_data(
        _is_a_curve(read),
        f"{len(read)} of {len(answers)} answers contain a number, at {read['length'].nunique()} "
        "lengths",
    )
    return read


def _is_a_curve(read: Frame) -> bool:
    return len(read) >= FEWEST_READ and read["length"].nunique() >= FEWEST_LENGTHS


def _errors_rise(every: Frame) -> Verdict:
    """Kendall's tau of the absolute error against the length, in every curve that can be judged."""
    curves = every[every["error"].notna()].groupby(["task", "mode"], sort=False)
    trends = {
        f"{task} {mode}": trend(read["length"], read["error"])
        for (task, mode), read in curves
        if _is_a_curve(read) and read["error"].any()
    }
    require_data(trends, "no curve has numbers enough, and a wrong one among them")
    rising, falling = (
        sum(sign * tau > 0 and p < LEVEL for tau, p in trends.values()) for sign in (1, -1)
    )
    taus = "; ".join(f"{name}: tau {number(tau)}" for name, (tau, _) in trends.items())
    sentence = (
        f"the error rises with length in {rising} of {len(trends)} curves, and falls in {falling} "
        f"({taus}; {INDEPENDENT})"
    )
    agrees = 2 * rising > len(trends)
    return decide(agrees, sentence, agrees or 2 * falling >= len(trends), UNDECIDED)


def deteriorates(results: ResultsByPart) -> Verdict:
    only = [
        result.frame.assign(task=task, mode="answer-only")
        for task, result in results["answer-only"].items()
    ]
    every = [results["figure-3"]["figure"].frame, *only]
    return _errors_rise(pd.concat([_numeric(frame) for frame in every], ignore_index=True))


def predicts_hundred(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", ["sum-ones"])
    is_near = (answers["length"] >= min(NEAR)) & (answers["length"] != HUNDRED)
    numbers = answers.loc[is_near, "answered"].dropna()
    require_data(
        len(numbers) >= FEWEST_LENGTHS,
        f"{len(numbers)} of {is_near.sum()} answers contain a number, {FEWEST_LENGTHS} are needed",
    )
    counts = numbers.value_counts()
    hundreds, most = int(counts.get(HUNDRED, 0)), int(counts.max())
    sentence = (
        f"{hundreds} of {len(numbers)} answers to sums of {min(NEAR)} or more ones are 100; the "
        f"commonest answer is given {most} times"
    )
    return decide(hundreds == most and hundreds > 1, sentence)


def lower_near_hundred(results: ResultsByPart) -> Verdict:
    from scipy.stats import mannwhitneyu

    read = _with_a_number(_answers(results, "none", ["sum-ones", "count-ones"]))
    around: Frame = read[read["length"].between(50, 150)]
    is_near = around["length"].isin(NEAR)
    near, far = around.loc[is_near, "error"], around.loc[~is_near, "error"]
    require_data(
        min(len(near), len(far)) >= 3 and around["error"].any(),
        f"{len(near)} answers have a number near 100, {len(far)} elsewhere from 50 to 150 (3 of "
        f"each are needed), {(around['error'] > 0).sum()} of them wrong",
    )
    p = float(mannwhitneyu(near, far, alternative="two-sided").pvalue)
    sentence = (
        f"the median error is {number(near.median())} near 100, and {number(far.median())} beside "
        f"it (p = {number(p)}, {INDEPENDENT})"
    )
    return decide(bool(near.median() < far.median()), sentence, p <= LEVEL, UNDECIDED)


def hundred_is_commonest(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", PANELS)
    numbers, longest = answers["answered"].dropna(), int(answers["length"].max())
    require_data(
        longest >= HUNDRED and len(numbers) >= FEWEST_ANSWERS and (answers["error"] != 0).any(),
        f"{len(numbers)} answers contain a number ({FEWEST_ANSWERS} are needed), to at most "
        f"{longest} items (100 are needed), {(answers['error'] > 0).sum()} of them wrong",
    )
    hundreds, right = int((numbers == HUNDRED).sum()), int((answers["key"] == str(HUNDRED)).sum())
    other_counts = numbers[numbers != HUNDRED].value_counts()
    commonest = int(other_counts.max()) if len(other_counts) else 0
    sentence = (
        f"{hundreds} of {len(numbers)} answers with a number are 100, which is the right answer "
        f"{right} times; the commonest other number is answered {commonest} times"
    )
    return decide(hundreds >= 2 * max(commonest, 1) and hundreds > right, sentence)


def rises_near_hundred(results: ResultsByPart) -> Verdict:
    answers = _answers(results, "none", ["count-ones-bernoulli"])
    read: Frame = _with_a_number(answers[answers["length"].between(50, 150)])
    tau, p = trend(read["length"], read["error"])
    sentence = (
        f"tau of error and length is {number(tau)} from 50 to 150 items (p = {number(p)}, "
        f"{INDEPENDENT})"
    )
    return decide(tau > 0, sentence, p <= LEVEL, UNDECIDED)


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
        lambda results: _errors_rise(
            _numeric(results["figure-3"]["figure"].frame).query("mode != 'none'")
        ),
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
        f"lengths from 50 to 150 (medians; Mann-Whitney test, {LEVEL:.0%}, {INDEPENDENT}), in "
        "tasks (i) and (ii) together, without reasoning. There is no verdict if the test does not "
        "reach that level, "
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
        f"reasoning (Kendall's tau, {LEVEL:.0%}, {INDEPENDENT}). Does not agree if it falls. There "
        f"is no verdict if the test does not reach that level, with fewer than {FEWEST_READ} "
        "answers with a "
        f"number, or with fewer than {FEWEST_LENGTHS} lengths with one.",
        rises_near_hundred,
    ),
)
