"""The claims about copying: section 3.1 and Figure 2."""

from __future__ import annotations

from typing import Any

from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.reproduce.weighing import LEVEL, Paired, first_is_better, paired
from ostools.results import Frame

ON = ["length", "seed"]
_TESTED = (
    f"The test is McNemar's exact test over the lengths, at {LEVEL:.0%}. There is no verdict if it does not reach that "
    "level, if all questions are right in both ways, if all are wrong in both, or if fewer than six are right in one way only."
)


def _panel(results: ResultsByPart, panel: str, task: str | None = None) -> Frame:
    frame: Any = results["figure-2"]["figure"].frame
    rows = frame[frame["panel"] == panel]
    return rows if task is None else rows[rows["task"] == task]


def first_is_easier(results: ResultsByPart) -> Verdict:
    """The first element against the last, length by length."""
    first, last = _panel(results, "a", "copy-first"), _panel(results, "a", "copy-last")
    return first_is_better(paired(first, last, ON), "with the first digit", "with the last digit")


def says_one(results: ResultsByPart) -> Verdict:
    """The shortest length up to 300 at which the last digit, a 0, is said to be a 1."""
    last = _panel(results, "a", "copy-last")
    longest = int(last["length"].max())
    ones = _says_one(last)
    wrong = int((~last["correct"].astype(bool)).sum())
    numbers: dict[str, Any] = {"wrong": wrong, "said_one": len(ones), "asked": len(last), "longest": longest}
    if ones:
        first = min(ones)
        sentence = f"{len(ones)} of {len(last)} answers are 'one' where the last digit is a 0, first at length {first}"
        return decide(first <= 300, sentence, first_length=first, **numbers)
    if longest < 300:
        raise UntestedError(f"no answer is 'one' up to length {longest}, the longest that was asked for", **numbers)
    if wrong == len(last):
        raise UntestedError("every answer is wrong, and none of them is 'one'", **numbers)
    return decide(False, f"no answer is 'one' up to length {longest}; {wrong} of {len(last)} are wrong", **numbers)


def _says_one(answers: Frame) -> list[int]:
    """The lengths whose wrong answer ends in a 1, or in the word."""
    line: Any = answers["answer"].astype(str).str.strip()
    ends_in_one = line.str.contains(r"(?:^|[^\d])1\W*$|\bone\W*$", regex=True, case=False)
    return sorted(int(n) for n in answers.loc[ends_in_one & ~answers["correct"].astype(bool), "length"])


def _helps(results: ResultsByPart, panel: str, what: str) -> Verdict:
    key = ["task", *ON]
    counts: Paired = paired(_panel(results, panel), _panel(results, "a"), key)
    return first_is_better(counts, what, "as (a) asks them")


def hints_help(results: ResultsByPart) -> Verdict:
    return _helps(results, "b", "with the hint")


def interleaving_helps(results: ResultsByPart) -> Verdict:
    return _helps(results, "c", "with zeros and ones in turn")


CLAIMS = (
    Claim(
        "first-is-easier",
        "Section 3.1, Figure 2 (a)",
        "the task seems considerably easier when asked to return the first rather than the last element",
        f"agrees if the first element is copied right more often than the last. {_TESTED}",
        first_is_easier,
        ("figure-2",),
        (2,),
    ),
    Claim(
        "says-one-by-300",
        "Section 3.1, Figure 2 (a)",
        "already at a sequence length of only 300 elements, Gemini incorrectly starts to output 'one' when trying to copy "
        "the last element",
        "agrees if at some length up to 300 the model answers that the last digit, a 0, is a one. Does not agree "
        "if the first such answer is at a longer length. If there is no such answer, it does not agree if the lengths reach "
        "300 and some answer is right; otherwise there is no verdict.",
        says_one,
        ("figure-2",),
        (2,),
    ),
    Claim(
        "hints-help",
        "Section 3.1, Figure 2 (b)",
        'providing hints in the form of: "*Hint* It\'s not necessarily a 1, check carefully", helps significantly with the '
        "performance",
        f"agrees if more of the same questions are right with the hint than without. {_TESTED}",
        hints_help,
        ("figure-2",),
        (2,),
    ),
    Claim(
        "interleaving-helps",
        "Section 3.1, Figure 2 (c)",
        "replacing the constant sequence of ones with alternating ones and zeros seems to also help",
        f"agrees if more of the same questions are right with zeros and ones in turn than with ones. {_TESTED}",
        interleaving_helps,
        ("figure-2",),
        (2,),
    ),
)
