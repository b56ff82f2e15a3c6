"""The charts of Figures 2, 3 and 4 and of retrieval: nothing drawn that was not answered, nothing left out unsaid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from ostools.cli.terminal import show
from ostools.experiments.figures.answering import Figure2
from ostools.experiments.figures.counting import TASKS, Figure3, Figure4, figure_4_of
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.charts.answers import OTHER_WORDS, RIGHT, WRONG, answer_outcomes
from ostools.results import Provenance


def provenance(number: int, trained: dict[str, int] | None = None, **more: Any) -> Provenance:
    parameters = {"number": number, "lengths": [1, 2, 3], "chat": False, "max_new_tokens": 9} | more
    return Provenance({"name": "made", "trained_lengths": trained}, parameters, None, {})


def data_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Every table inside a chart, as columns."""
    return [columns for (columns,) in spec["datasets"].values()]


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({"number": "Int64", "absolute_error": "Int64", "correct": "boolean"})


def copied(rows: Sequence[tuple[Any, ...]], answer: str = "0") -> pd.DataFrame:
    names = pd.Index(["panel", "task", "length", "correct", "kind", "number"])
    return typed(pd.DataFrame(rows, columns=names).assign(key="0", answer=answer, absolute_error=None))


def counted(**errors: Sequence[int | None]) -> pd.DataFrame:
    """One row a length (1, 2, ...) of each mode (its name with _ for -) of every task."""
    rows = [
        (task, mode.replace("_", "-"), n + 1, 0, str(50 + n), error)
        for task in TASKS
        for mode, values in errors.items()
        for n, error in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["task", "mode", "length", "seed", "key", "absolute_error"]))
    given = zip(frame["key"], frame["absolute_error"], strict=True)
    number = [None if pd.isna(error) else int(key) + int(error) for key, error in given]
    return typed(frame.assign(number=number, correct=False, kind="answered", ended="eos", answer="x"))


SAID = [
    ("is: 0", True, "answered", RIGHT),
    ("is: the 0", False, "answered", OTHER_WORDS),
    ("is: 00", False, "answered", WRONG),  # as a number it is the right one
    ("is: 7", False, "answered", WRONG),
    ("is: 0 0", False, "answered", WRONG),
    ("0", False, "something else", SOMETHING_ELSE),
    ("0", False, "cut off", CUT_OFF),
]


def said(kinds: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    rows = [("a", "copy-last", n, correct, kind, None) for n, (_, correct, kind, _) in enumerate(kinds)]
    return copied(rows).assign(answer=[line for line, *_ in kinds])


def test_what_an_answer_is_called() -> None:
    assert answer_outcomes(said(SAID)).tolist() == [kind for *_, kind in SAID]


def test_right_is_counted_once_in_chart_and_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure2(said(SAID), provenance(2))
    assert "last digit right at 1 of 7, 1 in other words, 1 something else, 1 cut off" in json.dumps(
        figure.plot().to_dict()
    )
    show(figure)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "copy-last" in line]
    assert row.split()[2:] == ["7", "0.1429"]


def test_figure_2_draws_every_answer_once_and_only_outcomes_that_occur() -> None:
    rows = [
        (panel, task, n, n != 2, True, 0 if n != 2 else 1)
        for panel in "abc"
        for task in ("copy-last", "copy-first")
        for n in (1, 2, 3)
    ]
    frame = copied(rows)
    frame["answer"] = frame["panel"]  # Altair keeps equal tables once
    figure = Figure2(frame, provenance(2, {"copy-last": 2, "copy-first": 2}))
    spec = figure.plot().to_dict()
    text = json.dumps(spec)
    tables = [table for table in data_of(spec) if "place" in table]
    assert [len(table["length"]) for table in tables] == [6, 6, 6]
    assert sorted(zip(tables[0]["place"], tables[0]["length"], tables[0]["outcome"], strict=True)) == [
        (place, n, WRONG if n == 2 else RIGHT) for place in ("first digit", "last digit") for n in (1, 2, 3)
    ]
    assert "last digit right at 2 of 3" in text
    assert "trained to 2" in text
    assert OTHER_WORDS not in text
    assert CUT_OFF not in text
    assert SOMETHING_ELSE not in text
    assert [panel["title"]["text"][:3] for panel in spec["vconcat"][0]["hconcat"]] == ["(a)", "(b)", "(c)"]


def test_figure_3_draws_the_mean_over_seeds_of_what_could_be_read() -> None:
    frame = pd.concat([counted(none=[2, None, 4]), counted(none=[4, None, None]).assign(seed=1)])
    spec = Figure3(frame, provenance(3)).plot().to_dict()
    text = json.dumps(spec)
    errors = [table for table in data_of(spec) if "read" in table and None in table["value"]]
    strips = [table for table in data_of(spec) if "share" in table]
    assert len(errors) == len(strips) == 1  # the four columns are equal here, and Altair keeps equal tables once
    # The second length held no number at either seed: no error there, and no 0.
    assert errors[0]["value"] == [3.0, None, 4.0]
    assert (errors[0]["low"], errors[0]["high"]) == ([2.0, None, 4.0], [4.0, None, 4.0])
    assert strips[0]["share"] == [0.0, 1.0, 0.5]
    assert "answers without a number (12 of 24), which the errors leave out" in text
    assert "mean of up to 2 seeds" in text
    assert "logarithmic" not in text
    assert "(8 of 8)" in json.dumps(Figure3(counted(none=[None, None]), provenance(3)).plot().to_dict())
    assert "trained" not in text


def test_figure_4_counts_what_its_axis_cannot_show() -> None:
    frame = counted(none=[50, 49, 10**6, None, 48], cot_zero_shot=[None] * 5, cot_few_shot=[0, 0, 0, 0, 0])
    figure = figure_4_of(Figure3(frame, provenance(3)))
    assert isinstance(figure, Figure4)
    spec = figure.plot().to_dict()
    panels = [panel["title"]["subtitle"] for row in spec["vconcat"] for panel in row["hconcat"]]
    assert panels[0] == ["most often 100: 2 of 5", "1 beyond (to 1.0e6), 1 no number"]
    assert panels[4] == ["5 answers, none with a number", ""]
    assert panels[8] == ["5 answers most often: 1 of 5 each", ""]
    tables = [table for table in data_of(spec) if set(table.get("way", [])) == {"no CoT"}]
    assert len(spec["vconcat"]) == 3
    assert [len(row["hconcat"]) for row in spec["vconcat"]] == [4, 4, 4]
    shown = dict(zip(tables[0]["output"], zip(tables[0]["answers"], tables[0]["right"], strict=True), strict=True))
    assert shown == {50: (0, 1), 51: (0, 1), 52: (0, 1), 53: (0, 1), 54: (0, 1), 100: (2, 0), 102: (1, 0)}


def test_figure_3_says_when_its_axis_is_not_the_papers() -> None:
    frame = counted(none=[0, 1, 2], cot_zero_shot=[0, 10**7, 3], cot_few_shot=[None, None, None])
    text = json.dumps(Figure3(frame, provenance(3, {"count-ones": 2})).plot().to_dict())
    assert "linear to 1, then logarithmic. The paper's text does not name one." in text
    assert '"symlog"' in text
    assert text.count("trained to 2") == 1
