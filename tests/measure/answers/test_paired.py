"""Two evaluations of the same questions: counts by hand, every verdict, what is left out, and what
is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.measure.answers.result import AnswerDifference, Evaluation, from_rows
from ostools.theory.statistics.answers import mcnemar, paired_difference
from tests.reporting.made import made_evaluation


def asked(right: Sequence[bool | None], *, seeds: int = 1, **how: Any) -> Evaluation:
    """An evaluation with a question for each of these: lengths 2, 3, ... with so many sequences
    each.
    """
    rows = [
        {
            "length": 2 + place // seeds,
            "seed": place % seeds,
            "key": str(2 + place // seeds),
            "correct": one,
        }
        for place, one in enumerate(right)
    ]
    columns = how.pop("columns", {})
    return made_evaluation([row | columns for row in rows], random=seeds > 1, **how)


def compared(first: Evaluation, second: Evaluation) -> tuple[AnswerDifference, Mapping[str, Any]]:
    result = ost.compare(first, second)
    return result, result.summary.iloc[0].to_dict()


def test_counts_interval_and_rows_are_those_of_the_pairs() -> None:
    first = asked([True, True, False, False, False, True], seeds=2)
    second = asked(
        [True, False, True, True, False, True],
        seeds=2,
        columns={"mitigation": "hint", "status": "active"},
    )
    result, row = compared(first, second)
    correct = result.frame[["first_correct", "second_correct"]].to_numpy().tolist()
    assert correct[:2] == [[True, True], [True, False]]
    assert result.frame[["length", "seed"]].to_numpy().tolist() == [
        [2, 0],
        [2, 1],
        [3, 0],
        [3, 1],
        [4, 0],
        [4, 1],
    ]
    names = ("questions", "first_right", "second_right", "gained", "lost", "left_out")
    assert [row[name] for name in names] == [6, 3, 4, 2, 1, 0]
    assert row["difference"] == pytest.approx(1 / 6)
    assert (row["low"], row["high"]) == paired_difference(2, 1, 6)
    assert row["p_value"] == mcnemar(2, 1)
    assert (row["first"], row["second"], row["verdict"]) == ("no mitigation", "hint", "not decided")
    back, other = compared(second, first)
    assert (other["low"], other["high"]) == pytest.approx((-row["high"], -row["low"]))
    assert back.provenance.parameters["mitigation"] == ["hint", "none"]


@pytest.mark.parametrize(
    ("gained", "lost", "same", "verdict", "words"),
    [
        (
            8,
            0,
            4,
            "second is better",
            "hint is better: 10 of 12 right under hint, 2 under no mitigation; +66.7 points",
        ),
        (0, 8, 4, "first is better", "no mitigation is better: 2 of 12 right under hint, 10"),
        (5, 0, 7, "not decided", "Not decided: 8 of 12 right under hint"),
        (
            0,
            0,
            24,
            "not decided",
            "+0.0 points [-14.2, +14.2]",
        ),  # no difference in 24 questions is no proof of none
        (0, 0, 72, "no measurable difference", "No measurable difference: 36 of 72 right"),
        (0, 0, 71, "not decided", "Not decided: 35 of 71"),
    ],
)
def test_a_verdict_is_read_from_the_whole_interval(
    gained: int, lost: int, same: int, verdict: str, words: str
) -> None:
    pairs = (
        [(False, True)] * gained
        + [(True, False)] * lost
        + [(place % 2 == 1,) * 2 for place in range(same)]
    )
    first = asked([pair[0] for pair in pairs])
    second = asked([pair[1] for pair in pairs], columns={"mitigation": "hint", "status": "active"})
    result, row = compared(first, second)
    assert row["verdict"] == verdict
    assert words in " ".join(result.findings())


def test_questions_without_an_answer_or_an_acting_mitigation_are_left_out_and_counted() -> None:
    first = asked([True, False, None, True])
    second = asked([True, True, True, False], columns={"mitigation": "hint", "status": "active"})
    frame: Any = second.frame
    frame.loc[frame["length"] == 5, "status"] = "inactive"
    result, row = compared(first, second)
    assert (row["questions"], row["left_out"], row["gained"], row["lost"]) == (2, 2, 1, 0)
    assert "2 questions are left out" in result.findings()[-1]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            asked([True] * 3, task="count-word"),
            "found answers to count-ones and to count-word: ask both the same task",
        ),
        (
            asked([True] * 4),
            "found 5 items with seed 0 .* in one of them: ask both the same lengths and seeds",
        ),
        (asked([True] * 3, seeds=3), "found . items with seed . .* in one of them"),
        (
            asked([True] * 3, columns={"key": "7"}),
            "found 2 items with seed 0 and the right answer '2' in one",
        ),
        (asked([None] * 3), "found none that both answered"),
    ],
)
def test_other_questions_are_refused(second: Evaluation, message: str) -> None:
    with pytest.raises(
        ost.InputError, match=f"compare: expected two evaluations of the same questions, {message}"
    ):
        ost.compare(asked([True] * 3), second)


def test_several_answers_to_one_prompt_are_no_questions() -> None:
    """As files of earlier versions have them."""
    several = asked([True, False])
    several = replace(several, frame=pd.concat([several.frame] * 3, ignore_index=True))
    for pair in ((several, asked([True, False])), (asked([True, False]), several)):
        with pytest.raises(ost.InputError, match="found several answers to a prompt"):
            ost.compare(*pair)
    with pytest.raises(ost.InputError, match="expected one answer to each prompt, found several"):
        from_rows(several.frame, several.provenance)
