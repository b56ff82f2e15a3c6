"""The spectra of real attention: eigenvalues by layer, the mass that reaches the first token, the limit of powers, and how much
of it the measured sensitivity shows.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.names import METHOD_KINDS
from ostools.measure.profiles.spectra import Spectra
from ostools.reporting.forms.curve import curve, fitted
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_WORDS = {"pattern": "pattern A", "lazy": "lazy (A + I) / 2"}
_LAST, _MEAN, _RATE = "last token", "mean over all tokens", "second eigenvalue of the whole product"
_DASHES = alt.Scale(domain=[_LAST, _MEAN, _RATE], range=[[1, 0], [6, 4], [1.5, 3]])
_COLUMNS = ["place", "series", "quantity", "value"]


def spectra_chart(result: Spectra) -> Any:
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
    title = "Spectra of the attention patterns, mean over heads"
    options: dict[str, Any] = {"spacing": 30, "between": 24, "color": "shared", "strokeDash": "shared"}
    return draw.figure(draw.in_rows(panels, 2), title, _agreement(against), **options)


def _agreement(against: Any) -> list[str]:
    """How the last row of the whole product ranks the tokens, beside the measured profile of the embeddings."""
    whole = against[against["layer"] == 0]
    return [
        f"Rank correlation of the last row with the {kind} {name} profile of the embeddings: "
        + ", ".join(f"{_WORDS[row['matrix']]}: {row['spearman']:.2f}" for row in group.to_dict("records"))
        for (kind, name), group in whole.groupby(["kind", "linearisation"], sort=False)
    ]


def _panel(
    rows: Frame, across: str, y: dict[str, Any], colours: dict[str, str], title: str, points: int = 22
) -> alt.LayerChart:
    """`rows` has the columns place, series, quantity and value. `points`: their size, 0 for lines alone."""
    ticks = axes.whole_ticks(int(rows["place"].min()), int(rows["place"].max()), 9)
    x = alt.X("place:Q", title=across, axis=alt.Axis(grid=False, format="d", values=ticks))
    # Only lines are dashed: a legend shared with circles would lose its strokes.
    dash = alt.StrokeDash("quantity:N", scale=_DASHES, legend=alt.Legend(title=None))
    told = [alt.Tooltip("place:Q", title=across), "series:N", "quantity:N"]
    heads = rows["head"] != "mean" if "head" in rows else pd.Series(False, index=rows.index)
    marks = curve(rows[~heads], x, y, draw.hue("series", colours), dash=dash, points=points, width=1.8, tooltip=told)
    if heads.any():
        marks += curve(rows[heads], x, y, draw.hue("series", colours), width=0, points=14, tooltip=told)
    return draw.layers(*marks, width=300, height=190, title=draw.heading(title))


def _eigenvalues(frame: Frame, colours: dict[str, str]) -> alt.LayerChart:
    rows: Frame = frame[frame["quantity"] == "second_eigenvalue"]
    rows = rows[(rows["head"] == "mean") | (rows["matrix"] == "pattern")].assign(place=frame["layer"], quantity=_LAST)
    rows = rows.assign(series=rows["matrix"].map(_WORDS))[[*_COLUMNS, "head"]]
    y = {"title": "second eigenvalue", "scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis()}
    return _panel(rows, "layer (dots: the heads' A)", y, colours, "Largest self-attention of tokens 2 to n", 0)


def _depth(depth: Any, colours: dict[str, str]) -> alt.LayerChart:
    kinds = {"first_mass_last": _LAST, "first_mass_mean": _MEAN}
    rows: Frame = depth.rename(columns=kinds | {"blocks": "place"})
    rows = rows.melt(id_vars=["matrix", "place"], value_vars=list(kinds.values()), var_name="quantity")
    rows = rows.assign(series=rows["matrix"].map(_WORDS))[_COLUMNS]
    y = {"title": "mass on the first token", "scale": alt.Scale(zero=True), "axis": alt.Axis(format=".0%")}
    return _panel(rows, "blocks multiplied, from the embeddings up", y, colours, "Products over depth")


def _powers(limit: Any, colours: dict[str, str]) -> alt.LayerChart:
    """Where nothing is left after a power there is no rate to draw."""
    stack: Frame = limit[(limit["layer"] == "all") & limit["observed_rate"].notna()]
    columns = {"observed_rate": _LAST, "predicted_rate": _RATE, "power": "place"}
    rows: Frame = stack.rename(columns=columns).melt(
        id_vars=["matrix", "place"], value_vars=[_LAST, _RATE], var_name="quantity"
    )
    rows, y = fitted(rows.assign(series=rows["matrix"].map(_WORDS))[_COLUMNS], "remainder at k / at k - 1")
    title = "How fast the rest vanishes if the stack is repeated"
    return _panel(rows, "power k of the whole product", y, colours, title, 0)


def _measured(against: Any, colours: dict[str, str]) -> alt.LayerChart:
    rollout = against.assign(series=against["matrix"].map(_WORDS), value=against["rollout_first_share"])
    named = [theme.series(kind, name) for kind, name in zip(against["kind"], against["linearisation"], strict=True)]
    real = against.assign(series=named, value=against["measured_first_share"])
    rows: Frame = pd.concat([rollout, real]).drop_duplicates(["layer", "series"]).assign(quantity=_LAST)
    rows, y = fitted(rows.rename(columns={"layer": "place"})[_COLUMNS], "share of the first token")
    return _panel(rows, "layer l", y, colours, "From layer l to the top: products, and the sensitivity")
