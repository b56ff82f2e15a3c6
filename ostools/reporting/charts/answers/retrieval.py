"""The U-shape: by the place of the wanted record, how often it is found, how likely its value, how sensitive y_n is to it."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.retrieval import Retrieval
from ostools.ground.words import number, short_name
from ostools.reporting.forms.curve import curve, fitted, shares
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


def retrieval_chart(result: Retrieval) -> Any:
    """Three panels over one axis of positions: the share of seeds that found the value, with Wilson's 95% interval; log p of
    the right answer; the mean norm over the wanted record's tokens, and over all others. Thin lines: seeds; thick: their mean.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    axes.require_finite(frame["sensitivity_mean"], "a retrieval run")
    length = int(frame["length"].iloc[0])
    parts = [
        frame[["position", "seed"]].assign(value=frame[column], series=of)
        for column, of in (("sensitivity_mean", _WANTED), ("sensitivity_others", _OTHERS))
    ]
    norms, y = fitted(pd.concat(parts, ignore_index=True), f"mean {parameters['norm']} norm")
    estimated = "; estimated" if (frame["method"] != "exact").any() else ""
    of = f"norm of d y_n / d v_i^(0) ({parameters['linearisation']} derivative), mean over tokens i{estimated}"
    likely = frame[["position", "seed"]].assign(value=frame["log_probability"], series=_WANTED)
    log_p = {"title": "log p(right answer), nats", "scale": alt.Scale(zero=False), "axis": alt.Axis(tickCount=4)}
    panels = [
        _found(frame, _ANOTHER if _ambiguous(result) else ""),
        _seeds(likely, draw.quiet(_x(frame)), log_p),
        _seeds(norms, _x(frame), y, note=of),
    ]
    title = f"Retrieving one of {length} records on {short_name(result.provenance.model)}, by where it stands"
    notes = [f"{_made(result)} Thin: seeds; thick: their mean.", *_ends(result)]
    return draw.figure([[panel] for panel in panels], title, notes, between=10)


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


def _x(frame: Frame) -> alt.X:
    places = sorted(set(frame["position"].tolist()))
    return alt.X(
        "position:Q",
        title=f"position of the wanted record (0 to {int(frame['length'].iloc[0]) - 1})",
        scale=alt.Scale(domain=[places[0], max(places[-1], places[0] + 1)], nice=False, padding=10),
        axis=alt.Axis(grid=False, values=places, format="d", tickCount=len(places) + 1),
    )


def _found(frame: Frame, note: str) -> Any:
    table = frame.groupby("position", as_index=False)["found"].agg(["sum", "size"])
    ends = [wilson(int(right), int(asked)) for right, asked in zip(table["sum"], table["size"], strict=True)]
    table = table.assign(value=table["sum"] / table["size"], low=[e.low for e in ends], high=[e.high for e in ends])
    x, colour = draw.quiet(_x(frame)), theme.colour("full")
    bars = draw.rows(table).mark_rule(strokeWidth=1.2, color=colour).encode(x=x, y="low:Q", y2="high:Q")
    told, y = ["position:Q", "sum:Q", "size:Q"], shares("share found", tickCount=3)
    marks = [bars, *curve(table, x, y, alt.value(colour), width=2, points=34, tooltip=told)]
    return draw.layers(*marks, width=WIDTH, height=HEIGHT * 0.8, **({"title": draw.heading(note)} if note else {}))


def _seeds(rows: Frame, x: alt.X, y: dict[str, Any], note: str = "") -> Any:
    """A thin line a seed, and their mean with points."""
    column = "shown" if "shown" in rows else "value"
    means = rows.groupby(["series", "position"], as_index=False)["value"].mean()
    colours = {_WANTED: theme.colour("full"), _OTHERS: theme.colour("float64")}
    hue, told = draw.hue("series", colours, columns=2, symbolStrokeWidth=3), ["position:Q", "series:N"]
    thin = curve(rows.assign(run=rows["seed"]), x, y, hue, width=0.8, tooltip=["seed:Q", *told], opacity=0.35)
    thick = curve(means.assign(**{column: means["value"]}), x, y, hue, width=2.2, points=30, tooltip=told)
    heading = {"title": draw.heading(note)} if note else {}
    return draw.layers(*thin, *thick, width=WIDTH, height=HEIGHT, **heading)
