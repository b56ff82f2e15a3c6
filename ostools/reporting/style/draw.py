"""What charts are put together of: rows to be drawn, panels with their words, figures, and colours
by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import altair as alt
import pandas as pd
from pandas.api.types import is_float_dtype, is_numeric_dtype

from ostools.ground import in_a_row
from ostools.models.chat import SPECIAL, TEXT
from ostools.reporting.style import axes, notebook, theme
from ostools.results import Frame, Looks

Panel: TypeAlias = (
    alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart
)
_UNTOLD = {"shown", "zero", "start", "end", "run", "at", "kind", "words"}
"""Columns that only place a mark."""


def rows(data: Frame) -> alt.Chart:
    """A chart of these rows, to be marked and encoded, whatever the reader's Altair settings are.

    They lie there as one row of whole columns, numbers to six significant digits: a third of the
    size, and Altair checks its data against its schema cell by cell. A transform makes them rows
    again. Nothing stands in the place of a NaN, which a page's JSON does not have: a line breaks
    there.
    """
    data = data.astype(object).where(data.notna(), None)
    columns = {
        str(name): tuple(_short(value) for value in data[name].tolist()) for name in data.columns
    }
    return alt.Chart(
        alt.InlineData(values=cast("list[dict[str, object]]", [columns]))
    ).transform_flatten(list(columns))


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def tooltips(data: Frame) -> list[alt.Tooltip]:
    """What the cursor tells of a row: each of its columns but those that only place a mark."""
    return [
        alt.Tooltip(
            f"{name}:{'Q' if is_numeric_dtype(column) else 'N'}",
            format=".4~g" if is_float_dtype(column) else alt.Undefined,
        )
        for name, column in data.items()
        if name not in _UNTOLD
    ]


def panel(
    marks: Sequence[alt.Chart | alt.LayerChart],
    width: float | int,
    height: float | int | alt.Step,
    title: str | list[str] | alt.TitleParams = "",
    *lines: str,
    **options: object,
) -> alt.LayerChart:
    """Marks over each other, with a title (words, or a `heading`) that has `lines` below it."""
    words = title if isinstance(title, alt.TitleParams) else heading(title, lines, **options)
    panel = alt.layer(*marks, width=width, height=height, title=words if title else alt.Undefined)
    return cast(alt.LayerChart, panel)


def heading(text: str | list[str], lines: Sequence[str] = (), **options: object) -> alt.TitleParams:
    """A panel's own title, smaller than the chart's, with `lines` below it."""
    looks: Looks = {"subtitle": list(lines), "subtitleFontSize": 10} if lines else {}
    looks |= {"fontSize": 11, "fontWeight": "normal", "offset": 6, "frame": "group"} | options
    return alt.TitleParams(text, **looks)


BOLD: Looks = {"fontSize": 12, "fontWeight": "bold"}
"""The title of a panel that the paper names."""


def figure(
    rows: Sequence[Sequence[Panel]],
    title: str,
    notes: Sequence[str] = (),
    *,
    spacing: int = 24,
    between: int = 20,
    **scales: Any,
) -> notebook.Offline:
    """Rows of panels as one chart with a title and notes below it; where zeros are drawn, a note
    says what they are.

    spacing: between panels of a row. between: rows. scales: "shared" or "independent", by channel.
    """
    # They name models, tasks and files, which may be called anything.
    subtitle = [theme.visible(note) for note in notes]
    zeros = any(_has_zeros(panel) for row in rows for panel in row)
    if zeros and axes.ROUNDING_NOTE not in " ".join(subtitle):
        subtitle.append(axes.ZERO_NOTE)
    words = alt.TitleParams(theme.visible(title), subtitle=subtitle)
    # Given here and not set afterwards: Altair copies a whole chart for each property that is set.
    resolve: Looks = {"resolve": alt.Resolve(scale=alt.ScaleResolveMap(**scales))} if scales else {}
    lines = [
        row[0] if len(row) == 1 else alt.hconcat(*row, spacing=spacing, **resolve) for row in rows
    ]
    return notebook.themed(alt.vconcat(*lines, spacing=between, title=words, **resolve))


def _has_zeros(chart: alt.SchemaBase) -> bool:
    kinds = ("layer", "hconcat", "vconcat", "concat")
    parts = [part for kind in kinds for part in chart._kwds.get(kind, ())]
    filters = chart._kwds.get("transform", ())
    return any(map(_has_zeros, parts)) or any(
        getattr(part, "filter", None) == "datum.zero"
        for part in (() if filters is alt.Undefined else filters)
    )


def in_rows(panels: Sequence[Panel], columns: int) -> list[Sequence[Panel]]:
    """The panels in rows of so many."""
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def line_at(
    axis: str,
    field: str,
    value: float | int,
    *,
    colour: str = theme.INK,
    dash: Sequence[float | int] = (2, 3),
    words: str = "",
    height: float | int | None = None,
    side: str = "left",
) -> list[alt.Chart]:
    """A rule across the panel at one value of the axis ("x" or "y"); at an x its words beside it,
    at this height.
    """
    base = rows(pd.DataFrame({field: [value], "words": [words]}))
    base = base.encode(**{axis: f"{field}:Q"}, color=alt.value(colour))
    marks = [base.mark_rule(strokeWidth=1.1, strokeDash=list(dash))]
    if words and height is not None:
        align, dx = ("right", -4) if side == "left" else ("left", 4)
        place: Looks = {"align": align, "dx": dx, "baseline": "middle", "fontSize": 10}
        halo = base.mark_text(**place, stroke=theme.LIGHT_GROUND, strokeWidth=4, opacity=0.8)
        marks += [
            mark.encode(y=alt.value(height), text="words:N")
            for mark in (halo, base.mark_text(**place))
        ]
    return marks


def hue(field: str, names: Mapping[str, str] | Iterable[str], **legend: object) -> alt.Color:
    """The colour of each name, the theme's; `names` may say by which other name the theme knows it,
    or the colour.

    legend: its properties; it has no title unless it is given one, and `legend=None` leaves it out.
    """
    looks = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    colour_by_name = dict(zip(looks, theme.colours(list(looks.values())), strict=True))
    colours = [
        look if look.startswith("#") else colour_by_name[name] for name, look in looks.items()
    ]
    options: Looks = {"title": None, **legend}
    legend_object = None if options.pop("legend", True) is None else alt.Legend(**options)
    return alt.Color(
        f"{field}:N", scale=alt.Scale(domain=list(looks), range=colours), legend=legend_object
    )


def layer_hue(last: int, **legend: Any) -> alt.Color:
    """The colour of each layer from 0 to `last`, from green through blue to red; about seven have
    their names.
    """
    return alt.Color(
        "layer:Q",
        scale=alt.Scale(domain=[0, max(last, 1)], range=theme.ordered(7)),
        legend=alt.Legend(
            title="layer",
            orient="right",
            type="symbol",
            columns=1,
            format="d",
            values=axes.whole_ticks(0, last),
            **legend,
        ),
    )


def dashes(
    looks: Mapping[str, tuple[str, Sequence[float | int]]],
    present: Iterable[str],
    **legend: Any,
) -> alt.StrokeDash:
    """The dash of each quantity that is present; `looks`: by quantity the legend's words and the
    dash.
    """
    present_names = set(present)
    names = [name for name in looks if name in present_names]
    scale = alt.Scale(domain=names, range=[looks[name][1] for name in names])
    words = axes.lookup(names, [looks[name][0] for name in names])
    options: Looks = {"title": None, "columns": 1, "labelExpr": words, **legend}
    return alt.StrokeDash("quantity:N", scale=scale, legend=alt.Legend(**options))


TEMPLATE_NOTE = "Grey: tokens that are not the text's (chat template, system prompt)."
"""What a chart with such tokens says."""


def template_positions(frame: Frame) -> list[int]:
    """The positions of all tokens that are not the text's, of a prompt in a chat template; none of
    any other.
    """
    if "origin" not in frame or set(frame["origin"].fillna(TEXT)) <= {SPECIAL, TEXT}:
        return []
    return sorted({int(place) for place in frame.loc[frame["origin"] != TEXT, "position"]})


def template_note(positions: Sequence[int]) -> list[str]:
    """The line about them in a chart's subtitle, where there are any."""
    return [TEMPLATE_NOTE] if positions else []


def mark_template(
    chart: alt.LayerChart, positions: Sequence[int], height: int = 0
) -> alt.LayerChart:
    """The chart, whose x is the position, with grey behind each run of these positions.

    height: of a heat map, which gets a grey line under it instead.
    """
    if not positions:
        return chart
    runs = in_a_row(positions)
    data = pd.DataFrame(
        {"from": [run[0] - 0.5 for run in runs], "to": [run[-1] + 0.5 for run in runs]}
    )
    mark = rows(data).mark_rect(
        clip=not height, color=theme.colour("template"), opacity=1 if height else 0.14
    )
    mark = mark.encode(x="from:Q", x2="to:Q")
    line = mark.encode(y=alt.value(height), y2=alt.value(height + 2))
    layers, title = (chart, line) if height else (mark, chart), chart["title"]
    chart["title"] = alt.Undefined
    return cast(alt.LayerChart, alt.layer(*layers, title=title))
