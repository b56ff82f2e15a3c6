"""Profiles over relative position: of a corpus, a panel a length; of several prompts, a panel a norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ostools import measure
from ostools.ground.words import short_name
from ostools.measure.profiles.profile import BETWEEN, NO_SINK
from ostools.reporting.look import axes, draw, theme
from ostools.results import Column, Frame, frame_of
from ostools.runs import Corpus

_WIDEST = 8.0
"""Above this ratio of the largest number drawn to the smallest the axis is logarithmic."""
_PANELS = 3
"""Panels in a row."""
_NORMS = {"operator": "operator", "frobenius": "Frobenius"}
_DRAWN = ("mean", "low", "high", "q10", "median", "q90")


def corpus_chart(result: Corpus) -> Any:
    """Shares over the even share. A band from the 10th to the 90th percentile of the windows, the 95% interval of the mean
    over texts, where there are three texts, and the mean."""
    table: Any = frame_of(result)
    axes.require_finite(table["mean"], "a profile over relative position")
    asked = result.provenance.parameters
    colour = theme.colour(str(asked["linearisation"] if asked["measure"] == "sensitivity" else asked["measure"]))
    numbers = table[list(_DRAWN)].stack()
    panels = [
        _panel(table[table["length"] == row["length"]], row, numbers, colour)
        for row in result.summary.to_dict("records")
    ]
    rows = [
        alt.hconcat(*panels[start : start + _PANELS], spacing=30).resolve_scale(y="shared")
        for start in range(0, len(panels), _PANELS)
    ]
    words = f"{_what(asked)} of {short_name(result.provenance.model)} over a corpus, {theme.KINDS[str(asked['kind'])]}"
    title = alt.TitleParams(words, subtitle=_subtitle(result))
    return axes.themed(alt.vconcat(*rows, title=title, spacing=24))


def several_chart(result: measure.Sensitivities | measure.PathSums) -> Any:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of the lowest layer."""
    every = result.over_position()
    lowest = every["layer"].min()
    table = every[every["layer"] == lowest]
    kinds = [theme.KINDS[kind] for kind in table["kind"]]
    table = table.assign(name=[f"{kind}: {source}" for kind, source in zip(kinds, table["source"], strict=True)])
    # Of both panels, which share a scale; a dash tells apart what has one colour.
    looks = {row["name"]: (theme.colour(row["source"]), theme.DASHES[row["kind"]]) for row in table.to_dict("records")}
    panels = [_of_norm(rows, str(norm), looks) for norm, rows in table.groupby("norm", sort=False)]
    what = "Path sums" if isinstance(result, measure.PathSums) else "Sensitivity"
    if "towards_norm" in result.provenance.parameters:
        what += f" of {theme.differentiated(result.provenance.parameters)[1]}"
    said = f"Mean over {len(result)} prompts, each by the shares of its own sum. Dotted: an even share."
    said += f" Of layer {lowest}." if every["layer"].nunique() > 1 else ""
    said += " Shade: the 95% interval of the mean." if bool(table["low"].notna().any()) else ""
    title = alt.TitleParams(f"{what} over {len(result)} prompts, by relative position", subtitle=[said])
    return axes.themed(alt.hconcat(*panels, spacing=30, title=title))


def _of_norm(rows: Frame, norm: str, looks: Mapping[str, tuple[str, Sequence[float | int]]]) -> Any:
    shown = rows.assign(at=(rows["start"] + rows["end"]) / 2)
    values = shown[["mean", "low", "high"]].stack()
    scale, axis = _share_axis(values)
    scales = [alt.Scale(domain=list(looks), range=[look[part] for look in looks.values()]) for part in (0, 1)]
    legend = alt.Legend(title=None, orient="bottom", labelLimit=0, symbolSize=400)
    colour = alt.Color("name:N", scale=scales[0], legend=legend)
    dash = alt.StrokeDash("name:N", scale=scales[1], legend=legend)
    x = alt.X("at:Q", title="relative position", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False))
    if scale.type == "log":
        numbers = ["mean", "low", "high"]
        shown[numbers] = shown[numbers].clip(lower=float(values[values > 0].min()))
    base = draw.rows(shown.dropna(axis="columns")).encode(x=x, color=colour)
    y = {name: alt.Y(f"{name}:Q", title="share / even share", scale=scale, axis=axis) for name in ("mean", "low")}
    marks = [base.mark_area(opacity=0.2).encode(y=y["low"], y2="high:Q")] if bool(shown["low"].notna().all()) else []
    marks.append(base.mark_line(point=alt.OverlayMarkDef(size=14)).encode(y=y["mean"], strokeDash=dash))
    return draw.layers(
        _even(shown, scale, axis), *marks, width=300, height=240, title=draw.heading(f"{_NORMS[norm]} norm")
    )


