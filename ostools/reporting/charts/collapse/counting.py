"""Counting against Corollary 6.2: above, how far the prompts of n and n + 1 items are apart; below, what the model answers."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.measure.answers.counting import Counting
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, Row, frame_of

WIDTH, HEIGHT, BELOW = 300, 190, 120
_FLOORS = {
    "distance": ("distance of n and n + 1 at y (float64)", [1, 0]),
    "pair_noise": ("rounding noise of this difference", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
_COUNT = "count n (items of the sequence)"
_HOLLOW = "Hollow dots: the right answers to n and n + 1 begin with different tokens, so the prediction can be tested."
_RIGHT, _WRONG = "right", "wrong number"
_NONE = {kind: f"no number: {kind} (at the top edge)" for kind in (SOMETHING_ELSE, CUT_OFF)}
_OUTCOMES = {
    _RIGHT: ("right", "circle"),
    _WRONG: ("wrong", "cross"),
    _NONE[SOMETHING_ELSE]: (SOMETHING_ELSE, "triangle-down"),
    _NONE[CUT_OFF]: (CUT_OFF, "triangle-right"),
}


def counting_chart(result: Counting) -> alt.HConcatChart:
    """A column a dtype. Above: the float64 distance at y, its noise and the machine line, hollow dots where the right answers'
    first tokens differ, and a line at the predicted impossible count. Below: the answers' absolute errors. A dotted line stands
    where training ends.
    """
    frame = frame_of(result)
    axes.require_finite(frame["distance"], "a counting curve")
    end = (result.provenance.model.get("trained_lengths") or {}).get(str(frame["task"].iloc[0]))
    first, last = int(frame["length"].min()), int(frame["length"].max())
    summary: Any = result.summary
    rows = [row for _, row in summary.iterrows()]
    curves, floor = axes.floored(_curves(frame))
    columns = [
        alt.vconcat(
            _distances(curves, floor, row, _length_axis(first, last, None), _marks(row, end, frame, named=True)),
            _answers(frame, row, _length_axis(first, last, _COUNT), _marks(row, end, frame, named=False)),
            spacing=16,
        )
        for row in rows
    ]
    subtitle = [*map(_subtitle, rows), _HOLLOW] + ([axes.ZERO_NOTE] if (curves["value"] == 0).any() else [])
    task = str(frame["task"].iloc[0])
    title = alt.TitleParams(
        f"{task}: distance between the prompts of n and n + 1 items, and the answers", subtitle=subtitle
    )
    chart = alt.hconcat(*columns, title=title, spacing=24).resolve_scale(
        color="shared", shape="shared", strokeDash="shared"
    )
    return axes.themed(chart)


def _subtitle(row: Row) -> str:
    """Predicted, then measured."""
    error = "none" if pd.isna(row["first_error"]) else f"n = {row['first_error']}"
    return (
        f"{row['dtype']}: predicted impossible where the pair is hidden: {row['impossible_status']}; "
        f"measured first wrong number: {error}; "
        f"together: {row['verdict']}"
    )


def _curves(frame: Frame) -> Frame:
    keys = ["dtype", "length", "right_ones_differ"]
    rows: Frame = frame.melt(id_vars=keys, value_vars=list(_FLOORS), var_name="quantity").dropna(subset="value")
    return rows.assign(right_ones_differ=rows["right_ones_differ"].astype(bool) & (rows["quantity"] == "distance"))


def _length_axis(first: int, last: int, title: str | None) -> alt.X:
    return alt.X(
        "length:Q",
        title=title,
        scale=alt.Scale(domain=[first, max(last, first + 1)], nice=False, padding=6),
        axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(first, last, 9)),
    )


def _distances(curves: Frame, floor: float | None, row: Row, length: alt.X, marks: list[alt.Chart]) -> alt.LayerChart:
    data = curves[curves["dtype"] == row["dtype"]]
    dashes = draw.dashes(_FLOORS, curves["quantity"], symbolStrokeColor=theme.colour("float64"))
    tooltip = ["length:Q", "quantity:N", draw.VALUE]
    base = draw.rows(data).encode(x=length, y=draw.log_y(curves["shown"], "L2 distance at y", floor), tooltip=tooltip)
    colour = theme.colour(str(row["dtype"]))
    layers: list[Any] = [
        base.mark_line(strokeWidth=1.5, color=colour).encode(strokeDash=dashes),
        base.transform_filter("datum.right_ones_differ").mark_point(
            size=22, color=colour, filled=False, opacity=1, strokeWidth=1.1
        ),
        base.mark_circle(size=24, opacity=0),
    ]
    layers += draw.zeros(base, floor)
    title = alt.TitleParams(str(row["dtype"]), fontSize=12)
    return draw.layers(*layers, *marks, title=title, width=WIDTH, height=HEIGHT)


def _answers(frame: Frame, row: Row, length: alt.X, marks: list[alt.Chart]) -> alt.LayerChart:
    here = frame[frame["dtype"] == row["dtype"]]
    largest = max(1, int(frame["absolute_error"].max()) if frame["absolute_error"].notna().any() else 1)
    outcome = here["correct"].map({True: _RIGHT, False: _WRONG})
    outcome = outcome.where(here["number"].notna(), here["kind"].map(_NONE))
    top = 2 * largest + 1  # above every error, for the answers that have none
    error = here["absolute_error"].astype("Float64").fillna(float(top)).astype(float)
    data: Frame = here[["length", "key", "answer"]].assign(outcome=outcome, error=error)
    data = data.assign(answer=[theme.shown(text, 40) for text in data["answer"]])
    colours, shapes = zip(*_OUTCOMES.values(), strict=True)
    legend = alt.Legend(
        title=None, symbolStrokeColor=theme.colour("float64"), symbolType=alt.Undefined, symbolSize=60, columns=2
    )
    kind = alt.Scale(domain=list(_OUTCOMES), range=[theme.colour(name) for name in colours])
    shown = draw.rows(data).mark_point(size=32, filled=True)
    shown = shown.encode(
        x=length,
        y=alt.Y(
            "error:Q",
            title="absolute error",
            scale=alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6),
            axis=alt.Axis(values=_ticks(largest), format=",d" if largest < 10**5 else ".0e"),
        ),
        color=alt.Color("outcome:N", scale=kind, legend=legend),
        shape=alt.Shape("outcome:N", scale=alt.Scale(domain=list(_OUTCOMES), range=list(shapes)), legend=legend),
        tooltip=["length:Q", "key:N", "answer:N", "outcome:N"],
    )
    return draw.layers(shown, *marks, width=WIDTH, height=BELOW)


def _ticks(largest: int) -> list[int]:
    """0, 1, and powers of ten (every second, third, ... where there are many)."""
    powers = range(len(str(largest)))
    return [0, *(10**power for power in powers if power % (1 + len(powers) // 5) == 0)]


def _marks(row: Row, end: int | None, frame: Frame, named: bool) -> list[alt.Chart]:
    """Vertical lines at the predicted impossible count and where training ends, for both panels; `named`: with words."""
    first, last = int(frame["length"].min()), int(frame["length"].max())
    places: list[tuple[int, str, str, list[float]]] = []
    if not pd.isna(row["impossible_from"]):
        colour = theme.colour(str(row["dtype"]))
        places.append(
            (int(row["impossible_from"]), f"predicted impossible from {row['impossible_from']}", colour, [9, 3, 2, 3])
        )
    if end is not None and first <= end < last:
        places.append((end, f"trained to {end}", theme.colour("float64"), [1, 2]))
    lines: list[Any] = []
    for number, (place, words, colour, dash) in enumerate(places):
        right = place > (first + last) / 2
        at: Any = alt.Chart(alt.InlineData(values=[{"length": place, "words": words if named else ""}]))
        at = at.encode(x="length:Q", color=alt.value(colour))
        text = at.mark_text(align="right" if right else "left", dx=-4 if right else 4, baseline="bottom", fontSize=10)
        lines += [at.mark_rule(strokeWidth=1.2, strokeDash=dash)]
        lines += [text.encode(y=alt.value(0.65 * HEIGHT - 15 * number), text="words:N")]
    return lines
