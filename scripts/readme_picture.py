"""The README's picture, and that of position on the page of real models: `python -m
scripts.readme_picture`.

docs/first.png: what Qwen2.5-Coder-1.5B answers to n ones, how far n and n + 1 ones are apart where
their answers part (the cells that `python -m scripts.behaviour` stored), and the same distance at
the last token of the paper's prompt on Gemma 3 270M. docs/findings/position.png: sensitivity by
position in natural texts on Gemma. What is measured of Gemma is kept in artefacts/readme. Cost:
seven minutes of one core, and 4 GB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

import ostools as ost
from ostools.reporting.charts.profile import position_curves
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.forms import BAND, curve, log_rows
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.notebook import picture_of
from scripts.behaviour.collapse import pairs
from scripts.behaviour.page import asked
from scripts.behaviour.states import PARTING

MODEL, DTYPE, SITE = "gemma-3-270m", "bfloat16", "y"
ROOT = Path(__file__).parents[1]
STORE, PICTURE, POSITION = (
    ROOT / "artefacts" / "readme",
    ROOT / "docs" / "first.png",
    ROOT / "docs/findings/position.png",
)
WIDTH, HEIGHT = 270, 230
ONES = (2, 140)
"""First and last number of ones on the axes of the two panels of Qwen; an answer without a number
stands at the last.
"""
DISTANCE, NOISE = "distance of n and n + 1", f"rounding noise of {DTYPE}"
HUES = {
    "right": theme.colour("right"),
    "wrong": theme.colour("wrong"),
    DISTANCE: theme.INK,
    NOISE: theme.colour("full"),
}


def measured(name: str, measure: Any) -> Any:
    """The stored result of that name; measured where there is none."""
    path = STORE / f"{name}.parquet"
    if not path.is_file():
        STORE.mkdir(parents=True, exist_ok=True)
        measure(ost.load_model(MODEL, dtype="float32")).save(path)
    return ost.load_result(path)


def answers_panel() -> Any:
    """Answers to n ones against n, right or wrong; triangles at the top hold no number."""
    rows = asked("ones")
    frame = pd.DataFrame(
        {"n": rows["key"].astype(float), "answer": rows["number"].astype(float).fillna(ONES[1])}
    )
    frame["series"] = np.where(rows["correct"].astype(bool), "right", "wrong")
    frame["shape"] = np.where(rows["number"].isna(), "triangle-up", "circle")
    y = alt.Y("answer:Q", title="answer", **_ones_axis())
    shape = alt.Shape("shape:N", scale=None)
    points = draw.rows(frame).mark_point(filled=True, size=42, opacity=0.8, clip=False)
    diagonal = draw.rows(pd.DataFrame({"n": ONES, "answer": ONES})).mark_line(
        color=theme.INK, strokeWidth=1, opacity=0.5
    )
    marks = [diagonal.encode(x=_n(), y=y), points.encode(x=_n(), y=y, color=_hue(), shape=shape)]
    return draw.panel(
        marks,
        WIDTH,
        HEIGHT,
        "To 12 and to 48 ones it answers 11",
        "Qwen2.5-Coder-1.5B-Instruct; triangles hold no number",
    )


def apart_panel() -> Any:
    """Distance of y between n and n + 1 ones where their right answers part, and bfloat16's noise
    of it.
    """
    rows = pairs("ones", PARTING).dropna(subset="right")
    frame = rows[["distance", "noise"]].astype(float).assign(n=rows["key"].astype(float))
    frame["series"] = np.where(rows["right"].astype(bool), "right", "wrong")
    scale = alt.Scale(type="log", domain=[1, 100], nice=False)
    axis = alt.Axis(values=[1, 3, 10, 30, 100], format="~g")
    y, noise_y = (
        alt.Y(f"{name}:Q", title="L2 distance of y", scale=scale, axis=axis)
        for name in ("distance", "noise")
    )
    noise = draw.rows(frame.assign(series=NOISE)).mark_line(strokeWidth=1.5)
    points = draw.rows(frame).mark_point(filled=True, size=42, opacity=0.8)
    marks = [
        noise.encode(x=_n(), y=noise_y, color=_hue()),
        points.encode(x=_n(), y=y, color=_hue()),
    ]
    return draw.panel(
        marks,
        WIDTH,
        HEIGHT,
        "n and n + 1 ones are still apart there",
        "Qwen, where the two right answers part",
    )


def collapse_panel(gemma: Any) -> Any:
    """The distance at y and the noise of its dtype; shaded, the lengths at which the pair is
    hidden.
    """
    of_site = f"site == '{SITE}' and dtype == '{DTYPE}'"
    at_y = gemma.frame.query(f"{of_site} and per == 'vector' and norm == 'l2'").set_index("length")
    curves: Any = pd.concat(
        {DISTANCE: at_y["float64_distance"], NOISE: at_y["pair_noise"]}, names=["series"]
    )
    rows, y = log_rows(curves.rename("value").reset_index(), "L2 distance of y")
    x = axes.length_axis(rows["length"], "n, ones in the prompt")
    hidden = gemma.hidden_ranges().query(of_site)
    ranges = draw.rows(hidden[["first", "last"]].assign(length=hidden["first"]))
    shade = ranges.encode(x=x, x2="last:Q", color=alt.value(HUES[NOISE])).mark_rect(opacity=0.15)
    longest = max(hidden.itertuples(), key=lambda row: row.tried)
    title = f"bfloat16 hides one more from {longest.first} ones on"
    words = f"Gemma 3 270M; shaded: hidden at {longest.hidden} of {longest.tried} lengths"
    return draw.panel([shade, *curve(rows, x, y, _hue())], WIDTH, HEIGHT, title, words)


def position_panel(position: Any) -> Any:
    """The mean norm at each position over the middle third's, with its 95% interval over passages."""
    rows, y = log_rows(
        position_curves(position), "norm of ∂y/∂v over the middle third's", ("low", "high")
    )
    x = axes.length_axis(rows["position"], "position in a natural text", "position", log=False)
    third = (int(rows["position"].max()) + 1) / 3
    edges = [
        mark for edge in (third, 2 * third) for mark in draw.line_at("x", "position", edge - 0.5)
    ]
    marks = curve(rows, x, y, alt.value(theme.colour("full")), bands=[BAND])
    title = "Sensitivity of the last token by position, Gemma 3 270M"
    return draw.panel([*edges, *marks], 600, HEIGHT, title, *contrast_words(position))


