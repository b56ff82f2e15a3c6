"""By which factor each token's norm changed between two results of one kind."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure import Change
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_NORMS = {"operator": "operator norm, second / first", "frobenius": "Frobenius norm, second / first"}


def change_chart(result: Change) -> alt.TopLevelMixin:
    """The ratio second / first of each token's norm on a log axis, a panel a norm, a line a linearisation or variant; a grey
    line where nothing changed. Of several layers or last tokens the lowest layer and the last of these."""
    table = frame_of(result)
    rows = table[(table["layer"] == table["layer"].min()) & (table["last"] == table["last"].max())]
    rows = rows[rows["ratio"].notna()]
    if rows.empty:
        raise InputError(
            "a change: expected a ratio at one token at least, found none: every norm of the first is rounding"
        )
    axes.require_finite(rows["ratio"], "a ratio")
    tokens = (
        table.drop_duplicates("position").sort_values("position")["token"].map(lambda token: theme.shown(str(token)))
    )
    sources = list(dict.fromkeys(rows["source"]))
    colour = draw.hue("source", dict(zip(sources, theme.colours(sources), strict=True)))
    norms = [norm for norm in _NORMS if norm in set(rows["norm"])]
    panels = [_panel(rows[rows["norm"] == norm], norm, tokens.tolist(), colour, norm == norms[-1]) for norm in norms]
    heading = alt.TitleParams("How much each token's sensitivity changed", subtitle=_subtitle(result, rows))
    return axes.themed(alt.vconcat(*panels, title=heading, spacing=18))


def _panel(rows: Frame, norm: str, tokens: list[str], colour: alt.Color, last: bool) -> Any:
    data: Frame = rows[["position", "source"]].assign(
        token=[theme.shown(str(token)) for token in rows["token"]], value=rows["ratio"].astype(float), run=_runs(rows)
    )
    floored, floor = axes.floored(data)
    y = draw.log_y(pd.concat([floored["shown"], pd.Series([1.0])]), _NORMS[norm], floor)
    tooltip = ["position:Q", "token:N", "source:N", draw.VALUE]
    base = axes.chart(floored).encode(x=axes.token_axis(tokens, last), y=y, color=colour, tooltip=tooltip)
    marks = [
        base.mark_line().encode(detail=["source:N", "run:N"]),
        base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0),
        *draw.zeros(base, floor),
    ]
    same = alt.Chart(alt.InlineData(values=[{"one": 1}])).mark_rule(strokeDash=[2, 3], color=theme.colour("float64"))
    drawn = [axes.unfolded(mark, floored) for mark in marks]
    return draw.layers(same.encode(y=alt.Y("one:Q")), *drawn, width=620, height=220)


def _runs(rows: Frame) -> Any:
    """Which row of neighbours each token is in: no line leads over tokens that have no ratio."""
    return (rows.groupby("source")["position"].diff().fillna(1) != 1).cumsum()


def _subtitle(result: Change, rows: Frame) -> list[str]:
    differ = result.provenance.parameters["differ"]
    frame = frame_of(result)
    paired = frame[frame["second_position"].notna()]
    left_out = int(paired["ratio"].isna().sum())
    alone = frame["position"].nunique() - paired["position"].nunique()
    lines = [f"The two differ in: {', '.join(differ)}." if differ else "The two differ in neither model nor edits."]
    lines += ["Above the dotted line at 1 the second is larger."]
    lines += [f"{left_out} ratios are left out: the first norm is rounding there."] if left_out else []
    lines += [f"{alone} tokens have no partner in the second, and no ratio."] if alone else []
    return [*lines, *([axes.ZERO_NOTE] if (rows["ratio"] == 0).any() else [])]
