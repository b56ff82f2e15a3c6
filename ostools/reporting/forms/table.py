"""Form: a table. A mark, or a cell with its words, where a row and a column meet; all rows and columns are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ostools.reporting.look import draw, theme
from ostools.results import Frame


def by_name(field: str, looks: Mapping[str, tuple[str, str]], legend: alt.Legend | None) -> dict[str, Any]:
    """Colour and shape of each name; `looks`: by name what the theme calls its colour, and its shape."""
    colours = [theme.colour(colour) for colour, _ in looks.values()]
    shapes = [shape for _, shape in looks.values()]
    scales = [alt.Scale(domain=list(looks), range=values) for values in (colours, shapes)]
    return {
        "color": alt.Color(f"{field}:N", scale=scales[0], legend=legend),
        "shape": alt.Shape(f"{field}:N", scale=scales[1], legend=legend),
    }


def marked(
    rows: Frame, column: alt.X, row: alt.Y, looks: Mapping[str, Any], tooltip: Sequence[Any], size: int = 34
) -> Any:
    """A mark where each row and column meet; `looks`: of `by_name`, and an offset where several meet in one place."""
    points = draw.rows(rows).mark_point(filled=True, size=size, strokeWidth=2, opacity=1)
    return points.encode(x=column, y=row, tooltip=list(tooltip), **looks)


def worded(rows: Frame, column: alt.X, row: alt.Y, hue: Any, words: str, tooltip: Sequence[Any]) -> list[Any]:
    """A cell in the colour of its name, with its words in it."""
    base = draw.rows(rows).encode(x=column, y=row, tooltip=list(tooltip))
    text = base.mark_text(fontSize=9, color="black").encode(text=f"{words}:N")
    return [base.mark_rect(opacity=0.8).encode(color=hue), text]
