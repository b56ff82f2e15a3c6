"""The claims about counting: section 3.2 and Figures 3, 4, 6 and 7, and C.2."""

from __future__ import annotations

from typing import Any

import pandas as pd
from scipy.stats import mannwhitneyu

from ostools.experiments.figures.figure3 import PANELS
from ostools.experiments.reproduce.claim import UNTESTED, Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.reproduce.weighing import LEVEL, trend
from ostools.ground.words import number
from ostools.results import Frame

HUNDRED = 100
NEAR = range(90, 111)
"""Lengths "near 100"."""
FEWEST_READ, FEWEST_LENGTHS, FEWEST_ANSWERS = 8, 5, 20
"""What a curve needs to be judged: answers with a number, and lengths; and what a favourite needs: answers with a number."""
_CURVES = (
    f"the absolute error rises with the length (Kendall's tau, {LEVEL:.0%}). A curve is left out if it has fewer than "
    f"{FEWEST_READ} answers with a number, or fewer than {FEWEST_LENGTHS} lengths with one, or if all its numbers are right. "
    "There is no verdict if every curve is left out."
)


def _answers(results: ResultsByPart, **column_values: str) -> Frame:
    """The answers to the tasks of the figure, with the error as a number (NaN: no number was read)."""
    frame: Any = results["figure-3"]["figure"].frame
    for column, value in column_values.items():
        frame = frame[frame[column] == value]
    return _numbers(frame)


def _numbers(frame: Frame) -> Frame:
    return frame.assign(
        error=frame["absolute_error"].astype("Float64").astype(float),
        said=frame["number"].astype("Float64").astype(float),
    )


def _read(answers: Frame) -> Frame:
    """Those with a number. Raises `UntestedError` where there are too few for a curve."""
    read: Any = answers[answers["error"].notna()]
    if len(read) < FEWEST_READ or read["length"].nunique() < FEWEST_LENGTHS:
        raise UntestedError(
            f"{len(read)} of {len(answers)} answers contain a number, at {read['length'].nunique()} lengths",
            read=len(read),
            asked=len(answers),
        )
    return read


def deteriorates(results: ResultsByPart) -> Verdict:
    """Every curve: the tasks of Figure 3 and word counting, in three modes, and with the instruction to answer alone."""
    result_by_task: Any = results["answer-only"]
    only = [_numbers(result.frame).assign(task=task, mode="answer-only") for task, result in result_by_task.items()]
    return _rising(pd.concat([_answers(results), *only], ignore_index=True))


def persists_with_reasoning(results: ResultsByPart) -> Verdict:
    """The same of the curves with a chain of thought alone."""
    answers = _answers(results)
    return _rising(answers[answers["mode"] != "none"])


def _rising(every: Frame) -> Verdict:
    """Kendall's tau of the absolute error against the length, in every curve that can be judged."""
    rising, judged, descriptions = [], [], []
    for (task, mode), answers in every.groupby(["task", "mode"], sort=False):
        name = f"{task} {mode}"
        try:
            read = _read(answers)
        except UntestedError as error:
            descriptions.append(f"{name}: {error.reason}")
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
    if not judged:
        raise UntestedError(f"no curve can be judged ({sentence})")
    return decide(
        2 * len(rising) > len(judged),
        f"the error rises with length in {len(rising)} of {len(judged)} curves that can be judged ({sentence})",
        rising=len(rising),
        judged=len(judged),
    )


def predicts_hundred(results: ResultsByPart) -> Verdict:
    """Which number is answered most to sums of at least 90 ones, where 100 is not right."""
    answers = _answers(results, task="sum-ones", mode="none")
    long: Any = answers[(answers["length"] >= min(NEAR)) & (answers["length"] != HUNDRED)]
    answered_numbers = long["said"].dropna()
    numbers = {"read": len(answered_numbers), "asked": len(long)}
    if len(answered_numbers) < FEWEST_LENGTHS:
        raise UntestedError(
            f"{len(answered_numbers)} of {len(long)} answers to sums of {min(NEAR)} or more ones contain a number, and "
            f"{FEWEST_LENGTHS} are needed",
            **numbers,
        )
    share = float((answered_numbers == HUNDRED).mean())
    favourite = int(answered_numbers.mode().iloc[0])
    top = int((answered_numbers == favourite).sum())
    hundreds = int((answered_numbers == HUNDRED).sum())
    words = (
        f"{hundreds} of {len(answered_numbers)} answers to sums of {min(NEAR)} or more ones are 100; the commonest answer is "
        f"{favourite} "
        f"({top} times)"
    )
    return decide(hundreds == top and hundreds > 1, words, share_of_100=share, favourite=favourite, **numbers)


def lower_near_hundred(results: ResultsByPart) -> Verdict:
    """The absolute error at lengths near 100 against lengths on either side, tasks (i) and (ii) without reasoning."""
    frame = _answers(results, mode="none")
    both_tasks: Any = frame[frame["task"].isin(["sum-ones", "count-ones"])]
    read = _read(both_tasks)
    around: Any = read[read["length"].between(50, 150)]
    at = around["length"].isin(NEAR)
    near, far_errors = around.loc[at, "error"], around.loc[~at, "error"]
    numbers: dict[str, Any] = {"near": len(near), "apart": len(far_errors)}
    if min(len(near), len(far_errors)) < 3:
        raise UntestedError(
            f"{len(near)} answers have a number near 100 and {len(far_errors)} elsewhere from 50 to 150; 3 of each are needed",
            **numbers,
        )
    if not around["error"].any():
        raise UntestedError("every number is right from 50 to 150, so no error can be lower", **numbers)
    p = float(mannwhitneyu(near, far_errors, alternative="two-sided").pvalue)
    numbers |= {"median_near": float(near.median()), "median_apart": float(far_errors.median()), "p_value": p}
    sentence = f"the median error is {number(numbers['median_near'])} near 100, and {number(numbers['median_apart'])} beside it"
    if p > LEVEL:
        raise UntestedError(f"{sentence}: undecided (p = {number(p)})", **numbers)
    return decide(numbers["median_near"] < numbers["median_apart"], f"{sentence} (p = {number(p)})", **numbers)


