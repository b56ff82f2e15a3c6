"""Collapse on a trained model beyond ones: a panel a prompt, with the sink's token and without it, and the law that fits."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments import Repeats
from ostools.measure.profiles.nulls import TRAINED
from ostools.reporting.charts.sensitivity.nulls import SOURCES
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

COLOURS = {"present": theme.colour("BOS present"), "absent": theme.colour("BOS absent")}
_WORDS = {"present": "with BOS", "absent": "without BOS"}


def repeats_chart(result: Repeats) -> alt.FacetChart:
    """||y - y*||_2 in float64 against the number of copies, log-log; thin: the law of the table `summary`, where one holds.

    What is below its rounding stands below the axis, and is told as at most that. With null models: the model's curve, and of
    each kind the median and the range over its draws, a panel a prompt and sink.
    """
    if len(set(frame_of(result)["source"])) > 1:
        return _before_training(result)
    frame: Frame = frame_of(result)
    summary: Any = result.summary
    tasks = list(dict.fromkeys(frame["task"]))
    parts = [frame.rename(columns={"distance": "value"}).assign(kind="measured")]
    parts += [_law(row, frame) for row in summary.to_dict("records") if np.isfinite(row["rate"])]
    rows = pd.concat(parts, ignore_index=True)
    rows["line"] = rows["kind"] + " " + rows["sink"]
    rows["rounding"] = rows["rounding"].fillna(0.0)  # a law has none
    rows, floor = axes.floored(rows[["task", "sink", "line", "kind", "length", "value", "rounding"]])
    axes.require_finite(rows["value"], "a chart of repeats")
    rows = rows.assign(value=rows[["value", "rounding"]].max(axis=1), said=_said(rows)).drop(columns="rounding")
    sinks = [sink for sink in _WORDS if (rows["sink"] == sink).any()]
    base = axes.chart(rows).encode(
        x=axes.length_axis(rows["length"], "copies n of the repeated token"),
        y=draw.log_y(rows["shown"], "L2 distance at y (float64)", floor),
        color=alt.Color(
            "sink:N",
            scale=alt.Scale(domain=sinks, range=[COLOURS[sink] for sink in sinks]),
            legend=alt.Legend(title=None, columns=2, labelExpr=axes.lookup(sinks, [_WORDS[sink] for sink in sinks])),
        ),
        detail="line:N",
        tooltip=["sink:N", "kind:N", "length:Q", alt.Tooltip("said:N", title="value")],
    )
    layers: list[Any] = [
        base.transform_filter("datum.kind === 'measured' && !datum.zero").mark_line(strokeWidth=1.6),
        base.transform_filter("datum.kind !== 'measured'").mark_line(strokeWidth=1.0, strokeDash=[4, 2]),
    ]
    layers += draw.zeros(base, floor)
    layered: Any = alt.layer(*layers)
    facet = alt.Facet("task:N", sort=tasks, title=None)
    chart = layered.properties(width=280, height=190).facet(facet=facet, columns=2, spacing=26)
    said = ["Dashed: the fitted law, where the distance falls. Its rate has a 95% interval."]
    said += _laws(tasks, summary)
    said += [] if floor is None else [axes.ROUNDING_NOTE]
    title = alt.TitleParams("Representational collapse on repeated tokens", subtitle=said)
    return axes.themed(axes.unfolded(chart, rows).properties(title=title))


def _before_training(result: Repeats) -> alt.FacetChart:
    frame: Frame = frame_of(result)
    own: Frame = frame[frame["source"] == TRAINED]
    columns = ["source", "task", "sink", "length", "value", "low", "high"]
    curve: Any = own.assign(value=own["distance"], low=own["distance"], high=own["distance"])[columns]
    rows = pd.concat([curve, result.band.rename(columns={"median": "value"})[columns]], ignore_index=True)
    axes.require_finite(rows["value"], "a chart of repeats")
    rows, floor = axes.floored(rows)
    least = float(rows["shown"].min())
    rows = rows.assign(
        low=rows["low"].clip(lower=least),
        high=rows["high"].clip(lower=least),
        panel=rows["task"] + ", " + rows["sink"].map(_WORDS),
        name=rows["source"].map(SOURCES),
    )
    sources = list(dict.fromkeys(rows["source"]))
    hues = dict(zip([SOURCES[source] for source in sources], theme.colours(sources), strict=True))
    place: dict[str, Any] = {
        "x": axes.length_axis(rows["length"], "copies n of the repeated token"),
        "color": draw.hue("name", hues),
    }
    reach = pd.concat([rows["low"], rows["high"]])
    shown, low = (draw.log_y(reach, "L2 distance at y (float64)", floor, field) for field in ("shown", "low"))
    drawn = rows.drop(columns=["task", "sink", "source"])
    base = axes.chart(drawn)
    band = base.mark_area(opacity=0.25).encode(y=low, y2="high:Q", **place)
    line = base.mark_line(strokeWidth=1.6).encode(
        y=shown, tooltip=["name:N", "length:Q", draw.VALUE, "low:Q", "high:Q"], detail="name:N", **place
    )
    panels = list(dict.fromkeys(rows["panel"]))
    facet = alt.Facet("panel:N", sort=panels, title=None)
    chart = alt.layer(band, line).properties(width=280, height=190).facet(facet=facet, columns=2, spacing=26)
    count = int(frame["draw"].nunique())
    said = [
        f"Line: the model, and the median of {count} null models of a kind; shade: their range.",
        *_fates_of(result),
    ]
    title = alt.TitleParams("The distance on repeated tokens before and after training", subtitle=said)
    return axes.themed(axes.unfolded(chart, drawn).properties(title=title))


def _fates_of(result: Repeats) -> list[str]:
    """The laws of each source and prompt, counted over draws."""
    summary: Any = result.summary
    lines = []
    for (task, sink, source), rows in summary.groupby(["task", "sink", "source"], sort=False):
        counts = rows["verdict"].value_counts().items()
        laws = "; ".join(f"{law} ({count} of {len(rows)})" if len(rows) > 1 else str(law) for law, count in counts)
        lines.append(f"{task}, {_WORDS[sink]}, {SOURCES[str(source)]}: {laws}")
    return lines


def _said(rows: Frame) -> list[str]:
    """Each value in words: what is below its rounding is at most that."""
    return [
        f"at most {rounding:.4g}" if below else f"{value:.4g}"
        for value, rounding, below in zip(rows["value"], rows["rounding"], rows["zero"], strict=True)
    ]


def _laws(tasks: list[str], summary: Any) -> list[str]:
    """The law of each sink in words; of those without a rate a line each verdict."""
    lines, without = [], {}
    for row in sorted(summary.to_dict("records"), key=lambda row: tasks.index(row["task"])):
        named = f"{row['task']} ({_WORDS[row['sink']]})"
        if np.isfinite(row["rate"]):
            unsure = ", though undecided" if row["verdict"] == "undecided" else ""
            lines.append(f"{named}: {row['law']}{unsure}, {row['rate']:.3g} [{row['low']:.3g}, {row['high']:.3g}]")
        else:
            without.setdefault(str(row["verdict"]), []).append(named)
    return lines + [f"{verdict}: {', '.join(named)}" for verdict, named in without.items()]


def _law(row: dict[str, Any], frame: Frame) -> Frame:
    """The fitted law at the lengths that were fitted."""
    curve = frame[(frame["task"] == row["task"]) & (frame["sink"] == row["sink"])]
    n = curve[curve["length"] >= row["fitted_from"]]["length"].to_numpy(dtype=float)[: int(row["used"])]
    x = np.log(n) if str(row["law"]).startswith("power") else n
    values = np.exp(row["log_amplitude"] - row["rate"] * x) + row["level"]
    same = {"task": row["task"], "sink": row["sink"], "kind": "fitted"}
    return pd.DataFrame({"length": n.astype(int), "value": values}).assign(**same)
