"""The trained laboratory's charts: collapse and answers by encoding, by window, trained in or forced, and by depth."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments.lab.trained import TrainedLab
from ostools.reporting.look import axes, theme
from ostools.results import Frame, frame_of
from ostools.training.lab.grid import BASE

_DISTANCE, _RIGHT = "L2 distance at y, float64", "share of right answers"
_LENGTH = "length n (items of the sequence)"
_CHANGED = ["sinks", "norm", "trained_in"]
_FLOOR = 1e-6  # below it a float64 distance of y is rounding
_WIDTH, _HEIGHT = 190, 160  # five panels in a row


def trained_lab_chart(result: TrainedLab) -> alt.VConcatChart:
    """Rows of panels: positions, windows, depth, other changes. Lines: means over seeds (of distances geometric); bands:
    minimum to maximum over seeds; the rule: the longest training sequence."""
    every = frame_of(result)
    changed = (every["sinks"] > 0) | (every["norm"] != BASE.norm) | (every["trained_in"] != BASE.dtype)
    frame = every[~changed]
    whole = frame[(frame["window"] == 0) & ~frame["forced"]]
    plain = whole[whole["n_layers"] == BASE.n_layers]
    rope = frame[(frame["encoding"] == BASE.encoding) & (frame["n_layers"] == BASE.n_layers) & _trained(frame)]
    depth = whole[whole["encoding"] == BASE.encoding]
    studies = [
        ("positions", plain.assign(series=plain["encoding"]), "encoding"),
        ("windows", rope.assign(series=rope["window"].map(_window)), "window (keys seen)"),
        ("depth", depth.assign(series=depth["n_layers"].astype(str)), "layers"),
        ("other changes", _changes(every, changed), "one change"),
    ]
    # Of a table that is not whole yet, what is there.
    rows = [_row(*study) for study in studies if len(study[1]) and _trained(study[1]).any()]
    told = result.provenance.parameters
    seen = int(frame[frame["seen"]]["length"].max())
    subtitle = [
        f"{told['measured']} of the grid's {told['planned']} models, trained on the same prompts of at most {seen} bits (the "
        f"vertical rule); rope-10000 and {BASE.n_layers} layers where a label does not say otherwise.",
        "Distance: n ones against n + 1. Lines: means over seeds, of distances geometric; bands: minimum to maximum.",
        axes.ROUNDING_NOTE,
    ]
    title = alt.TitleParams("What positions, windows and depth do to trained decoders", subtitle=subtitle)
    return axes.themed(alt.vconcat(*rows, title=title, spacing=30).resolve_scale(color="independent"))


def _changes(every: Frame, changed: Any) -> Frame:
    """The models with one change, and those of the same positions and window without it."""
    keys = ["encoding", "window"]
    of = every[changed][keys].drop_duplicates()
    chosen = every[(every["n_layers"] == BASE.n_layers) & ~every["forced"]].merge(of, on=keys)
    return chosen.assign(
        series=[_change(*row) for row in chosen[[*keys, *_CHANGED]].itertuples(index=False, name=None)]
    )


def _change(encoding: str, window: int, sinks: int, norm: str, trained_in: str) -> str:
    words = [encoding, f"window {window}" if window else "", f"{sinks} sink" if sinks else ""]
    words += [
        f"norm {norm}" if norm != BASE.norm else "",
        f"trained in {trained_in}" if trained_in != BASE.dtype else "",
    ]
    return ", ".join(word for word in words if word)


def _trained(frame: Frame) -> Any:
    return frame["weights"] == "trained"


def _window(window: int) -> str:
    return "none" if window == 0 else str(window)


def _row(what: str, data: Frame, legend: str) -> alt.HConcatChart:
    """Distances of two states of the models, and what the trained ones answer."""
    names = _in_order(list(dict.fromkeys(data["series"])))
    distances = data[(data["quantity"] == "distance")]
    states = (
        {"window trained in": ~distances["forced"], "window forced": distances["forced"] | (distances["window"] == 0)}
        if what == "windows"
        else {"trained": _trained(distances), "before training": ~_trained(distances)}
    )
    panels = [
        _panel(f"Collapse by {what}, {name}", distances[chosen], _DISTANCE, names, legend)
        for name, chosen in states.items()
        if chosen.any()
    ]
    answers = data[(data["quantity"] == "accuracy") & (data["precision"] == "float32") & _trained(data)]
    for question in ("first", "last", "count"):
        chosen = answers[(answers["task"] == f"lab-{question}") & ~answers["forced"]]
        panels.append(_panel(f"Right answers: {question}", chosen, _RIGHT, names, legend))
    return alt.hconcat(*panels, spacing=30).resolve_scale(color="shared")


def _in_order(names: list[str]) -> list[str]:
    """Numbers by their size, words as they come, "none" last."""
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0))


def _panel(title: str, data: Frame, y: str, names: list[str], legend: str) -> Any:
    curves, scale, axis, floor = _drawn(data, y)
    # Encodings have colours of their own; numbers and changes are told apart by their order.
    of_encodings = not any(name.isdigit() or "," in name for name in names)
    colours = theme.colours(names) if of_encodings else theme.ordered(len(names))
    colour = alt.Color(
        "series:N",
        sort=names,
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(title=legend, columns=6),
    )
    tooltip = ["series:N", "length:Q", alt.Tooltip("value:Q", title=y, format=".4g"), alt.Tooltip("seeds:Q")]
    base = axes.unfolded(axes.chart(curves), curves).encode(
        x=axes.length_axis(curves["length"], _LENGTH), color=colour, tooltip=tooltip
    )
    y_axis = alt.Y("shown:Q", title=y, scale=scale, axis=axis)
    end = pd.DataFrame({"end": [float(data[data["seen"]]["length"].max())]})
    rule = axes.unfolded(axes.chart(end), end).mark_rule(color=theme.INK, strokeDash=[4, 3])
    layers = [
        rule.encode(x=alt.X("end:Q", title=_LENGTH)),
        base.mark_area(opacity=0.13, clip=True).encode(y=alt.Y("low:Q", scale=scale, title=y), y2="high:Q"),
        # No line leads down to what was not measured: triangles stand for it.
        base.transform_filter("!datum.zero").mark_line(clip=True).encode(y=y_axis),
    ]
    if floor is not None:
        layers.append(axes.zero_marks(base.encode(y=y_axis)))
    text = alt.TitleParams(title, fontSize=11, fontWeight="normal", offset=6, frame="group")
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=text)


def _drawn(data: Frame, y: str) -> tuple[Frame, alt.Scale, alt.Axis, float | None]:
    """A row a series and length: mean, minimum and maximum over seeds; the axis around them, and where rounding stands."""
    values = data.assign(value=data["value"].clip(lower=_FLOOR)) if y == _DISTANCE else data
    curves = values.groupby(["series", "length"], sort=False)["value"]
    mean = curves.agg(lambda one: float(np.exp(np.log(one).mean()))) if y == _DISTANCE else curves.mean()
    drawn = pd.DataFrame({"value": mean, "low": curves.min(), "high": curves.max(), "seeds": curves.size()})
    drawn = drawn.reset_index()
    if y == _RIGHT:
        axis = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1])
        return drawn.assign(shown=drawn["value"], zero=False), alt.Scale(domain=[0, 1]), axis, None
    # A mean with a value in it that is rounding was not measured.
    drawn, floor = axes.floored(drawn.assign(rounding=np.where(drawn["low"] <= _FLOOR, drawn["value"], 0.0)))
    scale, axis = axes.log_axis(pd.concat([drawn["shown"], drawn["high"]]), floor)
    drawn = drawn.assign(low=drawn["low"].clip(lower=float(drawn["shown"].min())))
    return drawn.drop(columns="rounding"), scale, axis, floor