def _share_axis(values: Column) -> tuple[alt.Scale, alt.Axis]:
    """From zero, or logarithmic where the values lie far apart."""
    positive = values[values > 0]
    if float(values.max()) > _WIDEST * float(positive.min()):
        return axes.log_axis(positive, None)
    return alt.Scale(domain=[0, float(values.max()) * 1.05], nice=False), alt.Axis()


def _even(shown: Frame, scale: alt.Scale, axis: alt.Axis) -> Any:
    line = draw.rows(shown.assign(even=1.0)[["even"]].head(1)).encode(y=alt.Y("even:Q", scale=scale, axis=axis))
    return line.mark_rule(color=theme.INK, strokeDash=[2, 3], opacity=0.6)


def _what(asked: Any) -> str:
    """What is measured, with which derivative."""
    if asked["measure"] == "attention":
        return "Attention of the last token"
    return f"Sensitivity ({asked['linearisation']})" if asked["measure"] == "sensitivity" else f"{asked['measure']}"


def _subtitle(result: Corpus) -> list[str]:
    """What is drawn, and the shape of each length: among many texts the last token alone can lift the last third."""
    interval = "; dark shade: its 95% interval" if bool(frame_of(result)["low"].notna().any()) else ""
    said = [f"Line: mean over texts{interval}; pale shade: 10th to 90th percentile of windows; dotted: an even share."]
    shapes: Any = result.shapes
    for length, rows in shapes.groupby("length"):
        verdicts = dict(zip(rows["kept"], rows["verdict"], strict=True))
        said.append(f"{length} tokens, {NO_SINK}: {verdicts[NO_SINK]}; {BETWEEN}: {verdicts[BETWEEN]}.")
    return said


def _panel(rows: Frame, summary: Any, numbers: Column, colour: str) -> Any:
    """One length."""
    shown: Any = rows[["start", "end", *_DRAWN]].assign(at=(rows["start"] + rows["end"]) / 2)
    positive = numbers[numbers > 0]
    scale, axis = _share_axis(numbers)
    if scale.type == "log":  # a band that reaches zero reaches the lower edge
        shown[list(_DRAWN)] = shown[list(_DRAWN)].clip(lower=float(positive.min()))
    # Without a number of an interval there is none to be drawn, and JSON has no NaN.
    shown = shown.dropna(axis="columns")
    x = alt.X(
        "at:Q", title="relative position in the window", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False)
    )
    tooltip = [alt.Tooltip(f"{name}:Q", format=".3g") for name in ("start", "end", *_DRAWN) if name in shown]

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title="share / even share", scale=scale, axis=axis)

    base = draw.rows(shown).encode(x=x)
    marks = [base.mark_area(opacity=0.18, color=colour).encode(y=y("q10"), y2="q90:Q")]
    if "low" in shown:
        marks.append(base.mark_area(opacity=0.4, color=colour).encode(y=y("low"), y2="high:Q"))
    marks.append(
        base.mark_line(color=colour, point=alt.OverlayMarkDef(size=14, color=colour)).encode(
            y=y("mean"), tooltip=tooltip
        )
    )
    words = (
        f"{summary['length']} tokens: {_counted(summary['windows'], 'window')} of {_counted(summary['texts'], 'text')}"
    )
    return draw.layers(_even(shown, scale, axis), *marks, width=260, height=220, title=draw.heading(words))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
