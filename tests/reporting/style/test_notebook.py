"""Charts and results show themselves in a notebook without a network, and small enough to be
stored.
"""

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from ostools.reporting.style import draw, notebook
from ostools.reporting.style.notebook import LARGEST, VEGA_LITE
from tests.reporting.made import HOSTILE, made_sensitivity

CELLS = """
import pandas as pd
from tests.reporting.made import HOSTILE, made_sensitivity
result = made_sensitivity({"full": [1.0] * len(HOSTILE)}, HOSTILE)
chart = result.plot()
---
result
---
chart
---
chart.properties(title="mine")
---
made_sensitivity({"full": [1.0, float("nan")]}, ["<b>", "<script>"])
"""


def test_a_pictures_words_are_no_wider_than_its_panels(tmp_path: Path) -> None:
    base = alt.Chart().mark_point()
    widths = []
    for notes in ([], ["a note that is far longer than the panel is wide, and so has lines"] * 2):
        chart = draw.figure([[draw.panel([base], 200, 80)] * 2], "A title of many words" * 3, notes)
        chart.save(str(tmp_path / "chart.svg"))
        found = re.search(r' width="([\d.]+)"', (tmp_path / "chart.svg").read_text())
        assert found is not None
        widths.append(float(found[1]))
    assert widths[0] == widths[1] < 500


def shown(thing: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return thing._repr_mimebundle_(include=None, exclude=None)


@pytest.mark.slow
def test_a_real_kernel_stores_a_drawing_and_a_picture_and_nothing_that_loads_or_runs() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.split("---")]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    nbformat.validate(book)
    outputs = [output for cell in book.cells[1:] for output in cell["outputs"]]
    data = [output["data"] for output in outputs]
    assert [output["output_type"] for output in outputs] == ["execute_result"] * 4
    assert [set(stored) for stored in data[:3]] == [{VEGA_LITE, "image/png", "text/plain"}] * 3
    assert data[0]["text/plain"].startswith(
        f"Sensitivity: {len(HOSTILE)} rows of 13 columns, of made in float32"
    )
    assert data[2][VEGA_LITE]["title"] == "mine"
    assert set(data[3]) == {"text/html", "text/plain"}
    assert "No chart: " in data[3]["text/html"]
    assert "&lt;script&gt;" in data[3]["text/html"]
    assert not re.search("<script|src=", data[3]["text/html"])
    assert "http" not in json.dumps(data).replace(notebook.SCHEMA, "")


def test_a_large_chart_is_stored_as_a_picture_alone() -> None:
    small, _ = shown(made_sensitivity({"full": [1.0] * 10}))
    tokens = [f"a token of some length, with the number {place}" for place in range(1200)]
    data, _ = shown(made_sensitivity({"full": list(np.linspace(1, 2, 1200))}, tokens))
    assert VEGA_LITE in small
    assert VEGA_LITE not in data
    assert sum(len(json.dumps(value)) for value in data.values()) < LARGEST
