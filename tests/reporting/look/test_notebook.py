"""Charts and results show themselves in a notebook without a network, and small enough to be stored."""

from __future__ import annotations

import base64
import json
import pickle
import struct
import zlib
from io import BytesIO
from typing import Any

import altair as alt
import nbformat
import numpy as np
import pandas as pd
import pytest
import vl_convert
from nbclient import NotebookClient
from PIL import Image

from ostools.reporting.charts.sensitivity.over_tokens import sensitivity_chart
from ostools.reporting.look import notebook, pixels
from ostools.reporting.look.notebook import LARGEST, VEGA_LITE
from ostools.results import Provenance
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


def picture_of(data: dict[str, Any]) -> bytes:
    return base64.b64decode(data["image/png"])


@pytest.fixture(scope="module")
def outputs() -> list[Any]:
    """What a real kernel stores for the last lines of `CELLS`."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.split("---")]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    nbformat.validate(book)
    return [cell["outputs"] for cell in book.cells[1:]]


@pytest.mark.slow
def test_a_kernel_stores_a_drawing_and_a_picture_and_no_html(outputs: list[Any]) -> None:
    for stored in outputs[:3]:
        (output,) = stored
        assert output["output_type"] == "execute_result"
        assert set(output["data"]) == {VEGA_LITE, "image/png", "text/plain"}
    assert outputs[0][0]["data"]["text/plain"].startswith(f"Sensitivity: {len(HOSTILE)} rows of 12 columns, model made")
    assert outputs[2][0]["data"][VEGA_LITE]["title"] == "mine"


@pytest.mark.slow
def test_nothing_that_is_stored_can_load_or_run_anything(outputs: list[Any]) -> None:
    for (output,) in outputs:
        assert "http" not in json.dumps(output["data"]).replace(notebook.SCHEMA, "")
        html = output["data"].get("text/html", "")
        assert "<script" not in html
        assert "src=" not in html


@pytest.mark.slow
def test_without_a_chart_the_reason_and_the_rows_are_shown_escaped(outputs: list[Any]) -> None:
    (output,) = outputs[3]
    html = output["data"]["text/html"]
    assert "No chart: " in html
    assert "not finite" in html
    assert "&lt;script&gt;" in html
    assert "image/png" not in output["data"]
    assert output["data"]["text/plain"].startswith("Sensitivity: 2 rows")


def test_the_specification_is_drawn_by_the_oldest_vega_lite_that_front_ends_have() -> None:
    data, metadata = shown(made_sensitivity({"full": [1.0, 2.0], "frozen": [0.5, 0.0]}))
    assert data[VEGA_LITE]["$schema"].endswith("vega-lite/v5.json")
    size = pixels.size(vl_convert.vegalite_to_png(data[VEGA_LITE], "5.8"))
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


@pytest.mark.parametrize("kind", ["chart", "layer", "facet", "vconcat", "hconcat", "concat"])
def test_every_kind_of_chart_stays_what_it_was(kind: str) -> None:
    bars = alt.Chart(alt.InlineData(values=[{"a": 1, "b": "x"}])).mark_bar().encode(x="a:Q")
    made = {
        "chart": bars,
        "layer": alt.layer(bars, bars),
        "facet": bars.facet("b:N"),
        "vconcat": alt.vconcat(bars, bars),
        "hconcat": alt.hconcat(bars, bars),
        "concat": alt.concat(bars, bars, columns=1),
    }[kind]
    offline = notebook.offline(made)
    assert isinstance(offline, type(made))
    assert offline.to_dict() == made.to_dict()
    assert set(shown(offline)[0]) == {VEGA_LITE, "image/png", "text/plain"}
    assert set(shown(offline.copy().properties(title="again"))[0]) == {VEGA_LITE, "image/png", "text/plain"}


def test_a_chart_can_be_pickled() -> None:
    chart = made_sensitivity({"full": [1.0, 2.0]}).plot()
    assert pickle.loads(pickle.dumps(chart)).to_dict() == chart.to_dict()


def test_a_chart_of_another_kind_is_refused() -> None:
    bars = alt.Chart(alt.InlineData(values=[{"a": 1}])).mark_bar().encode(x="a:Q")
    with pytest.raises(TypeError, match="RepeatChart"):
        notebook.offline(bars.repeat(["a"]))


def test_the_summary_says_what_of_which_model() -> None:
    result = made_sensitivity({"full": [1.0] * 1200})
    assert notebook.summary(result) == "Sensitivity: 1,200 rows of 12 columns, model made in float32"
    hostile = Provenance({"name": "\x1b[31m\u202e</p>", "dtype": "float32"}, {}, None, {})
    said = notebook.summary(type(result)(result.frame, hostile))
    assert said.isprintable()
    bare = Provenance.without_model(seed=1)
    assert notebook.summary(type(result)(pd.DataFrame({"x": [1]}), bare)) == "Sensitivity: 1 rows of 1 columns"


def test_a_reduced_picture_shows_the_same() -> None:
    chart = sensitivity_chart(made_sensitivity({"full": [1.0, 2.0, 0.5]}, tokens_of(3)))
    whole = vl_convert.vegalite_to_png(chart.to_dict(), "6.4", scale=0.75)
    small = pixels.reduced(whole)
    assert len(small) < len(whole) / 3
    before, after = decoded(whole), decoded(small)
    assert before.shape == after.shape
    assert np.abs(before.astype(int) - after).max() <= 16
    assert (np.abs(before.astype(int) - after) <= 1).mean() > 0.98
    white = (before == 255).all(-1)
    assert white.mean() > 0.5
    assert (after[white] == 255).all()


def test_a_picture_of_few_colours_keeps_each() -> None:
    values = [[0, 120, 255], [17, 18, 19], [255, 255, 255]]
    image = np.array([[values[0] + [255], values[1] + [255]], [values[2] + [255], values[0] + [255]]], dtype=np.uint8)
    after = decoded(pixels.reduced(rgba_png(image)))
    assert after.tolist() == image[..., :3].tolist()


def test_a_picture_of_another_kind_is_left_alone() -> None:
    image = np.full((2, 2, 4), 128, dtype=np.uint8)
    assert pixels.reduced(rgba_png(image)) == rgba_png(image)
    palette = pixels.reduced(rgba_png(np.full((2, 2, 4), 255, dtype=np.uint8)))
    assert pixels.reduced(palette) == palette


def test_the_filter_of_a_picture_s_lines_is_no_matter() -> None:
    white = np.full((2, 2, 4), 255, dtype=np.uint8)
    assert pixels.reduced(rgba_png(white, filtered=0)) == pixels.reduced(rgba_png(white))


def rgba_png(image: np.ndarray, filtered: int = 1) -> bytes:
    """An RGBA picture, each line filtered by its left neighbour (1), or a constant one not at all (0)."""
    height, width = image.shape[:2]
    lines = image.copy()
    if filtered:
        lines[:, 1:] = image[:, 1:] - image[:, :-1]
    data = b"".join(bytes([filtered]) + line.tobytes() for line in lines)
    header = struct.pack(">II", width, height) + bytes((8, 6, 0, 0, 0))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def decoded(picture: bytes) -> np.ndarray:
    """Height x width x RGB."""
    with Image.open(BytesIO(picture)) as image:
        return np.asarray(image.convert("RGB"))
