"""Two evaluations of the same questions: counts by hand, every verdict, what is left out, and what
is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.measure.answers.result import AnswerDifference, Evaluation
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


def test_several_answers_to_one_prompt_are_no_questions_and_two_tasks_no_evaluation() -> None:
    one = asked([True, False])
    several = pd.concat([one.frame] * 3, ignore_index=True)
    two = pd.concat(
        [one.frame, one.frame.assign(length=[8, 9], task="sum-ones")], ignore_index=True
    )
    for frame, words in (
        (several, "expected one row for each length, seed, found several"),
        (two, "expected rows of one task, found count-ones, sum-ones"),
    ):
        with pytest.raises(ost.InputError, match=words):
            replace(one, frame=frame)


def test_a_stored_table_of_its_own_is_passed_over_and_a_comparison_of_before_is_refused(
    tmp_path: Path,
) -> None:
    answers = asked([True, False, True])
    document = json.loads(answers.save(tmp_path / "x.json").read_text())
    document["result"]["fields"]["summary"] = [1, 2]
    (tmp_path / "x.json").write_text(json.dumps(document))
    loaded: Any = ost.load_result(tmp_path / "x.json")
    pd.testing.assert_frame_equal(loaded.summary, answers.summary)
    path = ost.compare(answers, answers).save(tmp_path / "y.json")
    document = json.loads(path.read_text())
    document["provenance"]["parameters"].pop("left_out")
    path.write_text(json.dumps(document))
    with pytest.raises(ost.InputError, match="found curves of questions that were left out"):
        ost.load_result(path)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_told_of_some_of_the_rows_is_what_is_told_of_an_evaluation_of_these(
    seed: int,
) -> None:
    """Of rows that a user chose everything that is told is of these, and of no other."""
    draw = np.random.default_rng(seed)
    right = (draw.random(60) < 0.5).tolist()
    whole = asked(right, seeds=3, columns={"key": "3"})
    rows = whole.frame["length"].isin(draw.choice(range(2, 22), 7, replace=False).tolist())
    some = replace(whole, frame=whole.frame[rows])
    by_hand = whole.frame[rows].groupby("length")["correct"].agg(["sum", "size"])
    assert some.summary["right"].tolist() == by_hand["sum"].tolist()
    assert some.summary["asked"].tolist() == by_hand["size"].tolist()
    assert f"{by_hand['sum'].sum()} of {by_hand['size'].sum()} " in some.findings()[0]


def test_the_curves_of_a_comparison_are_of_the_questions_that_count() -> None:
    """Answers left out, as the mitigation did nothing there, are in no sentence and in no line."""
    first = asked([True, False, True, True], seeds=2)
    second = asked([True] * 4, seeds=2, columns={"mitigation": "hint", "status": "active"})
    frame: Any = second.frame
    frame.loc[frame["length"] == 2, "status"] = "inactive"
    frame.loc[(frame["length"] == 3) & (frame["seed"] == 1), "status"] = "inactive"
    result, row = compared(first, second)
    curves = result.curves.set_index("side")
    assert curves["length"].tolist() == [3, 3]
    assert curves["asked"].tolist() == [1, 1]
    assert curves["right"].tolist() == [row["first_right"], row["second_right"]]
    assert curves["wilson_low"].notna().tolist() == [True, True]


def test_a_temperature_that_a_file_of_answers_does_not_give_is_told_so() -> None:
    hosted = [asked([True] * 3, temperature=temperature) for temperature in (None, None, 0.5)]
    assert "under second" in ost.compare(*hosted[:2]).findings()[0]
    told = ost.compare(*hosted[1:]).findings()[0]
    assert "right under temperature 0.5, 3 under temperature not recorded" in told
