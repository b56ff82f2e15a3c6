"""Does the distance predict the error? Each prompt's numbers and outcome; below, how well each tells right from wrong."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.error_prediction import ALL, LEVEL, SAME_LENGTH, ErrorPrediction
from ostools.ground.words import short_name
from ostools.measure.answers.reading import ANSWERED
from ostools.reporting.findings.error_prediction import PREDICTORS, error_prediction_notes
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, ROW = 250, 170, 34
_TITLES = {
    "distance_residual": "relative distance at v^(L)",
    "distance_y": "relative distance at y",
    "sensitivity": "mean over the carriers",
    "sensitivity_share": "share of all sensitivity",
}
_OUTCOMES = {
    "right": ("right", "circle"),
    "wrong": ("wrong", "cross"),
    "no answer": ("something else", "triangle-down"),
}
_COMPARED = {ALL: ("full", "circle"), SAME_LENGTH: ("frozen", "diamond")}


def error_prediction_chart(result: ErrorPrediction) -> alt.VConcatChart:
    """Above: a panel a predictor, a point a prompt, by its length; right answers as circles, wrong ones as crosses, prompts
    without an answer as triangles. Below: the area under the ROC curve of each predictor with its interval, over all prompts
    and among those of the same length; a dashed line stands at 0.5, where it says nothing. A hollow mark has no interval. Last:
    the odds ratio of each predictor that has one, on a logarithmic axis; a dashed line stands at 1, where it says nothing.
    """
    frame = frame_of(result)
    names = [name for name in PREDICTORS if name in frame and frame[name].notna().any()]
    points = [_points(frame, name, index == 0) for index, name in enumerate(names)]
    rows: list[Any] = [
        alt.hconcat(*points[start : start + 2], spacing=30).resolve_scale(color="independent", shape="independent")
        for start in range(0, len(points), 2)
    ]
    title = alt.TitleParams(
        f"{frame['task'].iloc[0]}: do collapse and sensitivity tell right answers of {short_name(result.provenance.model)} "
        "from wrong ones?",
        subtitle=_subtitle(result),
    )
    summary: Frame = result.summary
    if summary["area"].notna().any():
        rows.append(_areas(summary, names))
    odds: Frame = result.odds
    if odds["odds_ratio"].notna().any():
        rows.append(_odds(odds, names))
    chart = alt.vconcat(*rows, spacing=18, title=title)
    return axes.themed(chart.resolve_scale(color="independent", shape="independent"))


def _subtitle(result: ErrorPrediction) -> list[str]:
    """What was asked, and what a mark cannot show; the findings say at length what an area and an odds ratio are."""
    notes = error_prediction_notes(result)
    if len(notes) < 3:
        return notes
    return [
        f"{notes[0]} Dashed lines: an area of 0.5 and a ratio of 1 say nothing.",
        f"All intervals hold together at {LEVEL:.0%}, over seeds. A relation is not seen where an interval reaches its "
        "dashed line.",
        notes[-1],
    ]


def _points(frame: Frame, name: str, first: bool) -> Any:
    outcome = frame["correct"].astype(bool).map({True: "right", False: "wrong"})
    data = frame[["length", "seed", "key", name]].assign(
        outcome=outcome.where(frame["kind"].eq(ANSWERED), "no answer"), value=frame[name].astype(float)
    )
    data = data[data["value"].notna()].drop(columns=name)
    data, floor = axes.floored(data)
    known = {one: looks for one, looks in _OUTCOMES.items() if (data["outcome"] == one).any()}
    colours, shapes = [theme.colour(colour) for colour, _ in known.values()], [shape for _, shape in known.values()]
    legend = alt.Legend(title=None, columns=3, symbolType=alt.Undefined, symbolSize=60) if first else None
    base = draw.rows(data)
    lengths = frame["length"]
    spread = [int(lengths.min()), max(int(lengths.max()), int(lengths.min()) + 1)]
    x = alt.X(
        "length:Q",
        title="sequence length (items)",
        scale=alt.Scale(domain=spread, nice=False, padding=12),
        axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(spread[0], spread[1], 6)),
    )
    marks = base.mark_point(size=26, strokeWidth=1.2, filled=False).encode(
        x=x,
        y=draw.log_y(data["shown"], _TITLES[name], floor),
        color=alt.Color("outcome:N", scale=alt.Scale(domain=list(known), range=colours), legend=legend),
        shape=alt.Shape("outcome:N", scale=alt.Scale(domain=list(known), range=shapes), legend=legend),
        tooltip=["length:Q", "seed:Q", "key:N", "outcome:N", draw.VALUE],
    )
    return draw.layers(
        marks, *draw.zeros(base, floor), title=draw.heading(PREDICTORS[name]), width=WIDTH, height=HEIGHT
    )


def _areas(summary: Frame, names: list[str]) -> Any:
    domain, shapes = list(_COMPARED), [shape for _, shape in _COMPARED.values()]
    hues = alt.Scale(domain=domain, range=[theme.colour(colour) for colour, _ in _COMPARED.values()])
    legend = alt.Legend(title=None, columns=2, symbolType=alt.Undefined, symbolSize=60)
    by_comparison = {
        "yOffset": alt.YOffset("compared:N", scale=alt.Scale(domain=domain, paddingOuter=0.4)),
        "color": alt.Color("compared:N", scale=hues, legend=legend),
    }
    shape = alt.Shape("compared:N", scale=alt.Scale(domain=domain, range=shapes), legend=legend)
    scale = alt.Scale(domain=[0, 1], nice=False, padding=6)
    x = alt.X("area:Q", title="area under the ROC curve", scale=scale)
    data = summary[["predictor", "compared", "area", "low", "high", "pairs", "verdict"]]
    marks = _intervals(data, "area", x, 0.5, names, by_comparison, {"shape": shape})
    return draw.layers(*marks, title=draw.heading("right above wrong, of pairs"), **_size(names))


def _odds(odds: Frame, names: list[str]) -> Any:
    data = odds[["predictor", "held", "odds_ratio", "low", "high", "spread", "verdict"]]
    ends = [float(value) for value in (data["low"].min(), data["high"].max(), 1.0)]
    scale = alt.Scale(type="log", domain=[min(ends), max(ends)], nice=False, padding=12)
    x = alt.X(
        "odds_ratio:Q",
        title="odds ratio of one standard deviation",
        scale=scale,
        axis=alt.Axis(tickCount=6, format="~g", labelOverlap=True),
    )
    marks = _intervals(data, "odds_ratio", x, 1.0, names, {"color": alt.value(theme.colour("full"))}, {})
    heading = draw.heading("odds of a right answer (logistic regression)")
    return draw.layers(*marks, title=heading, **_size(names))


def _size(names: list[str]) -> dict[str, int]:
    return {"width": 2 * WIDTH - 90, "height": ROW * len(names)}


def _intervals(
    table: Frame,
    value: str,
    x: alt.X,
    nothing: float,
    names: list[str],
    all_marks: dict[str, Any],
    points: dict[str, Any],
) -> list[Any]:
    """A row a predictor: intervals, points (hollow where there is none), and a dashed line where a value says nothing."""
    data = table.assign(name=table["predictor"].map(PREDICTORS), without=table["low"].isna()).drop(columns="predictor")
    data = data[data[value].notna()]
    base = draw.rows(draw.known(data))
    words = [PREDICTORS[name] for name in names]
    y = alt.Y("name:N", title=None, scale=alt.Scale(domain=words), axis=alt.Axis(labelLimit=0, ticks=False, grid=True))
    rule = alt.Chart(alt.InlineData(values=[{value: nothing}])).mark_rule(strokeDash=[4, 3], strokeWidth=1)
    known, without = (base.transform_filter(f"{sign}datum.without") for sign in ("!", ""))
    tooltip = [f"{name}:{'Q' if pd.api.types.is_numeric_dtype(table[name]) else 'N'}" for name in table if name in data]
    place = {"x": x, "y": y, **all_marks, **points, "tooltip": tooltip}
    return [
        rule.encode(x=f"{value}:Q", color=alt.value(theme.colour("float64"))),
        known.mark_rule(strokeWidth=1.4).encode(x=alt.X("low:Q"), x2="high:Q", y=y, **all_marks),
        known.mark_point(size=52, filled=True, opacity=1).encode(**place),
        without.mark_point(size=52, filled=False, opacity=1).encode(**place),
    ]
