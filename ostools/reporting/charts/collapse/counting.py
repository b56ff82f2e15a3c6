"""Counting against Corollary 6.2: above, how far the prompts of n and n + 1 items are apart; below, what the model answers."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.measure.answers.counting import Counting
from ostools.reporting.charts.answers.errors import LOOKS, NO_NUMBER, error_points, largest_error
from ostools.reporting.forms.curve import curve, fitted, numbers
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, Row, frame_of

WIDTH, HEIGHT, BELOW = 300, 190, 120
_FLOORS = {
    "distance": ("distance of n and n + 1 at y (float64)", [1, 0]),
    "pair_noise": ("rounding noise of this difference", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
_HOLLOW = "Hollow dots: the right answers to n and n + 1 begin with different tokens, so the prediction can be tested."
_RIGHT, _WRONG = "right", "wrong number"
_OUTCOMES = {_RIGHT: ("right", "circle"), _WRONG: ("wrong", "cross"), **LOOKS}


def counting_chart(result: Counting) -> alt.VConcatChart:
    """A column a dtype. Above: the float64 distance at y, its noise and the machine line, hollow dots where the right answers'
    first tokens differ, and a line at the predicted impossible count. Below: the answers' absolute errors. A dotted line stands
    where training ends.
    """
    frame = frame_of(result)
    axes.require_finite(frame["distance"], "a counting curve")
    task = str(frame["task"].iloc[0])
    end = (result.provenance.model.get("trained_lengths") or {}).get(task)
    x = numbers(*_reach(frame), "length", "count n (items of the sequence)", padding=6)
    summary = [row for _, row in result.summary.iterrows()]
    keys = ["dtype", "length", "right_ones_differ"]
    rows, y = fitted(
        frame.melt(id_vars=keys, value_vars=list(_FLOORS), var_name="quantity").dropna(subset="value"),
        "L2 distance at y",
    )
    above = [_distances(rows, y, row, draw.quiet(x), _marks(row, end, frame, named=True)) for row in summary]
    below = [_answers(frame, row, x, _marks(row, end, frame, named=False)) for row in summary]
    notes = [*map(_subtitle, summary), _HOLLOW] + ([axes.ZERO_NOTE] if (rows["value"] == 0).any() else [])
    title = f"{task}: distance between the prompts of n and n + 1 items, and the answers"
    return draw.figure([above, below], title, notes, between=16, color="shared", shape="shared", strokeDash="shared")


def _reach(frame: Frame) -> tuple[int, int]:
    return int(frame["length"].min()), int(frame["length"].max())


def _subtitle(row: Row) -> str:
    """Predicted, then measured."""
    error = "none" if pd.isna(row["first_error"]) else f"n = {row['first_error']}"
    return (
        f"{row['dtype']}: predicted impossible where the pair is hidden: {row['impossible_status']}; "
        f"measured first wrong number: {error}; together: {row['verdict']}"
    )


def _distances(rows: Frame, y: dict[str, Any], row: Row, x: alt.X, marks: list[Any]) -> alt.LayerChart:
    dash = draw.dashes(_FLOORS, rows["quantity"], symbolStrokeColor=theme.colour("float64"))
    here, colour = rows[rows["dtype"] == row["dtype"]], theme.colour(str(row["dtype"]))
    drawn = curve(here, x, y, alt.value(colour), dash=dash, tooltip=["length:Q", "quantity:N"])
    differ = here[here["right_ones_differ"].astype(bool) & (here["quantity"] == "distance")]
    hollow = draw.rows(differ).mark_point(size=22, color=colour, filled=False, opacity=1, strokeWidth=1.1)
    drawn.append(hollow.encode(x=x, y=alt.Y("shown:Q", **y)))
    return draw.layers(
        *drawn, *marks, title=alt.TitleParams(str(row["dtype"]), fontSize=12), width=WIDTH, height=HEIGHT
    )


def _answers(frame: Frame, row: Row, x: alt.X, marks: list[Any]) -> alt.LayerChart:
    here = frame[frame["dtype"] == row["dtype"]]
    outcome = here["correct"].map({True: _RIGHT, False: _WRONG})
    outcome = outcome.where(here["number"].notna(), here["kind"].map(NO_NUMBER))
    points = error_points(here, outcome, x, largest_error(frame), _OUTCOMES, filled=True, size=32)
    return draw.layers(points, *marks, width=WIDTH, height=BELOW)


def _marks(row: Row, end: int | None, frame: Frame, named: bool) -> list[Any]:
    """Vertical lines at the predicted impossible count and where training ends, for both panels; `named`: with words."""
    first, last = _reach(frame)
    places: list[tuple[int, str, dict[str, Any]]] = []
    if not pd.isna(row["impossible_from"]):
        looks = {"colour": theme.colour(str(row["dtype"])), "dash": theme.DASHES["predicted"]}
        places.append((int(row["impossible_from"]), f"predicted impossible from {row['impossible_from']}", looks))
    if end is not None and first <= end < last:
        places.append((end, f"trained to {end}", {"colour": theme.colour("float64"), "dash": [1, 2]}))
    return [
        mark
        for number, (place, words, looks) in enumerate(places)
        for mark in draw.line_at(
            "x",
            "length",
            place,
            words=words if named else "",
            height=0.6 * HEIGHT - 15 * number,
            side="left" if place > (first + last) / 2 else "right",
            **looks,
        )
    ]
