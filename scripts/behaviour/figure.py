"""The figure of docs/findings/behaviour.md: answers against the right numbers, and how far n and n
+ 1 are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.reporting.style import draw, theme
from ostools.reporting.style.notebook import picture_of
from scripts.behaviour.collapse import measured_states, pairs
from scripts.behaviour.page import WORDS, asked
from scripts.behaviour.states import PARTING

_KINDS = ("right", "wrong")
_FEWEST, _MOST = 2, 140
_SIZE = {"width": 250}


def _channel(
    field: str, title: str, low: float, high: float, values: Sequence[int | float]
) -> dict[str, Any]:
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return {
        "shorthand": f"{field}:Q",
        "title": title,
        "scale": scale,
        "axis": alt.Axis(values=list(values), format="~g"),
    }


def _of_kind() -> alt.Color:
    scale = alt.Scale(domain=list(_KINDS), range=[theme.colour(kind) for kind in _KINDS])
    legend = alt.Legend(
        symbolType="circle", symbolSize=70, symbolStrokeWidth=0, direction="horizontal", columns=2
    )
    return alt.Color("kind:N", title=None, scale=scale, legend=legend)


def answers_panel(name: str) -> Any:
    """The answers against the right numbers; what holds no number stands at the top edge."""
    rows = asked(name)
    frame = pd.DataFrame(
        {
            "key": rows["key"].astype(float),
            "answer": rows["number"].astype(float).fillna(_MOST).clip(_FEWEST),
        }
    )
    frame["kind"] = np.where(rows["correct"].astype(bool), "right", "wrong")
    frame["number"] = np.where(rows["number"].isna(), "no number", "a number")
    frame = frame.groupby(["key", "answer", "kind", "number"], as_index=False).size()
    ticks = [2, 5, 10, 20, 50, 100]
    x = alt.X(**_channel("key", "right number", _FEWEST, _MOST, ticks))
    y = alt.Y(**_channel("answer", "answer", _FEWEST, _MOST, ticks))
    shape = alt.Shape(
        "number:N",
        title=None,
        scale=alt.Scale(domain=["a number", "no number"], range=["circle", "triangle-up"]),
        legend=None,
    )
    size = alt.Size("size:Q", scale=alt.Scale(domain=[1, 12], range=[34, 170]), legend=None)
    line = pd.DataFrame({"key": [_FEWEST, _MOST], "answer": [_FEWEST, _MOST]})
    diagonal = (
        draw.rows(line).mark_line(color=theme.INK, strokeWidth=1, opacity=0.5).encode(x=x, y=y)
    )
    points = (
        draw.rows(frame)
        .mark_point(filled=True, opacity=0.75, clip=False)
        .encode(x=x, y=y, color=_of_kind(), shape=shape, size=size)
    )
    return alt.layer(diagonal, points).properties(title=WORDS[name], height=210, **_SIZE)


def pairs_panel(name: str) -> Any:
    """The distance of each pair where their right answers part, bfloat16's noise of it, and of
    wrong answers the distance to the question that has as many ones as the model said."""
    rows = pairs(name, PARTING).dropna(subset="right")
    frame = rows[["distance", "noise"]].assign(key=rows["key"].astype(float))
    frame["kind"] = np.where(rows["right"].astype(bool), "right", "wrong")
    x = alt.X(**_channel("key", "right number n", _FEWEST, _MOST, [2, 5, 10, 20, 50, 100]))
    y = _channel("distance", "distance of y", 1, 100, [1, 3, 10, 30, 100])
    noise_axis: dict[str, Any] = y | {"shorthand": "noise:Q"}
    tick = draw.rows(frame).mark_tick(
        orient="horizontal", color=theme.INK, thickness=1.4, width=8, opacity=0.6
    )
    points = (
        draw.rows(frame)
        .mark_point(filled=True, size=42, opacity=0.8)
        .encode(x=x, y=alt.Y(**y), color=_of_kind())
    )
    marks = [tick.encode(x=x, y=alt.Y(**noise_axis)), points]
    said = f"distance_said_{PARTING}"
    if said in rows and rows[said].notna().any():
        other = rows[rows[said].notna()]
        other = pd.DataFrame(
            {"key": other["key"].astype(float), "distance": other[said].astype(float)}
        )
        diamond = draw.rows(other).mark_point(
            shape="diamond", size=46, filled=False, color=theme.INK, strokeWidth=1.1
        )
        marks.append(diamond.encode(x=x, y=alt.Y(**y)))
    return alt.layer(*marks).properties(height=190, **_SIZE)


def draw_figure(path: Path) -> None:
    names = list(measured_states())
    title = "Answers go wrong before n and n + 1 come close, and the same answer is given to states far apart"
    notes = [
        "Qwen2.5-Coder-1.5B-Instruct in bfloat16. Above: answers, larger for more of them; on the line they are right; "
        "triangles hold no number.",
        "Below: L2 distance of y between n and n + 1 where their right answers part (dots), bfloat16's noise of it (dashes), "
        "and of a wrong answer",
        "the distance to the question to which it would be right (diamonds).",
    ]
    figure = draw.figure(
        [[answers_panel(name) for name in names], [pairs_panel(name) for name in names]],
        title,
        notes,
        spacing=24,
    )
    path.write_bytes(picture_of(figure.to_dict(validate=False), 1.6))
