"""The U-shape: by the place of the wanted record, how often it is found, how likely its value, how sensitive y_n is to it."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.retrieval import Retrieval
from ostools.ground.words import number, short_name
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of
from ostools.theory.statistics.intervals import wilson

WIDTH, HEIGHT = 540, 120
_WANTED, _OTHERS = "tokens of the wanted record", "all other tokens"
_QUANTITIES = {"log_probability": "log p", "log_sensitivity": "Sensitivity"}


def retrieval_chart(result: Retrieval) -> alt.VConcatChart:
    """Three panels over one axis of positions: the share of seeds that found the value, with Wilson's 95% interval; log p of
    the right answer; the mean norm over the wanted record's tokens, and over all others. Thin lines: seeds; thick: their mean.
    """
    frame = frame_of(result)
    axes.require_finite(frame["sensitivity_mean"], "a retrieval run")
    parameters = result.provenance.parameters
    length = int(frame["length"].iloc[0])
    title = alt.TitleParams(
        f"Retrieving one of {length} records on {short_name(result.provenance.model)}, by where it stands",
        subtitle=retrieval_notes(result),
    )
    panels = [_found(frame), _likely(frame), _sensitive(frame, str(parameters["norm"]))]
    return axes.themed(alt.vconcat(*panels, title=title, spacing=10))


def retrieval_notes(result: Retrieval) -> list[str]:
    """How the run was made, and whether the ends lie above what is between."""
    frame = frame_of(result)
    seeds = frame["seed"].nunique()
    records = result.provenance.parameters["records"]
    kind = {"words": "word and digit", "uuid": "two UUIDs"}.get(str(records), "from a file")
    drawn = f"{seeds} seeds" if seeds > 1 else "One seed"
    notes = [f"{drawn} ({kind} a record); within a seed only the wanted record moves. Thin: seeds; thick: their mean."]
    if records == "words" and int(frame["length"].iloc[0]) > 10:
        notes.append(
            "There are more records than digits. Another record may hold the wanted value too, and may be what was found."
        )
    linearisation = result.provenance.parameters["linearisation"]
    notes.append(f"Below: mean norm of d y_n / d v_i^(0) ({linearisation} Jacobian) over tokens i.")
    rows = [dict(row) for row in result.ends.to_dict("records")]
    for quantity, words in _QUANTITIES.items():
        told = [f"{row['end']} {_difference(row)}" for row in rows if row["quantity"] == quantity]
        if told:
            notes.append(f"{words} against the mean of the positions between: {'; '.join(told)}.")
    if (frame["method"] == "estimate").any():
        notes.append("Sensitivity is estimated. An operator norm is drawn at its lower end.")
    return notes


def _difference(row: dict[str, Any]) -> str:
    """A difference of log p in nats, one of log sensitivity as a factor; its interval and verdict."""
    factor = row["quantity"] == "log_sensitivity"
    middle, low, high = (math.exp(row[name]) if factor else row[name] for name in ("difference", "low", "high"))
    interval = f" ({number(low)} to {number(high)})" if pd.notna(low) else ""
    return f"{f'× {number(middle)}' if factor else f'{middle:+.2g} nats'}{interval}, {row['verdict']}"


def _x(frame: Frame, last: bool) -> alt.X:
    places = sorted(set(frame["position"].tolist()))
    return alt.X(
        "position:Q",
        title=f"position of the wanted record (0 to {int(frame['length'].iloc[0]) - 1})" if last else None,
        scale=alt.Scale(domain=[places[0], max(places[-1], places[0] + 1)], nice=False, padding=10),
        axis=alt.Axis(grid=False, values=places, format="d", labels=last, tickCount=len(places) + 1),
    )


def _found(frame: Frame) -> Any:
    table = frame.groupby("position", as_index=False)["found"].agg(["sum", "size"])
    ends = [wilson(int(right), int(asked)) for right, asked in zip(table["sum"], table["size"], strict=True)]
    data: Frame = table.assign(
        share=table["sum"] / table["size"], low=[e.low for e in ends], high=[e.high for e in ends]
    )
    base = draw.rows(data).encode(
        x=_x(frame, last=False), color=alt.value(theme.colour("full")), tooltip=["position:Q", "sum:Q", "size:Q"]
    )
    y = alt.Y("share:Q", title="share found", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=3))
    bars = base.mark_rule(strokeWidth=1.2).encode(y=alt.Y("low:Q"), y2="high:Q")
    return draw.layers(
        bars,
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_circle(size=34).encode(y=y),
        width=WIDTH,
        height=HEIGHT * 0.8,
    )


def _likely(frame: Frame) -> Any:
    data = (
        frame[["position", "seed", "log_probability"]].rename(columns={"log_probability": "value"}).assign(of=_WANTED)
    )
    y = alt.Y("value:Q", title="log p(right answer), nats", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    return _seeds(data, frame, y, last=False)


def _sensitive(frame: Frame, norm: str) -> Any:
    parts = [
        frame[["position", "seed"]].assign(value=frame[column], of=of)
        for column, of in (("sensitivity_mean", _WANTED), ("sensitivity_others", _OTHERS))
    ]
    data = pd.concat(parts, ignore_index=True)
    return _seeds(data, frame, draw.log_y(data["value"], f"mean {norm} norm", field="value"), last=True)


def _seeds(data: Frame, frame: Frame, y: alt.Y, last: bool) -> Any:
    means = data.groupby(["of", "position"], as_index=False)["value"].mean().assign(seed=-1)
    rows = pd.concat([data.assign(mean=False), means.assign(mean=True)], ignore_index=True)
    colours = {_WANTED: theme.colour("full"), _OTHERS: theme.colour("float64")}
    hue = draw.hue("of", colours, columns=2, symbolStrokeWidth=3)
    tooltip = ["position:Q", "seed:Q", draw.VALUE]
    base = draw.rows(rows).encode(x=_x(frame, last), y=y, color=hue, detail="seed:N")
    thin = base.transform_filter("!datum.mean").mark_line(strokeWidth=0.8, opacity=0.35)
    thick = base.transform_filter("datum.mean")
    return draw.layers(
        thin,
        thick.mark_line(strokeWidth=2.2),
        thick.mark_circle(size=30).encode(tooltip=tooltip),
        width=WIDTH,
        height=HEIGHT,
    )
