"""Collapse on a trained model beyond ones: a panel a prompt, with the sink's token and without it, and the law that fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ostools.experiments.repeats import Repeats
from ostools.measure.profiles.untrained import TRAINED
from ostools.reporting.charts.sensitivity.over_tokens import SOURCES
from ostools.reporting.forms.curve import curve, fitted, grid
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_WORDS = {"present": "with BOS", "absent": "without BOS"}
_COLOURS = {_WORDS[sink]: theme.colour(f"BOS {sink}") for sink in _WORDS}
_SIZE = (280, 190)
_X, _Y = "copies n of the repeated token", "L2 distance at y (float64)"


def repeats_chart(result: Repeats) -> Any:
    """||y - y*||_2 in float64 against the number of copies, log-log; thin: the law of the table `summary`, where one holds.

    What is below its rounding stands below the axis, and is told as at most that. With untrained models: the model's curve, and
    of each kind the median and the range over its draws, a panel a prompt and sink.
    """
    frame: Frame = frame_of(result)
    if frame["source"].nunique() > 1:
        return _before_training(result)
    summary: Any = result.summary
    tasks = list(dict.fromkeys(frame["task"]))
    parts = [frame.rename(columns={"distance": "value"}).assign(kind="measured")]
    parts += [_law(row, frame) for row in summary.to_dict("records") if np.isfinite(row["rate"])]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.assign(
        rounding=rows["rounding"].fillna(0.0), series=[_WORDS[sink] for sink in rows["sink"]]
    )  # a law has none
    rows, y = fitted(rows[["task", "sink", "series", "kind", "length", "value", "rounding"]], _Y)
    rows = rows.assign(value=rows[["value", "rounding"]].max(axis=1), said=_said(rows)).drop(columns="rounding")
    hues = {words: colour for words, colour in _COLOURS.items() if (rows["series"] == words).any()}
    panels = {task: _curves(rows[rows["task"] == task], draw.hue("series", hues)) for task in tasks}
    notes = ["Dashed: the fitted law, where the distance falls. Its rate has a 95% interval.", *_laws(tasks, summary)]
    notes += [axes.ROUNDING_NOTE] if rows["zero"].any() else []
    rows_of_panels = grid(panels, axes.length_axis(rows["length"], _X), y, 2, _SIZE)
    return draw.figure(rows_of_panels, "Representational collapse on repeated tokens", notes, color="shared")


def _curves(rows: Frame, hue: Any) -> Any:
    """The measured curve without what is below its rounding, and the law."""

    def marks(x: Any, y: dict[str, Any]) -> list[Any]:
        own, told = rows["kind"] == "measured", ["sink:N", "kind:N", "length:Q", "said:N"]
        drawn = curve(rows[own & ~rows["zero"]], x, y, hue, tooltip=told)
        drawn += curve(rows[own & rows["zero"]], x, y, hue, width=0, tooltip=told)
        return drawn + curve(rows[~own], x, y, hue, width=1.0, tooltip=told, strokeDash=[4, 2])

    return marks


def _before_training(result: Repeats) -> Any:
    frame: Frame = frame_of(result)
    own: Frame = frame[frame["source"] == TRAINED]
    columns = ["source", "task", "sink", "length", "value", "low", "high"]
    line: Any = own.assign(value=own["distance"], low=own["distance"], high=own["distance"])[columns]
    rows = pd.concat([line, result.band.rename(columns={"median": "value"})[columns]], ignore_index=True)
    sources = list(dict.fromkeys(rows["source"]))
    words = [f"{task}, {_WORDS[sink]}" for task, sink in zip(rows["task"], rows["sink"], strict=True)]
    rows = rows.assign(panel=words, series=[SOURCES[source] for source in rows["source"]])
    rows, y = fitted(rows.drop(columns=["task", "sink", "source"]), _Y, ("low", "high"))
    hue = draw.hue("series", dict(zip([SOURCES[source] for source in sources], theme.colours(sources), strict=True)))

    def marks_of(panel: str) -> Any:
        here = rows[rows["panel"] == panel]
        told = ["series:N", "length:Q", "low:Q", "high:Q"]
        return lambda x, y: curve(here, x, y, hue, bands=[("low", "high", 0.25)], tooltip=told)

    panels = {panel: marks_of(panel) for panel in dict.fromkeys(rows["panel"])}
    count = int(frame["draw"].nunique())
    shade = f"Line: the model, and the median of {count} untrained models of a kind; shade: their range."
    title = "The distance on repeated tokens before and after training"
    rows_of_panels = grid(panels, axes.length_axis(rows["length"], _X), y, 2, _SIZE)
    return draw.figure(rows_of_panels, title, [shade, *_stages_of(result)], color="shared")


def _stages_of(result: Repeats) -> list[str]:
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
    measured = frame[(frame["task"] == row["task"]) & (frame["sink"] == row["sink"])]
    n = measured[measured["length"] >= row["fitted_from"]]["length"].to_numpy(dtype=float)[: int(row["used"])]
    same = {"task": row["task"], "sink": row["sink"], "kind": "fitted"}
    return pd.DataFrame({"length": n.astype(int), "value": law_values(row, n)}).assign(**same)


def law_values(row: dict[str, Any], n: np.ndarray) -> np.ndarray:
    """The law of a row of fits at these lengths."""
    x = n if str(row["law"]).startswith("exponential") else np.log(n)
    return np.exp(row["log_amplitude"] - row["rate"] * x) + row["level"]
