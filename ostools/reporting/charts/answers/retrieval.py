"""The U-shape: by the place of the wanted record, how often it is found, how likely its value, how sensitive y_n is to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.retrieval import Retrieval
from ostools.ground.words import number, short_name
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of
from ostools.theory.statistics.intervals import wilson

WIDTH, HEIGHT = 540, 120
_DIGITS = 10
"""Of more records than these, whose values are digits, two hold the same value."""
_WANTED, _OTHERS = "tokens of the wanted record", "all other tokens"
_QUANTITIES = {"log_probability": "log p", "log_sensitivity": "Sensitivity"}
_ANOTHER = "more records than digits: another may hold the wanted value too, and be what was found"
_ESTIMATED = "estimated"


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
        subtitle=[f"{_made(result)} Thin: seeds; thick: their mean.", *_ends(result)],
    )
    panels = [_found(frame, _ANOTHER if _ambiguous(result) else ""), _likely(frame), _sensitive(frame, parameters)]
    return axes.themed(alt.vconcat(*panels, title=title, spacing=10))


def retrieval_notes(result: Retrieval) -> list[str]:
    """How the run was made, what its numbers may hide, and whether the ends lie above what is between."""
    frame, parameters = frame_of(result), result.provenance.parameters
    notes = [_made(result)]
    notes += [f"There are {_ANOTHER}."] if _ambiguous(result) else []
    notes.append(f"Sensitivity: mean norm of d y_n / d v_i^(0) ({parameters['linearisation']} Jacobian) over tokens i.")
    notes += _ends(result)
    notes += [f"Sensitivity is {_ESTIMATED}."] if (frame["method"] != "exact").any() else []
    return notes


def _made(result: Retrieval) -> str:
    seeds, records = frame_of(result)["seed"].nunique(), str(result.provenance.parameters["records"])
    kind = {"words": "word and digit", "uuid": "two UUIDs"}.get(records, "from a file")
    drawn = f"{seeds} seeds" if seeds > 1 else "One seed"
    return f"{drawn} ({kind} a record); within a seed only the wanted record moves."


def _ambiguous(result: Retrieval) -> bool:
    """Whether two records have to share a value."""
    return result.provenance.parameters["records"] == "words" and int(frame_of(result)["length"].iloc[0]) > _DIGITS


def _ends(result: Retrieval) -> list[str]:
    """A line a quantity: the first and the last position against the mean of those between."""
    rows, notes = [dict(row) for row in result.ends.to_dict("records")], []
    for quantity, words in _QUANTITIES.items():
        told = [f"{row['end']} {_difference(row)}" for row in rows if row["quantity"] == quantity]
        if told:
            notes.append(f"{words} against the mean of the positions between: {'; '.join(told)}.")
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


def _found(frame: Frame, note: str) -> Any:
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
        **({"title": draw.heading(note)} if note else {}),
    )


def _likely(frame: Frame) -> Any:
    data = (
        frame[["position", "seed", "log_probability"]].rename(columns={"log_probability": "value"}).assign(of=_WANTED)
    )
    y = alt.Y("value:Q", title="log p(right answer), nats", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    return _seeds(data, frame, y, last=False)


def _sensitive(frame: Frame, parameters: Mapping[str, Any]) -> Any:
    parts = [
        frame[["position", "seed"]].assign(value=frame[column], of=of)
        for column, of in (("sensitivity_mean", _WANTED), ("sensitivity_others", _OTHERS))
    ]
    data = pd.concat(parts, ignore_index=True)
    y = draw.log_y(data["value"], f"mean {parameters['norm']} norm", field="value")
    estimated = [_ESTIMATED] if (frame["method"] != "exact").any() else []
    of = f"norm of d y_n / d v_i^(0) ({parameters['linearisation']} derivative), mean over tokens i"
    return _seeds(data, frame, y, last=True, note="; ".join([of, *estimated]))


def _seeds(data: Frame, frame: Frame, y: alt.Y, last: bool, note: str = "") -> Any:
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
        **({"title": draw.heading(note)} if note else {}),
    )
