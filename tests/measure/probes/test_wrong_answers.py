"""The rule that says whether errors fall where collapse would put them."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import ostools as ost
from ostools.measure.answers.reading import HAS_ANSWER, SOMETHING_ELSE
from ostools.measure.collapse.result import Collapse
from ostools.measure.probes.wrong_answers import (
    HIDDEN,
    NONE_WRONG,
    UNTOLD,
    WRONG_APART,
    ErrorVerdict,
    explain_errors,
    explain_wrong_answers,
)
from ostools.results import frame_of
from tests.checkpoints import refused

ALL = range(1, 9)


def verdict_of(wrong: str, hidden: str, probe_reads: bool | None = None) -> ErrorVerdict:
    """Of one answer a length: "x" is wrong, and "h" a hidden pair."""
    places = list(enumerate(wrong, start=1))
    right, not_right = {n: int(c == ".") for n, c in places}, {n: int(c == "x") for n, c in places}
    return explain_errors(
        right, not_right, {n: c == "h" for n, c in enumerate(hidden, start=1)}, probe_reads
    )


@pytest.mark.parametrize(
    ("wrong", "hidden", "verdict", "apart", "among"),
    [
        ("........", "hhhhhhhh", NONE_WRONG, 0, 0),
        ("....xxxx", "........", WRONG_APART, 4, 0),
        (".....xxx", "........", UNTOLD, 3, 0),  # all of three leave one half in
        ("." * 10 + "x" * 11, "." * 10 + "h" * 11, HIDDEN, 0, 11),
        ("." * 10 + "x" * 10, "." * 10 + "h" * 10, UNTOLD, 0, 10),  # of 19 steps one fits best
        (".xx.xx..xx.x", ".h..h...h..h", HIDDEN, 0, 7),  # each hides n and n + 1
        ("...xxxxx", "....hhhh", UNTOLD, 1, 4),
        ("xxxxxxxx", ".......h", WRONG_APART, 7, 1),
        ("xxxxxxxx", "......hh", UNTOLD, 6, 2),
        ("x" * 24, "h" * 24, UNTOLD, 0, 24),  # no right answer, and no length that is apart
        ("." * 10 + "x" * 14, "h" * 24, UNTOLD, 0, 14),  # right ones are hidden too
        ("..x" * 13 + "..", "h." * 20 + "h", UNTOLD, 0, 13),  # so are they by the pair before
        ("..." + "..x" * 12, "..." + "h" * 36, UNTOLD, 0, 12),
        (
            ".x.x.x.x",
            "h.h.h.h.",
            UNTOLD,
            0,
            4,
        ),  # each error is that of the pair before it: n - 1 is right, and hides n
    ],
)
def test_a_verdict_needs_more_than_half_of_the_lengths(
    wrong: str, hidden: str, verdict: str, apart: int, among: int
) -> None:
    found = verdict_of(wrong, hidden)
    assert (found.verdict, found.told_apart, found.hidden) == (verdict, apart, among)
    assert bool(found.reason) == (verdict == UNTOLD)
    where = f"the pair is told apart at {apart}"
    assert found.sentence == "No answer is wrong." or where in found.sentence


def test_a_probe_that_reads_hidden_pairs_leaves_it_open_and_changes_no_other_verdict() -> None:
    wrong, hidden = "." * 10 + "x" * 11, "." * 10 + "h" * 11
    assert verdict_of(wrong, hidden, probe_reads=True).verdict == UNTOLD
    assert verdict_of(wrong, hidden, probe_reads=False).verdict == HIDDEN
    assert verdict_of(wrong, "." * 21, probe_reads=True) == verdict_of(wrong, "." * 21)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=22))
def test_hidden_pairs_have_to_fit_wrong_answers_better_than_moved_along_the_lengths(
    drawn: list[tuple[int, int, bool]],
) -> None:
    """Counted by a plain loop: every place, by numpy's correlation."""
    drawn = [(right, wrong + (right + wrong == 0), hides) for right, wrong, hides in drawn]
    right, wrong, hidden = (dict(enumerate(column)) for column in zip(*drawn, strict=True))
    verdict = explain_errors(right, wrong, hidden)
    shares = [wrong[n] / (right[n] + wrong[n]) for n in hidden]
    touched = [hidden[n] or hidden.get(n - 1, False) for n in hidden]
    last = len(touched) - 1
    moved = [[touched[min(max(n - k, 0), last)] for n in hidden] for k in range(-last, last + 1)]
    fits = [np.corrcoef(shares, one)[0, 1] for one in moved if 0 < sum(one) <= last]
    as_well = sum(fit >= np.corrcoef(shares, touched)[0, 1] - 1e-7 for fit in fits)
    if verdict.verdict == HIDDEN:
        assert 20 * as_well <= len(fits)
    if "moved along" in verdict.reason:
        assert f"as well at {as_well} of {len(fits)} places" in verdict.reason
        assert 20 * as_well > len(fits)


def drawn_runs(generator: np.random.Generator, alike: float) -> list[bool]:
    """40 coins, each as the one before with probability `alike`."""
    coins = generator.random(40) < 0.5
    for n in range(1, 40):
        coins[n] = coins[n - 1] if generator.random() < alike else coins[n]
    return coins.tolist()


def drawn_range(generator: np.random.Generator, width: float) -> list[bool]:
    """40 lengths, from somewhere on; over so many of them it sets in."""
    return (np.arange(40) + generator.logistic(0, width, 40) > 40 * generator.random()).tolist()


