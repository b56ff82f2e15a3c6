"""The panel of absolute errors that counting and behaviour share, with a place for answers that hold no number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.forms.table import by_name
from ostools.reporting.look import draw, theme
from ostools.results import Column, Frame

NO_NUMBER = {kind: f"no number: {kind} (at the top edge)" for kind in (SOMETHING_ELSE, CUT_OFF)}
"""By the kind of an answer without a number, what a legend calls it."""
LOOKS = {
    NO_NUMBER[SOMETHING_ELSE]: (SOMETHING_ELSE, "triangle-down"),
    NO_NUMBER[CUT_OFF]: (CUT_OFF, "triangle-right"),
}


def largest_error(frame: Frame) -> int:
    """The largest absolute error, at least 1."""
    errors = frame["absolute_error"].dropna()
    return max(1, int(errors.max())) if len(errors) else 1


def error_axis(largest: int, top: float | int, **axis: Any) -> dict[str, Any]:
    """An axis from 0 to `top`, linear to 1 and logarithmic from there, with round numbers up to the largest error."""
    looks: dict[str, Any] = {"values": error_ticks(largest), "format": ",d" if largest < 10**5 else ".0e"}
    scale = alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6)
    return {"title": "absolute error", "scale": scale, "axis": alt.Axis(labelOverlap=False, **(looks | axis))}


def error_ticks(largest: int) -> list[int]:
    """0 and powers of ten (every second, third, ... where there are many), with 2 and 5 between them where there are few."""
    powers = range(len(str(largest)))
    if len(powers) <= 3:
        return [0, *(digit * 10**power for power in powers for digit in (1, 2, 5) if digit * 10**power <= 2 * largest)]
    return [0, *(10**power for power in powers if power % (1 + len(powers) // 5) == 0)]


def error_points(
    frame: Frame, names: Column, x: alt.X, largest: int, looks: Mapping[str, tuple[str, str]], **mark: Any
) -> Any:
    """A point an answer, above every error where it holds no number.

    names: what the legend calls each. looks: by such a name what the theme calls its colour, and its shape.
    """
    top = 2 * largest + 1
    error = frame["absolute_error"].astype("Float64").fillna(float(top)).astype(float)
    answers = [theme.shown(text, 60) for text in frame["answer"]]
    rows: Frame = frame[["length", "key"]].assign(answer=answers, outcome=names, error=error)
    neutral: dict[str, Any] = {"symbolStrokeColor": theme.colour("float64")} if mark.get("filled") else {}
    legend = alt.Legend(title=None, columns=2, symbolType=alt.Undefined, symbolSize=60, **neutral)
    points = draw.rows(rows).mark_point(strokeWidth=1.1, **mark)
    return points.encode(
        x=x,
        y=alt.Y("error:Q", **error_axis(largest, top)),
        tooltip=["length:Q", "key:N", "answer:N", "outcome:N"],
        **by_name("outcome", looks, legend),
    )
