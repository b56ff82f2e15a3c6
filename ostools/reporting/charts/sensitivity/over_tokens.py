"""Profiles over the tokens of a prompt: measured sensitivity, path sums, and both side by side.

One panel per norm, since an operator norm and a Frobenius norm share no axis; one line per linearisation or variant; path sums
whose constant is unknown, of which only the shape counts, have a panel of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.measure import Comparison, PathSum, Sensitivity
from ostools.measure.attention.attention import ATTENTION
from ostools.measure.prompts import named_by
from ostools.reporting.look import axes, draw, regions, theme
from ostools.reporting.look.aside import aside as aside_of
from ostools.reporting.look.aside import banded, notes
from ostools.results import Frame, frame_of

SHAPE = "shape"
NORMS = {
    "operator": "operator norm of ∂y/∂v",
    "frobenius": "Frobenius norm of ∂y/∂v",
    SHAPE: "an order alone, no scale",
}


INTERVAL_NOTE = "Bands: 95% intervals of estimated norms, a token at a time."
LOWER_END_NOTE = "An estimated operator norm is drawn at its lower end: the norm itself is at least as large."


def sensitivity_chart(result: Sensitivity) -> alt.VConcatChart:
    """Sensitivity of y_n to every token at one layer, measured or estimated: a line per linearisation, a panel per norm."""
    layers = frame_of(result)["layer"].nunique()
    if layers > 1:
        raise InputError(f"sensitivity_chart: expected one layer, found {layers} layers; draw them with layers_chart")
    symbol, words = theme.differentiated(result.provenance.parameters)
    return _profiles(measured_rows(frame_of(result)), f"Sensitivity of {words} to each token", symbol)


def path_sum_chart(result: PathSum) -> alt.VConcatChart:
    """The path sums over the tokens: certified bounds dashed, the paper's forms dotted, rankings dash-dotted. Above them stands
    which forms are not believed on this prompt."""
    return _profiles(
        path_rows(frame_of(result)), "Path sums of Theorem 5.1 over the tokens", first=_not_believed(result.beliefs)
    )


def comparison_chart(result: Comparison) -> alt.VConcatChart:
    """Measured, certified, the paper's and predicted profiles on one log axis per norm."""
    rows = path_rows(frame_of(result).rename(columns={"source": "variant"}))
    symbol, words = theme.differentiated(result.provenance.parameters)
    other = "attention" if ATTENTION in set(rows["name"]) else "the path sums"
    return _profiles(rows, f"Sensitivity of {words} against {other}", symbol, _not_believed(result.summary))


def measured_rows(frame: Frame) -> Frame:
    """A sensitivity table in the long form of the others: one row per position, linearisation and norm."""
    named = frame[[*named_by(frame), "linearisation", "method"]]
    ends = {name: frame[f"frobenius_{name}"].where(frame["method"] != "exact") for name in ("lower", "upper")}
    tables = (
        [named.assign(norm="operator", value=frame["operator_norm"])]
        if known_norm(frame["method"]) == "operator"
        else []
    )
    tables.append(named.assign(norm="frobenius", value=frame["frobenius_norm"], **ends))
    rows: Frame = pd.concat(tables, ignore_index=True)
    return rows.assign(kind=rows["method"].map(METHOD_KINDS), name=rows["linearisation"])


def path_rows(frame: Frame) -> Frame:
    """A path-sum table with the columns of the others; what has no scale (attention too) gets a panel of its own."""
    from ostools.measure.paths.variants import VARIANTS

    unscaled = [ATTENTION, *(name for name, variant in VARIANTS.items() if not variant.scaled)]
    norm = frame["norm"].astype(str).where(~frame["variant"].isin(unscaled), SHAPE)
    return frame.rename(columns={"variant": "name"}).assign(norm=norm)


def norm_named(norm: str, symbol: str = "y") -> str:
    """A norm of the derivative of y, or of a logit t, whose two norms are one."""
    named = NORMS.get(norm, norm)
    return named if symbol == "y" or norm == SHAPE else f"length of ∂{symbol}/∂v"


def _not_believed(verdicts: Frame) -> list[str]:
    """A line for each form that is not believed on this prompt."""
    wrong: Frame = verdicts[verdicts["believed"].isin([False])]
    return [f"{name}: {words}" for name, words in zip(wrong["variant"], wrong["words"], strict=True)]