def test_errors_that_do_not_know_of_hidden_pairs_are_seldom_laid_on_them() -> None:
    """Coins, runs, and errors that set in, against hidden pairs that set in, or come and go."""
    generator = np.random.default_rng(0)
    errors = [partial(drawn_runs, alike=alike) for alike in (0.0, 0.8, 0.9)]
    errors += [partial(drawn_range, width=width) for width in (0.01, 2.0, 8.0)]
    for hide in (partial(drawn_range, width=0.01), partial(drawn_runs, alike=0.5)):
        verdicts = []
        for make in errors * 150:
            wrong = "".join(".x"[one] for one in make(generator))
            hidden = "".join(".h"[one] for one in hide(generator))
            verdicts.append(verdict_of(wrong, hidden).verdict)
        assert verdicts.count(HIDDEN) <= 0.05 * len(verdicts)


def test_lengths_without_a_distance_or_an_answer_do_not_count() -> None:
    pairs = dict.fromkeys(ALL, False)
    assert explain_errors({}, dict.fromkeys(ALL, 1), pairs).told_apart == 8
    assert explain_errors({}, dict.fromkeys(range(1, 99), 1), pairs).told_apart == 8
    assert explain_errors({9: 1}, dict.fromkeys(ALL, 12), pairs | {9: True}).told_apart == 8
    with pytest.raises(
        ost.InputError, match="expected lengths with answers and with a distance, found none"
    ):
        explain_errors({1: 0, 3: 1}, {1: 0}, {1: True, 2: True})


@pytest.mark.parametrize("layers", [None, "all"])
def test_answers_and_pairs_are_joined_by_length(embedded, layers: Literal["all"] | None) -> None:
    """By hand: wrong at 2 to 5, the pairs hidden at 4 and 5, so that 4 and 5 may be collapse. What
    is hidden in another dtype, or of v^(L), is not what the answers come from.
    """
    lengths = range(2, 6)
    answers = ost.evaluate(embedded, "count-ones", lengths=lengths)
    pairs = ost.collapse(embedded, "count-ones", lengths=lengths, layers=layers)
    answers = replace(answers, frame=answers.frame.assign(correct=False, kind=HAS_ANSWER))
    frame = frame_of(pairs)

    def noisy(rows: Any) -> Collapse:
        return replace(pairs, frame=frame.assign(pair_noise=frame["pair_noise"].mask(rows, 1e9)))

    rounds = frame["length"].ge(4) & frame["dtype"].eq("float32") & frame["site"].eq("y")
    verdict = explain_wrong_answers(answers, noisy(rounds))
    assert (verdict.told_apart, verdict.hidden) == (2, 2)
    others = frame["dtype"].ne("float32") | frame["site"].ne("y")
    assert explain_wrong_answers(answers, noisy(others)).told_apart == 4
    unread = replace(answers, frame=answers.frame.assign(kind=SOMETHING_ELSE))
    assert "cannot be told: no answer was read" in explain_wrong_answers(unread, pairs).sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "copy-last"}, "of one task, found 'count-ones' and 'copy-last'"),
        ({"mitigation": "hint"}, "of one mitigation, found 'none' and 'hint'"),
        ({"position": "prompt-end"}, "at the token before the answer, found them at 'prompt-end'"),
        ({"dtypes": ["float64"]}, "in one dtype that rounds, found float32 and float64"),
        (
            {"dtypes": ["bfloat16", "int4-residual"]},
            "in one dtype that rounds, found float32 and bfloat16, int4-residual: give",
        ),
        ({"bos": False}, "of one bos, found None and False"),
    ],
)
def test_answers_and_pairs_of_other_questions_are_refused(
    embedded, options: dict[str, Any], words: str
) -> None:
    answers = ost.evaluate(embedded, "count-ones", lengths=[2, 3])
    asked: dict[str, Any] = {"task": "count-ones", "dtypes": ["float32"], **options}
    pairs = ost.collapse(embedded, lengths=[2, 3], **asked)
    refused(words, explain_wrong_answers, answers, pairs)


def test_answers_and_pairs_of_two_models_are_refused(embedded) -> None:
    answers = ost.evaluate(embedded, "count-ones", lengths=[2, 3])
    other = ost.models.untrained_model(embedded)
    pairs = ost.collapse(other, "count-ones", lengths=[2, 3], dtypes=["bfloat16"])
    refused("of one model, found", explain_wrong_answers, answers, pairs)


def test_answers_after_examples_of_other_seeds_or_under_an_edit_are_refused(embedded) -> None:
    questions: dict[str, Any] = {"task": "count-ones-bernoulli", "lengths": [4, 5]}
    pairs = ost.collapse(embedded, **questions, seeds=[0], dtypes=["bfloat16"])
    with pytest.raises(ost.InputError, match=r"of one seeds, found \[1\] and \[0\]"):
        explain_wrong_answers(ost.evaluate(embedded, **questions, seeds=[1]), pairs)
    shown = ost.evaluate(embedded, **questions, elicitation="few-shot", max_new_tokens=2)
    refused("without worked examples", explain_wrong_answers, shown, pairs)
    with ost.hooks.ablate_heads(embedded, [(0, 0)]):
        edited = ost.evaluate(embedded, **questions)
    refused("of one edits, found", explain_wrong_answers, edited, pairs)
