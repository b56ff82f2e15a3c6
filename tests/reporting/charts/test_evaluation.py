"""The chart and the sentences of answers: what is drawn, and what is said of it."""

import math
import re
from typing import Any

import pytest

from ostools.theory.statistics.answers import heaping
from tests.reporting.made import made_evaluation as made
from tests.reporting.made import rows_of, tables_of, words_of

SEEDS = [
    {
        "length": n,
        "seed": seed,
        "correct": seed < 2,
        "absolute_error": seed,
        "within_training": n <= 4,
    }
    for n in (3, 6)
    for seed in range(4)
]


def columns_of(chart: Any, name: str) -> list[list[Any]]:
    """Every column of that name in the chart's data."""
    return [table[name] for table in tables_of(chart) if name in table]


def test_the_band_is_wilsons_and_the_values_are_the_summarys() -> None:
    result = made(SEEDS)
    chart = result.plot()
    assert [pytest.approx(v, abs=1e-6) for v in result.summary["wilson_low"]] in columns_of(
        chart, "low"
    )
    likely = [pytest.approx(math.exp(-1), rel=1e-5)] * 2
    assert [0.5, 0.5, *likely] in columns_of(chart, "value")
    assert {"trained to 4", "count-ones: answers of tiny"} <= set(
        re.findall("trained to 4|count.*tiny", words_of(chart))
    )
    assert "</script" not in words_of(chart)
    unsampled = made([{"length": 3}, {"length": 5, "log_probability": math.nan}], random=False)
    assert columns_of(unsampled.plot(), "low") == []
    for said in (words_of(unsampled.plot()), " ".join(unsampled.findings())):
        assert "Nothing was drawn, so there is no interval." in said


def answer_row(
    n: int, answer: int | None, key: int | None = None, **columns: Any
) -> dict[str, Any]:
    """A row of an answer to n items, right where it is the key, which is n if it is not given."""
    key = n if key is None else key
    row = {
        "length": n,
        "key": str(key),
        "number": answer,
        "answer": str(answer),
        "correct": answer == key,
    }
    error = None if answer is None else abs(answer - key)
    return (
        row
        | {"absolute_error": error, "kind": "answered" if answer is not None else "something else"}
        | columns
    )


def points_of(chart: Any) -> dict[tuple[int, float], tuple[str, int]]:
    """What is drawn of the answers: by right answer and place, the outcome and how many."""
    return {
        (row["key"], row["shown"]): (row["outcome"], row["answers"])
        for row in rows_of(chart, "outcome", "answers")
    }


def test_answers_stand_against_the_right_ones_with_the_diagonal() -> None:
    """Several of one answer are one larger point; one out of reach, and one without a number, are
    at the top edge.
    """
    rows = [
        answer_row(3, 3),
        answer_row(9, 10),
        answer_row(9, 10, seed=1),
        answer_row(9, 9, seed=2),
    ]
    rows += [answer_row(10, 25), answer_row(12, None), answer_row(12, 20, seed=1)]
    chart = made(rows).plot()
    top = 1.08 * 20
    assert points_of(chart) == {
        (3, 3.0): ("right", 1),
        (9, 9.0): ("right", 1),
        (9, 10.0): ("wrong number", 2),
        (10, top): ("wrong number beyond the axis (at the top edge)", 1),
        (12, 20.0): ("wrong number", 1),
        (12, top): ("no number: something else (at the top edge)", 1),
    }
    diagonals = [table for table in tables_of(chart) if set(table) == {"key", "shown"}]
    assert diagonals == [{"key": [3, 12], "shown": [3, 12]}]
    assert "right answer (the sequence length, items)" in words_of(chart)
    drawn = words_of(made([answer_row(8, 5, key=4), answer_row(8, 4, key=4, seed=1)]).plot())
    assert '"right answer"' in drawn
    assert "right answer (the" not in drawn
    copied = made([answer_row(8, None, kind="answered", correct=True)], task="copy-last").plot()
    assert points_of(copied) == {}  # no number: the share alone, with its interval
    assert columns_of(copied, "low")


def test_the_favourite_wrong_numbers_are_named_and_heaping_is_tested() -> None:
    """26 wrong answers of 11 to 39: 20 for 19, 30 for 5; one right answer is no favourite."""
    wrong = [*range(11, 20), *range(21, 31)]
    rows = [answer_row(n, 20) for n in (*wrong, 20)] + [answer_row(n, 30) for n in range(31, 36)]
    result = made([*rows, answer_row(36, 37), answer_row(37, 39)], random=False)
    (heaped,) = (sentence for sentence in result.findings() if "multiples of 5" in sentence)
    assert heaped.startswith("Favourites of 26 wrong numbers: 20 (19 times), 30 (5 times). ")
    keys, numbers = [*wrong, *range(31, 38)], [20] * 19 + [30] * 5 + [37, 39]
    for base in (5, 10):
        test = heaping(keys, numbers, base)
        assert result.heaping(base) == test
        of_base = (
            f"{test.multiples} of 26 are multiples of {base} (expected {test.expected:.3g}, p "
        )
        assert f"{of_base}{test.p_value:.2g})" in heaped
    assert made([answer_row(n, n) for n in range(1, 9)]).heaping(5) is None
    few = made([answer_row(n, 5) for n in range(1, 5)]).findings()  # four decide nothing
    assert not any("multiples" in sentence for sentence in few)


def test_ties_are_told() -> None:
    """4, 8, 16 and 24 have none of two right; 30 is said three times, 21, 22 and 23 twice."""
    answers = {4: (30, 20), 8: (30, 21), 12: (30, 12), 16: (22, 23), 20: (20, 21), 24: (22, 23)}
    rows = [
        answer_row(n, answer, seed=seed)
        for n, pair in answers.items()
        for seed, answer in enumerate(pair)
    ]
    told = " ".join(made(rows).findings())
    assert "Fewest right at 4 items, as at 3 other lengths: 0 of 2, Wilson" in told
    assert "numbers: 30 (3 times), " in told
    assert " (2 times), and 1 more as often as the last." in told


def test_sentences_tell_trained_lengths_from_others() -> None:
    said = made(SEEDS).findings()
    assert said[0].startswith("The model answers 4 of 8 prompts of count-ones right (")
    assert "Within the lengths of training 2 of 4 answers are right, beyond 2 of 4." in said
    assert "Wilson's, 95%, over prompts" in said[-1]
    assert "training" not in " ".join(made([{"length": 3}]).findings())