def hundred_is_commonest(results: ResultsByPart) -> Verdict:
    """How often each number was answered over the figure's three tasks, without reasoning."""
    answers = _answers(results, mode="none")
    answers = answers[answers["task"].isin(PANELS)]
    longest = int(answers["length"].max())
    answered_numbers: Any = answers["said"].dropna()
    numbers: dict[str, Any] = {"read": len(answered_numbers), "asked": len(answers)}
    if longest < HUNDRED:
        raise UntestedError(f"the longest sequence asked has {longest} items", **numbers)
    if len(answered_numbers) < FEWEST_ANSWERS:
        raise UntestedError(
            f"{len(answered_numbers)} of {len(answers)} answers contain a number, and {FEWEST_ANSWERS} are needed",
            **numbers,
        )
    if bool((answers["error"] == 0).all()):
        raise UntestedError("every answer is right, so none is a favourite", **numbers)
    counts = answered_numbers.value_counts()
    hundreds = int(counts.get(HUNDRED, 0))
    next_count = int(counts.drop(HUNDRED, errors="ignore").max()) if len(counts) > (HUNDRED in counts) else 0
    next_best = None if next_count == 0 else int(counts.drop(HUNDRED, errors="ignore").idxmax())
    right = int((answers["key"].astype(float) == HUNDRED).sum())
    commonest = "" if next_best is None else f"; the commonest other number is {next_best}, answered {next_count} times"
    words = (
        f"{hundreds} of {len(answered_numbers)} answers with a number are 100, which is the right answer {right} "
        f"times{commonest}"
    )
    numbers |= {"hundreds": hundreds, "right_hundreds": right, "next": next_best, "next_count": next_count}
    return decide(hundreds >= 2 * max(next_count, 1) and hundreds > right, words, **numbers)


def less_accurate(results: ResultsByPart) -> Verdict:
    """Nothing that is measured on one model can say it."""
    return Verdict(
        UNTESTED,
        "this compares two models: it needs Gemini 1.5's answers beside Gemma's, and here one model at a time is measured",
    )


CLAIMS = (
    Claim(
        "deteriorates-with-length",
        "Section 3.2, Figure 3 (Figure 6)",
        "It is clear that the performance rapidly deteriorates with the sequence length.",
        f"agrees if in more than half of the curves (four tasks; three modes and `answer-only`) {_CURVES}",
        deteriorates,
        ("figure-3", "answer-only"),
        (3, 6),
    ),
    Claim(
        "persists-with-reasoning",
        "Section 2, Existing theory",
        "even with techniques like Chain-of-Thought that inability persists",
        f"agrees if in more than half of the curves with a chain of thought (zero-shot and few-shot) {_CURVES}",
        persists_with_reasoning,
        ("figure-3",),
        (3, 6),
    ),
    Claim(
        "sum-predicts-100",
        "Section 3.2, Figure 3 (left)",
        "the LLM is quite likely to predict the value of '100' once the sequence reaches a size around or larger than 100",
        f"agrees if 100 is the commonest answer (or as common as any other), given more than once, to sums of {min(NEAR)} or "
        "more ones without reasoning. Sums of exactly 100 ones are left out. There is no verdict with fewer than "
        f"{FEWEST_LENGTHS} numbers.",
        predicts_hundred,
        ("figure-3",),
        (3, 6),
    ),
    Claim(
        "lower-error-near-100",
        "Section 3.2, Figure 3 (left, center)",
        "in tasks such as (i) and (ii) the values near 100 have relatively lower error",
        f"agrees if the errors at lengths {min(NEAR)} to {max(NEAR)} are lower than at the other lengths from 50 to 150 "
        f"(medians; Mann-Whitney test, {LEVEL:.0%}), in tasks (i) and (ii) together, without reasoning. There is no verdict if "
        "the test does not reach that level, if no error from 50 to 150 is above 0, if either group has fewer than three "
        f"answers with a number, or if the two tasks have fewer than {FEWEST_READ} such answers, or fewer than "
        f"{FEWEST_LENGTHS} lengths with one, over all lengths.",
        lower_near_hundred,
        ("figure-3",),
        (3, 6),
    ),
    Claim(
        "100-is-commonest",
        "Section 3.2, Figure 4 (Figure 7)",
        "100 is by far the most common response",
        "agrees if 100 is answered at least twice as often as any other number, and more often than it is the right answer, "
        f"over the three tasks of Figure 4 without reasoning. There is no verdict with fewer than {FEWEST_ANSWERS} numbers, if "
        "every answer is right, or if the longest sequence is shorter than 100 items.",
        hundred_is_commonest,
        ("figure-3",),
        (4, 7),
    ),
    Claim(
        "gemma-less-accurate",
        "Appendix C.2, Figures 6 and 7",
        "Compared to Gemini 1.5, Gemma seems to answer less accurately on the counting prompts.",
        "agrees if Gemma has fewer right answers than Gemini 1.5. One model cannot show this.",
        less_accurate,
        (),
        (6, 7),
    ),
)
