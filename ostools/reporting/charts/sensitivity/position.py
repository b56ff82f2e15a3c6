"""How much a token counts by its place in the text, over rotated passages; beside it the untrained model's."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from scipy.special import stdtrit

from ostools.experiments.position.position_effect import MODEL, THIRDS, UNTRAINED, PositionEffect
from ostools.reporting.findings.position import contrast_words
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

NAMES = {MODEL: "the model", UNTRAINED: "untrained (same architecture)"}
WIDTH, HEIGHT = 620, 260


def position_chart(result: PositionEffect) -> alt.LayerChart:
    """Geometric mean over passages and rotations of each norm over its passage's middle third; the band is the 95% interval."""
    heading = alt.TitleParams("Sensitivity by position, token identity taken out", subtitle=contrast_words(result))
    return position_layers(result, WIDTH, HEIGHT).properties(title=heading)


def position_layers(result: PositionEffect, width: int, height: int) -> alt.LayerChart:
    """The same without a title, in a size."""
    curves = position_curves(result)
    names = [NAMES[source] for source in dict.fromkeys(curves["source"])]
    colour = draw.hue("name", dict(zip(names, (theme.colour("full"), theme.colour("none")), strict=False)))
    scale, axis = axes.log_axis(pd.concat([curves["low"], curves["high"]]), None)
    count = int(curves["position"].max()) + 1
    place: dict[str, Any] = {
        "x": alt.X(
            "position:Q",
            title="position in the text (each token stands once in every third)"
            if width == WIDTH
            else "position in the text",
            scale=alt.Scale(domain=[0, count - 1], nice=False),
            axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(0, count - 1)),
        ),
        "color": colour,
    }
    title = "norm of ∂y/∂v over the middle third's" if width == WIDTH else "norm / middle"
    band = draw.rows(curves).encode(y=alt.Y("low:Q", scale=scale, axis=axis, title=title), y2="high:Q", **place)
    line = draw.rows(curves).encode(
        y=alt.Y("value:Q", scale=scale, axis=axis, title=title), tooltip=["position:Q", "name:N", draw.VALUE], **place
    )
    edges = pd.DataFrame({"position": [count / 3 - 0.5, 2 * count / 3 - 0.5]})
    rules = draw.rows(edges).mark_rule(strokeDash=[2, 3], color=theme.INK).encode(x=place["x"])
    marks = [rules, band.mark_area(opacity=0.2), line.mark_line()]
    return axes.themed(draw.layers(*marks, width=width, height=height))


def position_curves(result: PositionEffect) -> Frame:
    """One row a source and position: value (a ratio to the middle third of the same passage), low, high (95% over passages)."""
    table: Any = frame_of(result)
    table = table.assign(log=np.log10(table["norm"].to_numpy(dtype=float)))
    keys = ["source", "passage"]
    middle = table[table["third"] == THIRDS[1]].groupby(keys, sort=False)["log"].mean().rename("middle")
    table = table.join(middle, on=keys)
    by_passage = table.assign(log=table["log"] - table["middle"]).groupby([*keys, "position"], sort=False)["log"].mean()
    over = by_passage.groupby(["source", "position"], sort=False).agg(["mean", "std", "count"]).reset_index()
    half = stdtrit(over["count"] - 1, 0.975) * over["std"] / np.sqrt(over["count"])
    return over[["source", "position"]].assign(
        name=[NAMES[str(source)] for source in over["source"]],
        value=10 ** over["mean"],
        low=10 ** (over["mean"] - half),
        high=10 ** (over["mean"] + half),
    )
