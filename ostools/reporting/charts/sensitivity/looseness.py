"""The looseness of a certified bound as a waterfall: from `uniform` down to the measured norm, part by part."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import factor
from ostools.measure.profiles.looseness import Looseness
from ostools.reporting.look import axes, theme
from ostools.results import Frame

_WIDTH = 560


def looseness_chart(result: Looseness) -> alt.LayerChart:
    """Each part a bar that starts where the one before it ends: decades in the mean over tokens, which add up as parts do.

    Zero is the measured frozen norm. What freezing changes is no looseness: it has another colour and may go either way.
    """
    data = _steps(result.summary)
    base = axes.chart(data)
    bars = base.encode(
        y=alt.Y(
            "label:N", sort=data["label"].tolist(), title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=0)
        ),
    )
    span = alt.X(
        "start:Q", title="log10 of bound / measured frozen norm (decades, mean over tokens)", scale=_scale(data)
    )
    tooltip = [
        alt.Tooltip("part:N"),
        alt.Tooltip("mean:Q", format=".3f", title="mean of the quotient, decades"),
        alt.Tooltip("median:Q", format=".3f"),
        alt.Tooltip("lower_quartile:Q", format=".3f", title="lower quartile"),
        alt.Tooltip("upper_quartile:Q", format=".3f", title="upper quartile"),
        alt.Tooltip("tokens:Q"),
    ]
    colour = alt.Color("colour:N", scale=None)
    layers: list[Any] = [
        bars.mark_bar(height=18).encode(x=span, x2="end:Q", color=colour, tooltip=tooltip),
        bars.mark_text(align="left", dx=6, fontSize=11).encode(x=alt.X("high:Q"), text="said:N"),
        # From the end of each bar down to the beginning of the next.
        bars.transform_filter("datum.is_looseness")
        .mark_tick(thickness=1, height=30, yOffset=15, color=theme.colour("rollout"))
        .encode(x="end:Q"),
        base.mark_rule(strokeWidth=1.2, color=theme.colour("frozen")).encode(x=alt.datum(0)),
    ]
    title = alt.TitleParams("Where the certified bound loses", subtitle=_subtitle(result.summary))
    chart = axes.unfolded(alt.layer(*layers), data)
    return axes.themed(chart.properties(title=title, width=_WIDTH, height=30 * len(data)))


def _steps(summary: Frame) -> Frame:
    """Where every bar starts and ends; the parts that are looseness end at 0."""
    rows = []
    height = float(summary.loc[summary["is_looseness"], "mean"].sum())
    for row in summary.to_dict(orient="records"):
        end = height - row["mean"] if row["is_looseness"] else -row["mean"]
        start = height if row["is_looseness"] else 0.0
        rows.append(
            {
                "label": f"{row['part']}:  {row['larger']} → {row['smaller']}",
                "part": row["part"],
                "start": start,
                "end": end,
                "high": max(start, end),
                "said": f"{end - start:+.2f}".replace("-", "−"),
                "is_looseness": bool(row["is_looseness"]),
                "colour": theme.colour("local") if row["is_looseness"] else theme.colour("full"),
                **{name: row[name] for name in ("mean", "median", "lower_quartile", "upper_quartile", "tokens")},
            }
        )
        height = end
    return pd.DataFrame(rows)


def _scale(data: Frame) -> alt.Scale:
    low, high = float(data[["start", "end"]].min().min()), float(data["high"].max())
    room = 0.12 * (high - low)
    return alt.Scale(domain=[low - room / 3 if low < 0 else 0, high + room], nice=False)


def _subtitle(summary: Frame) -> list[str]:
    loose = summary[summary["is_looseness"]]
    total, worst = float(loose["mean"].sum()), loose.loc[loose["mean"].idxmax()]
    return [
        f"The bound uniform is {factor(total)} times the measured frozen norm (red line). The bars are the parts of this "
        f"factor. The largest is {worst['part']}.",
        "Blue: what freezing patterns and norm scales changes. It is not looseness, and it may have either sign.",
    ]