def _ones_axis() -> dict[str, Any]:
    scale = alt.Scale(type="log", domain=list(ONES), nice=False, clamp=True)
    return {"scale": scale, "axis": alt.Axis(values=[2, 5, 10, 20, 50, 100], format="~g")}


def _n() -> Any:
    return alt.X("n:Q", title="n, ones in the question", **_ones_axis())


def _hue() -> Any:
    return draw.hue(
        "series",
        HUES,
        orient="bottom",
        columns=4,
        symbolType="circle",
        symbolStrokeWidth=0,
        symbolSize=70,
    )


def main() -> None:
    panels = [answers_panel(), apart_panel(), collapse_panel(measured("pairs", _pairs))]
    _draw(
        PICTURE, [panels], "Qwen errs long before its states collapse; Gemma's states do collapse"
    )
    _draw(POSITION, [[position_panel(measured("position", _position))]], "")


def _pairs(model: Any) -> Any:
    return ost.collapse(model, "figure-5a", lengths=range(1, 513), dtypes=[DTYPE])


def _position(model: Any) -> Any:
    return ost.measure.position_effect(model, untrained=False)


def _draw(path: Path, panels: Any, title: str) -> None:
    path.write_bytes(
        picture_of(draw.figure(panels, title, spacing=28).to_dict(validate=False), 1.2)
    )


if __name__ == "__main__":
    main()
