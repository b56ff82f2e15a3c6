"""The rule that says whether errors fall where collapse would put them."""

from dataclasses import replace
from typing import Any

import pytest

import ostools as ost
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
        ("....xxxx", "....hhhh", HIDDEN, 0, 4),
        ("...xxxxx", "....hhhh", UNTOLD, 1, 4),
        ("xxxxxxxx", ".......h", WRONG_APART, 7, 1),
        ("xxxxxxxx", "......hh", UNTOLD, 6, 2),
        ("xxxxxxxx", "hhhhhhhh", HIDDEN, 0, 8),
        ("....xxxx", "hhhhhhhh", UNTOLD, 0, 4),  # right ones are hidden too
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
    assert verdict_of("....xxxx", "....hhhh", probe_reads=True).verdict == UNTOLD
    assert verdict_of("....xxxx", "....hhhh", probe_reads=False).verdict == HIDDEN
    assert verdict_of("....xxxx", "........", probe_reads=True) == verdict_of(
        "....xxxx", "........"
    )


def test_lengths_without_a_distance_or_an_answer_do_not_count() -> None:
    pairs = dict.fromkeys(ALL, False)
    assert explain_errors({}, dict.fromkeys(ALL, 1), pairs).told_apart == 8
    assert explain_errors({}, dict.fromkeys(range(1, 99), 1), pairs).told_apart == 8
    assert explain_errors({9: 1}, dict.fromkeys(ALL, 12), pairs | {9: True}).told_apart == 8
    with pytest.raises(
        ost.InputError, match="expected lengths with answers and with a distance, found none"
    ):
        explain_errors({1: 0, 3: 1}, {1: 0}, {1: True, 2: True})


def test_answers_and_pairs_are_joined_by_length(embedded) -> None:
    """By hand: wrong at 2 to 5, the pairs hidden at 4 and 5, so that 4 and 5 may be collapse."""
    lengths = range(2, 6)
    answers = ost.evaluate(embedded, "count-ones", lengths=lengths)
    pairs = ost.collapse(embedded, "count-ones", lengths=lengths, dtypes=["bfloat16"])
    answers = replace(answers, summary=answers.summary.assign(right=0, wrong=1))
    frame = frame_of(pairs)
    rounds = frame["length"].ge(4) & frame["dtype"].eq("bfloat16")
    hidden = replace(pairs, frame=frame.assign(pair_noise=frame["pair_noise"].mask(rounds, 1e9)))
    verdict = explain_wrong_answers(answers, hidden)
    assert (verdict.told_apart, verdict.hidden) == (2, 2)
    assert explain_wrong_answers(answers, pairs).told_apart == 4
    unread = replace(answers, summary=answers.summary.assign(wrong=0))
    assert "cannot be told: no answer was read" in explain_wrong_answers(unread, pairs).sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "copy-last"}, "of one task, found 'count-ones' and 'copy-last'"),
        ({"mitigation": "hint"}, "of one mitigation, found 'none' and 'hint'"),
        ({"position": "prompt-end"}, "at the token before the answer, found them at 'prompt-end'"),
        ({"dtypes": ["float64"]}, "in one dtype that rounds, found float64"),
        ({"dtypes": ["float32", "bfloat16"]}, "in one dtype that rounds, found float32, bfloat16"),
        ({"bos": False}, "of one bos, found None and False"),
    ],
)
def test_answers_and_pairs_of_other_questions_are_refused(
    embedded, options: dict[str, Any], words: str
) -> None:
    answers = ost.evaluate(embedded, "count-ones", lengths=[2, 3])
    asked: dict[str, Any] = {"task": "count-ones", "dtypes": ["bfloat16"], **options}
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
