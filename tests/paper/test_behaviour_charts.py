"""The charts of Figures 2, 3 and 4 and of retrieval: nothing drawn that was not answered, nothing
left out unsaid.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from ostools.cli.terminal import show
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.paper.behaviour import TASKS, Figure2, Figure3, Figure4, figure_4_of
from ostools.reporting.charts.answers import OTHER_WORDS, RIGHT, WRONG, answer_outcomes
from ostools.results import Provenance
from tests.reporting.made import rows_of, tables_of, words_of


def provenance(number: int, trained: dict[str, int] | None = None, **more: Any) -> Provenance:
    parameters = {
        "number": number,
        "lengths": [1, 2, 3],
        "chat": False,
        "max_new_tokens": dict.fromkeys(("none", "cot-zero-shot", "cot-few-shot"), 9),
    } | more
    return Provenance({"name": "made", "trained_lengths": trained}, parameters, None, {})


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({"number": "Int64", "absolute_error": "Int64", "correct": "boolean"})


def copied(rows: Sequence[tuple[Any, ...]], answer: str = "0") -> pd.DataFrame:
    names = pd.Index(["panel", "task", "length", "correct", "kind", "number"])
    return typed(
        pd.DataFrame(rows, columns=names).assign(
            key="0", answer=answer, absolute_error=None, mode="none"
        )
    )


def counted(**errors: Sequence[int | None]) -> pd.DataFrame:
    """One row a length (1, 2, ...) of each mode (its name with _ for -) of every task."""
    rows = [
        (task, mode.replace("_", "-"), n + 1, 0, str(50 + n), error)
        for task in TASKS
        for mode, values in errors.items()
        for n, error in enumerate(values)
    ]
    frame = pd.DataFrame(
        rows, columns=pd.Index(["task", "mode", "length", "seed", "key", "absolute_error"])
    )
    given = zip(frame["key"], frame["absolute_error"], strict=True)
    number = [None if pd.isna(error) else int(key) + int(error) for key, error in given]
    return typed(
        frame.assign(number=number, correct=False, kind="answered", ended="eos", answer="x")
    )


SAID = [
    ("is: 0", True, "answered", RIGHT),
    ("is: the 0", False, "answered", OTHER_WORDS),
    ("is: 00", False, "answered", WRONG),  # as a number it is the right one
    ("is: 7", False, "answered", WRONG),
    ("is: 0 0", False, "answered", WRONG),
    ("0", False, "something else", SOMETHING_ELSE),
    ("0", False, "cut off", CUT_OFF),
]


def test_what_an_answer_is_called_in_chart_and_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        ("a", "copy-last", n, correct, kind, None) for n, (_, correct, kind, _) in enumerate(SAID)
    ]
    frame = copied(rows).assign(answer=[line for line, *_ in SAID])
    assert answer_outcomes(frame).tolist() == [outcome for *_, outcome in SAID]
    figure = Figure2(frame, provenance(2))
    assert (
        "last digit: 3 wrong, 1 right, 1 right, in other words, 1 something else, 1 cut off"
        in words_of(figure.plot())
    )
    show(figure)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "copy-last" in line]
    assert row.split()[2:] == ["7", "0.1429"]


def test_figure_3_draws_the_mean_over_seeds_of_what_could_be_read() -> None:
    frame = pd.concat([counted(none=[2, None, 4]), counted(none=[4, None, None]).assign(seed=1)])
    chart = Figure3(frame, provenance(3)).plot()
    # The four columns are equal here, and Altair keeps equal tables once.
    (errors,) = [table for table in tables_of(chart) if "read" in table and None in table["value"]]
    # The second length held no number at either seed: no error there, and no 0.
    assert errors["value"] == [3.0, None, 4.0]
    assert (errors["low"], errors["high"]) == ([2.0, None, 4.0], [4.0, None, 4.0])
    words = words_of(chart)
    assert "answers without a number (12 of 24), which the errors leave out" in words
    assert "mean of up to 2 seeds" in words
    assert "logarithmic" not in words
    assert "trained" not in words


def test_figure_4_counts_what_its_axis_cannot_show() -> None:
    frame = counted(
        none=[50, 49, 10**6, None, 48], cot_zero_shot=[None] * 5, cot_few_shot=[0, 0, 0, 0, 0]
    )
    figure = figure_4_of(Figure3(frame, provenance(3)))
    assert isinstance(figure, Figure4)
    chart = figure.plot()
    panels = [
        panel["title"]["subtitle"] for row in chart.to_dict()["vconcat"] for panel in row["hconcat"]
    ]
    assert len(panels) == 12
    assert panels[0] == ["most often 100: 2 of 5", "1 beyond the axis, 1 without a number"]
    assert panels[1] == ["5 answers, none with a number", "0 beyond the axis, 5 without a number"]
    assert panels[2] == [
        "5 answers, no number twice",
        "0 beyond the axis, 0 without a number",
    ]
    shown = {(row["series"], row["output"], row["shown"]) for row in rows_of(chart, "output")}
    right = {(name, n, 1) for name in ("right answers", "CoT few-shot") for n in range(50, 55)}
    assert shown == right | {("no CoT", 100, 2), ("no CoT", 102, 1)}


def test_figure_4_tells_all_favourites_in_whatever_order_the_rows_are() -> None:
    # The right answers are 50, 51, ...; 50 to 53 and 1000058 are answered twice each.
    errors = [0, 0, 0, 0, -4, -4, -4, -4, 10**6, 10**6 - 1, 100]
    figure = figure_4_of(Figure3(counted(none=errors), provenance(3)))
    for frame in (figure.frame, figure.frame[::-1]):
        told, *_ = dataclasses.replace(figure, frame=frame).findings()
        assert told.count("most often 50 and 51 and 52 and 2 more as often: 2 of 11.") == len(TASKS)


def test_figure_3_says_when_its_axis_is_not_the_papers() -> None:
    frame = counted(none=[0, 1, 2], cot_zero_shot=[0, 10**7, 3], cot_few_shot=[None, None, None])
    words = words_of(Figure3(frame, provenance(3, {"count-ones": 2})).plot())
    assert "linear to 1, then logarithmic. The paper's text does not name one." in words
    assert '"symlog"' in words
    assert words.count("trained to 2") == 1
