"""The spectra of real attention: eigenvalues by layer, the mass that reaches the first token, the limit of powers, and how much
of it the measured sensitivity shows.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.names import METHOD_KINDS
from ostools.measure import Spectra
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_WORDS = {"pattern": "pattern A", "lazy": "lazy (A + I) / 2"}
_LAST, _MEAN, _RATE = "last token", "mean over all tokens", "second eigenvalue of the whole product"
_DASHES = alt.Scale(domain=[_LAST, _MEAN, _RATE], range=[[1, 0], [6, 4], [1.5, 3]])
_COLUMNS = ["place", "series", "kind", "value"]


def spectra_chart(result: Spectra) -> alt.VConcatChart:
    """Second eigenvalues (Lemma B.6), products over depth (B.7), powers (Proposition 5.2); the measured share of token 1."""
    against: Any = result.against
    norm = "operator" if (against["norm"] == "operator").any() else "frobenius"
    against = against[against["norm"] == norm]
    against = against.assign(kind=against["method"].map(METHOD_KINDS))
    linearisations = list(dict.fromkeys(zip(against["kind"], against["linearisation"], strict=True)))
    colours = {_WORDS["pattern"]: theme.colour("pattern"), _WORDS["lazy"]: theme.colour("lazy")}
    colours |= {theme.series(kind, name): theme.colour(name) for kind, name in linearisations}
    panels = [_eigenvalues(frame_of(result), colours), _depth(result.depth, colours), _powers(result.limit, colours)]
    if linearisations:
        panels.append(_measured(against, colours))
    rows = [alt.hconcat(*panels[start : start + 2], spacing=30) for start in (0, 2)]
    title = alt.TitleParams("Spectra of the attention patterns, mean over heads", subtitle=_agreement(against))
    chart = alt.vconcat(*rows, title=title, spacing=24).resolve_scale(color="shared", strokeDash="shared")
    return axes.themed(chart)


def _agreement(against: Any) -> list[str]:
    """How the last row of the whole product ranks the tokens, beside the measured profile of the embeddings."""
    whole = against[against["layer"] == 0]
    return [
        f"Rank correlation of the last row with the {kind} {name} profile of the embeddings: "
        + ", ".join(f"{_WORDS[row['matrix']]}: {row['spearman']:.2f}" for row in group.to_dict("records"))
        for (kind, name), group in whole.groupby(["kind", "linearisation"], sort=False)
    ]


def _panel(data: Frame, x: alt.X, y: alt.Y, colours: dict[str, str]) -> alt.Chart:
    """`data` has the columns place, series, kind and value, and what `x` and `y` name."""
    return draw.rows(data).encode(
        x=x,
        y=y,
        color=draw.hue("series", colours),
        tooltip=[alt.Tooltip("place:Q", title=x["title"]), "series:N", "kind:N", draw.VALUE],
    )


def _lines(base: alt.Chart) -> alt.Chart:
    """Only lines are dashed: a legend shared with circles would lose its strokes."""
    return base.mark_line().encode(strokeDash=alt.StrokeDash("kind:N", scale=_DASHES, legend=alt.Legend(title=None)))


def _titled(chart: Any, text: str) -> Any:
    title = draw.heading(text)
    return chart.properties(width=300, height=190, title=title)


def _whole(places: Any) -> alt.Axis:
    return alt.Axis(grid=False, format="d", values=axes.whole_ticks(int(places.min()), int(places.max()), 9))


def _eigenvalues(frame: Frame, colours: dict[str, str]) -> alt.LayerChart:
    data: Frame = frame[frame["quantity"] == "second_eigenvalue"].assign(place=frame["layer"], kind=_LAST)
    data = data.assign(series=data["matrix"].map(_WORDS))[[*_COLUMNS, "head"]]
    x = alt.X("place:Q", title="layer (dots: the heads' A)", axis=_whole(data["place"]))
    y = alt.Y("value:Q", title="second eigenvalue", scale=alt.Scale(domain=[0, 1]))
    base = _panel(data, x, y, colours)
    heads = base.transform_filter(f"datum.head != 'mean' && datum.series == '{_WORDS['pattern']}'")
    mean = base.transform_filter("datum.head == 'mean'")
    return _titled(alt.layer(heads.mark_circle(size=14), _lines(mean)), "Largest self-attention of tokens 2 to n")


def _depth(depth: Any, colours: dict[str, str]) -> alt.LayerChart:
    kinds = {"first_mass_last": _LAST, "first_mass_mean": _MEAN}
    data: Frame = depth.rename(columns=kinds | {"blocks": "place"})
    data = data.melt(id_vars=["matrix", "place"], value_vars=list(kinds.values()), var_name="kind")
    data = data.assign(series=data["matrix"].map(_WORDS))[_COLUMNS]
    x = alt.X("place:Q", title="blocks multiplied, from the embeddings up", axis=_whole(data["place"]))
    y = alt.Y("value:Q", title="mass on the first token", axis=alt.Axis(format=".0%"), scale=alt.Scale(zero=True))
    base = _panel(data, x, y, colours)
    return _titled(alt.layer(_lines(base), base.mark_circle(size=22)), "Products over depth")


def _powers(limit: Any, colours: dict[str, str]) -> alt.Chart:
    """Where nothing is left after a power there is no rate to draw."""
    stack: Frame = limit[(limit["layer"] == "all") & limit["observed_rate"].notna()]
    names = {"observed_rate": _LAST, "predicted_rate": _RATE, "power": "place"}
    data: Frame = stack.rename(columns=names).melt(
        id_vars=["matrix", "place"], value_vars=[_LAST, _RATE], var_name="kind"
    )
    data, floor = axes.floored(data.assign(series=data["matrix"].map(_WORDS))[_COLUMNS])
    x = alt.X("place:Q", title="power k of the whole product", axis=_whole(data["place"]))
    y = draw.log_y(data["shown"], "remainder at k / at k - 1", floor)
    return _titled(_lines(_panel(data, x, y, colours)), "How fast the rest vanishes if the stack is repeated")


def _measured(against: Any, colours: dict[str, str]) -> alt.LayerChart:
    rollout = against.assign(series=against["matrix"].map(_WORDS), value=against["rollout_first_share"])
    named = [theme.series(kind, name) for kind, name in zip(against["kind"], against["linearisation"], strict=True)]
    real = against.assign(series=named, value=against["measured_first_share"])
    data: Frame = pd.concat([rollout, real]).drop_duplicates(["layer", "series"]).assign(kind=_LAST)
    data, floor = axes.floored(data.rename(columns={"layer": "place"})[_COLUMNS])
    x = alt.X("place:Q", title="layer l", axis=_whole(data["place"]))
    y = draw.log_y(data["shown"], "share of the first token", floor)
    base = _panel(data, x, y, colours)
    layers = [_lines(base), base.mark_circle(size=22)]
    layers += draw.zeros(base, floor)
    return _titled(alt.layer(*layers), "From layer l to the top: products, and the sensitivity")