def _profiles(rows: Frame, title: str, symbol: str = "y", first: Sequence[str] = ()) -> alt.VConcatChart:
    """One panel per norm, one line per name, over the positions; `first`: the first lines below the title."""
    axes.require_finite(rows["value"], "a profile")
    data: Frame = _drawn(rows)
    legend = _legend(data)
    tokens = data.drop_duplicates("position").sort_values("position")["token"].tolist()
    norms = [norm for norm in NORMS if norm in set(data["norm"])]
    aside = aside_of(rows)
    panels = [
        _profile_panel(data[data["norm"] == norm], norm_named(norm, symbol), legend, tokens, norm == norms[-1], aside)
        for norm in norms
    ]
    subtitle = [*first, *([axes.ZERO_NOTE] if 0.0 in set(data["value"]) else [])]
    subtitle += notes(aside)
    if ((data["kind"] == "estimated") & (data["norm"] == "operator")).any():
        subtitle.append(LOWER_END_NOTE)
    if (data["upper"] > data["lower"]).any():
        subtitle.append(INTERVAL_NOTE)
    chart = alt.vconcat(*panels, title=alt.TitleParams(title, subtitle=subtitle), spacing=18)
    return axes.themed(chart.resolve_scale(color="shared", strokeDash="shared"))


def _drawn(rows: Frame) -> Frame:
    """What the chart needs of the rows, the tokens fit to be shown."""
    return pd.DataFrame(
        {
            "position": rows["position"].astype(int),
            "token": [theme.shown(str(token)) for token in rows["token"]],
            "series": [
                theme.series(str(kind), str(name)) for kind, name in zip(rows["kind"], rows["name"], strict=True)
            ],
            "kind": rows["kind"].astype(str),
            "name": rows["name"].astype(str),
            "linearisation": rows["linearisation"].astype(str),
            "norm": rows["norm"].astype(str),
            "value": rows["value"].astype(float),
            **{end: rows.get(end, rows["value"]).astype(float).fillna(rows["value"]) for end in ("lower", "upper")},
        }
    )


def _legend(data: Frame) -> dict[str, Any]:
    """Colour and dash of each series, in one legend: measured first, then certified, the paper's, predicted."""
    order = {kind: rank for rank, kind in enumerate(theme.KINDS)}
    names = data[["series", "kind", "name"]].drop_duplicates()
    names = names.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable")
    labels = names["series"].tolist()
    colours = theme.colours(names["name"].tolist())
    kinds = alt.Scale(domain=labels, range=[theme.DASHES[kind] for kind in names["kind"]])
    return {
        "color": draw.hue("series", dict(zip(labels, colours, strict=True))),
        "strokeDash": alt.StrokeDash("series:N", scale=kinds, legend=alt.Legend(title=None)),
    }


def _profile_panel(
    data: Frame, named: str, legend: dict[str, Any], tokens: list[str], last: bool, aside: list[int]
) -> Any:
    floored, floor = axes.floored(data.drop(columns=["kind", "name", "norm"]))
    wide = bool((floored["upper"] > floored["lower"]).any())
    ends = [floored[end].where(~floored["zero"], floored["shown"]) for end in ("lower", "upper")]
    floored = floored.assign(lower=ends[0], upper=ends[1]) if wide else floored.drop(columns=["lower", "upper"])
    drawn = pd.concat([floored["shown"], *ends])
    y = draw.log_y(drawn, named, floor)
    tooltip = [*map(alt.Tooltip, ("position:Q", "token:N", "series:N", "linearisation:N")), draw.VALUE]
    base = axes.chart(floored).encode(
        x=axes.token_axis(tokens, last, aside=aside), y=y, color=legend["color"], tooltip=tooltip
    )
    layers: list[Any] = []
    if wide:
        band = alt.Y("lower:Q", scale=axes.log_axis(drawn, floor)[0])
        layers.append(base.mark_area(opacity=0.15).encode(y=band, y2="upper:Q", detail="series:N"))
    layers.append(base.mark_line().encode(strokeDash=legend["strokeDash"], detail="series:N"))
    # Points carry the tooltips; they are seen only where there is room between them.
    layers.append(base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0))
    layers += draw.zeros(base, floor)
    panel = banded(axes.unfolded(alt.layer(*layers), floored), aside)
    return regions.coloured(panel, tokens, last, aside).properties(width=620, height=260)
