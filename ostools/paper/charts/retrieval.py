"""Answers and sensitivity by the position of a record to retrieve."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.ground.words import title_of
from ostools.paper.retrieval import Retrieval
from ostools.reporting.forms import curve, log_rows
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

_WIDTH, _HEIGHT = 540, 130
_TARGET_RECORD, _OTHER_TOKENS = "tokens of the wanted record", "all other tokens"
_QUANTITIES = {"log_probability": "log p (nats)", "log_sensitivity": "log sensitivity (natural)"}


def retrieval_chart(result: Retrieval) -> Chart:
    """Two panels over one axis of positions: log p of the right answer, and the mean norm over the
    wanted record's tokens and over all others; means over seeds.
    """
    frame = frame_of(result)
    axes.require_finite(frame["sensitivity_mean"], "a retrieval run")
    names = {"sensitivity_mean": _TARGET_RECORD, "sensitivity_others": _OTHER_TOKENS}
    norms = [_means(frame, column, name) for column, name in names.items()]
    norm_words = f"mean {result.provenance.parameters['norm']} norm"
    rows, y = log_rows(pd.concat(norms, ignore_index=True), norm_words)
    likely = _means(frame, "log_probability", _TARGET_RECORD)
    log_p = axes.linear("log p(right answer), nats", tickCount=4) | {"scale": alt.Scale(zero=False)}
    length = int(frame["length"].iloc[0])
    x = axes.length_axis(
        frame["position"],
        f"position of the wanted record (0 to {length - 1})",
        "position",
        10,
        log=False,
        values=sorted(set(frame["position"].tolist())),
    )
    title = f"Retrieving one of {length} records on {title_of(result.provenance.model)}"
    panels = [_panel(likely, axes.quiet(x), log_p), _panel(rows, x, y)]
    return draw.figure([[panel] for panel in panels], title, retrieval_findings(result), between=10)


def retrieval_findings(result: Retrieval) -> list[str]:
    """How often the value was found, how the run was made, and whether the ends lie above what is
    between.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    ends = [
        f"{words}, at an end less the mean of the positions between: {'; '.join(ends)}."
        for quantity, words in _QUANTITIES.items()
        if (ends := result.ends_words(quantity))
    ]
    return [
        f"{int(frame['found'].sum())} of {len(frame)} answers name the wanted value (seeds: "
        f"{frame['seed'].nunique()}); within a seed only the wanted record moves.",
        f"Sensitivity: mean norm of d y_n / d v_i^(0) ({parameters['linearisation']} Jacobian) over "
        f"tokens i; method: {', '.join(frame['method'].unique())}.",
        *ends,
    ]


def _means(frame: Frame, column: str, name: str) -> Frame:
    means = frame.groupby("position", as_index=False)[column].mean()
    return means.rename(columns={column: "value"}).assign(series=name)


def _panel(rows: Frame, x: alt.X, y: theme.Looks) -> alt.LayerChart:
    colours = {_TARGET_RECORD: "full", _OTHER_TOKENS: "float64"}
    hue = draw.hue("series", colours, symbolStrokeWidth=3)
    return draw.panel(curve(rows, x, y, hue, width=2.2, points=30), _WIDTH, _HEIGHT)
