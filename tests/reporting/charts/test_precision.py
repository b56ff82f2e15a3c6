"""Which part of low precision hides the pair: what is drawn is what the collapse lengths were read from."""

from __future__ import annotations

from typing import Any

import pytest

from ostools.ground.errors import InputError
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.result import Collapse
from ostools.reporting.charts.collapse_parts import precision_chart
from tests.checkpoints import tiny_model
from tests.reporting.charts.test_charts import rows_of
from tests.reporting.made import made_collapse


@pytest.fixture(scope="module")
def result() -> Collapse:
    names = ["float32", "bfloat16", "int4-weights", "int8-kv"]
    return collapse(tiny_model("llama", seed=1), "letters", lengths=range(1, 13), dtypes=names)


def test_curves_are_those_of_the_result(result: Collapse) -> None:
    columns = ("quantity", "series", "panel", "length", "value")
    rows = [tuple(row[name] for name in columns) for row in rows_of(precision_chart(result).to_dict(), "panel")]
    reference: Any = result.reference[result.reference["site"] == "y"].set_index(["weights", "length"])["distance"]
    drawn = {(quantity, format, length): value for quantity, format, panel, length, value in rows if "cast" in panel}
    for n in (1, 6, 12):
        assert drawn["distance", "float64", n] == pytest.approx(reference["given", n], rel=1e-5)
        assert drawn["stored", "bfloat16", n] == pytest.approx(reference["bfloat16", n], rel=1e-5)
    weights = [
        (format, value)
        for quantity, format, panel, n, value in rows
        if "weights" in panel and quantity == "stored" and n == 6
    ]
    assert weights == [("int4", pytest.approx(reference["int4-weights", 6], rel=1e-5))]
    assert not [row for row in rows if "keys" in row[2] and row[0] == "stored"]


def test_marks_are_the_ranges() -> None:
    result = made_collapse(lambda n: 10.0 / n, noise={"int8-kv": 0.33, "bfloat16": 1e-9})
    rows = rows_of(precision_chart(result).to_dict(), "precision")
    assert [(row["precision"], row["length"], row["to"]) for row in rows] == [("int8 kv", 31, 128)]


def test_nothing_to_draw_is_refused_and_two_casts_are_drawn_as_curves(result: Collapse) -> None:
    with pytest.raises(InputError, match="needs rows of site 'why'"):
        precision_chart(result, "why")
    assert "Which part" in str(result.plot().to_dict()["title"])
    assert "Which part" not in str(made_collapse(lambda n: 1.0).plot().to_dict()["title"])
