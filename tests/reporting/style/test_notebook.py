"""Charts and results show themselves in a notebook without a network, and small enough to be
stored.
"""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

import altair as alt
import nbformat
import numpy as np
import pytest
import vl_convert
from nbclient import NotebookClient
from PIL import Image

from ostools.reporting.charts.tokens import sensitivity_chart
from ostools.reporting.style import notebook
from ostools.reporting.style.notebook import LARGEST, VEGA_LITE
from tests.reporting.made import HOSTILE, made_sensitivity, tokens_of

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
        f"Sensitivity: {len(HOSTILE)} rows of 12 columns, of made in float32"
    )
    assert data[2][VEGA_LITE]["title"] == "mine"
    assert set(data[3]) == {"text/html", "text/plain"}
    assert "No chart: " in data[3]["text/html"]
    assert "&lt;script&gt;" in data[3]["text/html"]
    assert not re.search("<script|src=", data[3]["text/html"])
    assert "http" not in json.dumps(data).replace(notebook.SCHEMA, "")


def test_the_specification_is_drawn_by_the_oldest_vega_lite_that_front_ends_have() -> None:
    data, metadata = shown(made_sensitivity({"full": [1.0, 2.0], "frozen": [0.5, 0.0]}))
    assert data[VEGA_LITE]["$schema"].endswith("vega-lite/v5.json")
    size = notebook.picture_size(vl_convert.vegalite_to_png(data[VEGA_LITE], "5.8"))
    assert size == (metadata["image/png"]["width"], metadata["image/png"]["height"])


def test_a_large_chart_is_stored_as_a_picture_alone() -> None:
    small, _ = shown(made_sensitivity({"full": [1.0] * 10}))
    tokens = [f"a token of some length, with the number {place}" for place in range(1200)]
    data, _ = shown(made_sensitivity({"full": list(np.linspace(1, 2, 1200))}, tokens))
    assert VEGA_LITE in small
    assert VEGA_LITE not in data
    assert sum(len(json.dumps(value)) for value in data.values()) < LARGEST


def test_a_renderer_that_the_user_enabled_is_obeyed_and_none_is_changed() -> None:
    chart = made_sensitivity({"full": [1.0, 2.0]}).plot()
    shown(chart)
    assert alt.renderers.active == "default"
    with alt.renderers.enable("json"):
        assert "application/json" in shown(chart)[0]
        assert "application/json" in shown(made_sensitivity({"full": [1.0]}))[0]


@pytest.mark.parametrize("combine", [alt.layer, alt.vconcat, alt.concat])
def test_every_kind_of_chart_is_shown_without_a_network(combine: Any) -> None:
    bars = alt.Chart(alt.InlineData(values=[{"a": 1, "b": "x"}])).mark_bar().encode(x="a:Q")
    made = combine(bars, bars)
    offline = notebook.offline(made)
    assert offline.to_dict() == (alt.vconcat(made) if combine is alt.concat else made).to_dict()
    assert set(shown(offline)[0]) == {VEGA_LITE, "image/png", "text/plain"}
    assert set(shown(offline.copy().properties(title="again"))[0]) == {
        VEGA_LITE,
        "image/png",
        "text/plain",
    }


def test_a_compressed_picture_is_smaller_and_has_the_same_pixels() -> None:
    chart = sensitivity_chart(made_sensitivity({"full": [1.0, 2.0, 0.5]}, tokens_of(3)))
    picture = vl_convert.vegalite_to_png(chart.to_dict(), "6.4", scale=0.75)
    small = notebook.compressed(picture)
    assert len(small) < len(picture) / 2
    before, after = (
        np.asarray(Image.open(BytesIO(png)).convert("RGBA")) for png in (picture, small)
    )
    assert (before == after).all()
