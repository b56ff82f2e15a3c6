"""A profile over the tokens, and the band that null models of several seeds fill."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.measure import Nulls
from ostools.measure.profiles.nulls import TRAINED
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

SOURCES = {
    TRAINED: "the model",
    "initialised": "initialised",
    "embeddings-kept": "initialised, embeddings kept",
    "shuffled": "shuffled",
}


def nulls_chart(result: Nulls) -> alt.LayerChart:
    """Shares of the sum over all tokens, on a log axis: the model's as a line, of each kind of null the median and range."""
    table, band = frame_of(result), result.band
    axes.require_finite(table["share"], "a profile of shares")
    own: Frame = table[table["source"] == TRAINED]
    tokens = [theme.shown(str(token)) for token in own["token"]]
    lines = pd.concat(
        [own.assign(value=own["share"]), band.assign(value=band["median"])], ignore_index=True
    )[["position", "token", "source", "value"]]  # fmt: skip
    lines, floor = axes.floored(_named(lines))
    least = float(lines["shown"].min())
    area = _named(band).assign(low=band["low"].clip(lower=least), high=band["high"].clip(lower=least))
    names = [SOURCES[source] for source in dict.fromkeys(table["source"])]
    colour = draw.hue("name", dict(zip(names, theme.colours(list(dict.fromkeys(table["source"]))), strict=True)))
    reach = pd.concat([lines["shown"], area["low"], area["high"]])
    scale, axis = axes.log_axis(reach, floor)
    place: dict[str, Any] = {"x": axes.token_axis(tokens), "color": colour}
    title = "share of the summed sensitivity"
    shade = draw.rows(area).encode(y=alt.Y("low:Q", scale=scale, axis=axis, title=title), y2="high:Q", **place)
    tooltip = ["position:Q", "token:N", "name:N", draw.VALUE]
    base = axes.chart(lines).encode(
        y=alt.Y("shown:Q", scale=scale, axis=axis, title=title), tooltip=tooltip, detail="name:N", **place
    )
    marks = [base.mark_line(), base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0)]
    marks = [axes.unfolded(mark, lines) for mark in [*marks, *draw.zeros(base, floor)]]
    heading = alt.TitleParams("Sensitivity before and after training", subtitle=_subtitle(result, floor is not None))
    return axes.themed(draw.layers(shade.mark_area(opacity=0.25), *marks, width=620, height=300, title=heading))


def _named(rows: Frame) -> Frame:
    """What is drawn of rows, tokens fit to be shown."""
    shown = rows.assign(
        position=rows["position"].astype(int),
        token=[theme.shown(str(token)) for token in rows["token"]],
        name=[SOURCES[str(source)] for source in rows["source"]],
    )
    return shown.drop(columns="source")


def _subtitle(result: Nulls, zeros: bool) -> list[str]:
    """What the shade is, and the verdicts of the shape by source."""
    table: Any = result.summary
    lines = [
        f"{SOURCES[str(source)]}: {_verdicts(group['verdict'])}"
        for source, group in table.groupby("source", sort=False)
    ]
    count = int(table["seed"].nunique())
    shade = f"Shade: range over {count} seeds."
    return [f"{shade} {axes.ZERO_NOTE}" if zeros else shade, *_at_most(lines, 2)]


def _at_most(lines: list[str], most: int) -> list[str]:
    """The lines, as many of them joined as it takes."""
    each = -(-len(lines) // most)
    return [". ".join(lines[start : start + each]) for start in range(0, len(lines), each)]


def _verdicts(found: Any) -> str:
    counts = found.value_counts()
    return "; ".join(
        f"{verdict} ({count} of {len(found)})" if len(found) > 1 else verdict for verdict, count in counts.items()
    )
