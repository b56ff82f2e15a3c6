"""Three small charts for the first screen: collapse with its noise floor, sensitivity by position, answers by length.

Where the position effect was not measured, the sensitivity over the one prompt stands in its place.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.ground.names import known_norm
from ostools.measure import Collapse, Sensitivity
from ostools.measure.answers.behaviour import Behaviour
from ostools.reporting.charts.sensitivity.position import position_layers
from ostools.reporting.findings.collapse import main_pair
from ostools.reporting.findings.position import contrast_words
from ostools.reporting.first.headlines import counted, leading, task_of
from ostools.reporting.first.right import right_chart
from ostools.reporting.look import axes, draw, regions, theme
from ostools.reporting.page.page import Figure
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 265, 104


def glance(found: Measurements) -> list[Figure]:
    """The charts whose data exist."""
    made = []
    if first := leading(found.casts or found.collapses):
        result, dtype, why = first
        caption = f"Distance of the pair and noise, {task_of(result)}"
        made.append(Figure("glance-collapse", distance_chart(result, dtype), caption, f"{caption}. {why}"))
    if found.position is not None:
        caption = "Sensitivity by position in natural text"
        words = " ".join(contrast_words(found.position))
        made.append(
            Figure("glance-position", position_layers(found.position, WIDTH, HEIGHT), caption, f"{caption}. {words}")
        )
    elif found.sensitivity is not None:
        caption = "Sensitivity of the last token to each token"
        count = frame_of(found.sensitivity)["position"].nunique()
        made.append(
            Figure(
                "glance-sensitivity",
                tokens_chart(found.sensitivity),
                caption,
                f"{caption}, {count} tokens: the {norm_words(found.sensitivity)} norm.",
            )
        )
    if found.behaviours:
        caption = "Right answers by length"
        said = "; ".join(f"{task_of(one)}: {counted(one)[0]} right" for one in found.behaviours)
        made.append(Figure("glance-answers", _right(found.behaviours), caption, f"{caption}. {said}."))
    return made


def means_by_length(result: Collapse, dtype: str) -> Frame:
    """Of each length the mean float64 distance of the main pair at y, L2, and the mean rounding noise of the difference."""
    frame = frame_of(result)
    rows = frame[(frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")]
    rows = rows[(rows["pair"] == main_pair(result)) & (rows["dtype"] == dtype)]
    return rows.groupby("length")[["float64_distance", "pair_noise"]].mean().reset_index()


def distance_chart(result: Collapse, dtype: str) -> alt.LayerChart:
    """The float64 distance of the pair, and the rounding noise of the difference in `dtype`: what lies below it is hidden."""
    means = means_by_length(result, dtype)
    names = {"float64_distance": "distance", "pair_noise": f"noise of {dtype}"}
    long = means.rename(columns=names).melt(id_vars="length", var_name="series", value_name="value")
    data, floor = axes.floored(long)
    hues = {names["float64_distance"]: theme.INK, names["pair_noise"]: theme.colour(dtype)}
    base = draw.rows(data).encode(
        x=axes.length_axis(data["length"], "items of the sequence"),
        y=draw.log_y(data["shown"], "L2 distance", floor),
        color=draw.hue("series", hues, columns=2, symbolType="circle", symbolSize=60),
        tooltip=["length:Q", "series:N", draw.VALUE],
    )
    layers = [base.mark_circle(size=6, opacity=1), *draw.zeros(base, floor)]
    return axes.themed(draw.layers(*layers, width=WIDTH, height=HEIGHT))


def norm_words(result: Sensitivity) -> str:
    """Of an operator norm an estimate knows a lower bound only."""
    return known_norm(frame_of(result)["method"]).replace("frob", "Frob")


def first_linearisation(result: Sensitivity) -> Frame:
    """Its rows in the order of the prompt, tokens as charts write them."""
    frame = frame_of(result)
    first = frame[frame["linearisation"] == frame["linearisation"].iloc[0]].sort_values("position")
    return first.assign(token=[theme.shown(str(token)) for token in first["token"]])


def tokens_chart(result: Sensitivity) -> alt.LayerChart:
    """A bar a token in the colour of its region; of the first linearisation, the operator norm where it is known."""
    norm = norm_words(result).lower()
    first = first_linearisation(result)
    tokens = first["token"].tolist()
    named = {place: one.name for one in regions.regions(tokens) for place in range(one.first, one.last + 1)}
    region = [named.get(place, "other tokens") for place in range(len(tokens))]
    data: Frame = pd.DataFrame({"position": range(len(tokens)), "token": tokens, "region": region})
    data, floor = axes.floored(data.assign(value=first[f"{norm}_norm"].to_numpy(dtype=float)))
    names = list(dict.fromkeys(region))
    scale, axis = axes.log_axis(data["shown"], floor)
    data = data.assign(base=float(scale["domain"][0]))
    base = draw.rows(data).encode(
        x=alt.X(
            "position:Q",
            title="token of the prompt",
            scale=alt.Scale(domain=[-0.5, len(tokens) - 0.5], nice=False),
            axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(0, len(tokens) - 1)),
        ),
        color=draw.hue("region", dict(zip(names, theme.colours(names), strict=True)), columns=3, symbolStrokeWidth=5),
        tooltip=["position:Q", "token:N", "region:N", draw.VALUE],
    )
    y = alt.Y("shown:Q", title="norm of ∂y/∂v", scale=scale, axis=axis)
    width = max(1.0, min(10.0, 0.7 * WIDTH / len(tokens)))
    layers = [base.mark_rule(strokeWidth=width).encode(y=y, y2="base:Q"), *draw.zeros(base.encode(y=y), floor)]
    return axes.themed(draw.layers(*layers, width=WIDTH, height=HEIGHT))


def _right(results: list[Behaviour]) -> alt.LayerChart:
    """A line a task."""
    return right_chart(results, [task_of(one) for one in results], "task", WIDTH, HEIGHT, columns=2)
