"""Spectra of real attention patterns, and the total variation of Theorem B.3's proof on them."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.words import number, title_of
from ostools.measure.collapse.variation import AttentionVariation
from ostools.measure.jacobian.hops import ALL, MORE, Hops
from ostools.measure.profiles.spectra import Spectra
from ostools.reporting.forms import SQUARE, curve, log_rows, token_bars, token_labels, token_rows
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.theme import Looks
from ostools.results import Chart, Frame, frame_of

_MATRICES = {"pattern": "pattern A", "lazy": "lazy (A + I) / 2"}
_LAST, _MEAN, _RATE = "last token", "mean over all tokens", "second eigenvalue of the whole product"
_DASHES = alt.Scale(domain=[_LAST, _MEAN, _RATE], range=[[1, 0], [6, 4], [1.5, 3]])
_COLUMNS = ["place", "series", "quantity", "value"]


def spectra_chart(result: Spectra) -> Chart:
    """Second eigenvalues (Lemma B.6), products over depth (B.7), powers (Proposition 5.2)."""
    panels = [_eigenvalues(frame_of(result)), _depth(result.depth), _powers(result.limit)]
    options: Looks = {"spacing": 30, "between": 24, "color": "shared", "strokeDash": "shared"}
    title = "Spectra of the attention patterns, mean over heads"
    return draw.figure(draw.in_rows(panels, 2), title, **options)


def _spectra_panel(
    rows: Frame, across: str, y: Looks, title: str, points: int = 22
) -> alt.LayerChart:
    """`rows` has the columns place, series, quantity and value. `points`: their size, 0 for lines
    alone.
    """
    ticks = axes.whole_ticks(int(rows["place"].min()), int(rows["place"].max()), 9)
    x = alt.X("place:Q", title=across, axis=alt.Axis(grid=False, format="d", values=ticks))
    # Only lines are dashed: a legend shared with circles would lose its strokes.
    dash = alt.StrokeDash("quantity:N", scale=_DASHES, legend=alt.Legend(title=None))
    heads = rows["head"] != "mean" if "head" in rows else pd.Series(False, index=rows.index)
    hue = draw.hue("series", {words: name for name, words in _MATRICES.items()})
    marks = curve(rows[~heads], x, y, hue, dash=dash, points=points, width=1.8)
    return draw.panel(marks + curve(rows[heads], x, y, hue, width=0, points=14), 300, 190, title)


def _eigenvalues(frame: Frame) -> alt.LayerChart:
    rows: Frame = frame[frame["quantity"] == "second_eigenvalue"]
    rows = rows[(rows["head"] == "mean") | (rows["matrix"] == "pattern")].assign(
        place=frame["layer"], quantity=_LAST
    )
    rows = rows.assign(series=rows["matrix"].map(_MATRICES))[[*_COLUMNS, "head"]]
    y = axes.linear("second eigenvalue", (0, 1))
    title = "Largest self-attention of tokens 2 to n"
    return _spectra_panel(rows, "layer (dots: the heads' A)", y, title, 0)


def _depth(depth: Frame) -> alt.LayerChart:
    kinds = {"first_mass_last": _LAST, "first_mass_mean": _MEAN}
    rows: Frame = depth.rename(columns=kinds | {"blocks": "place"})
    rows = rows.melt(
        id_vars=["matrix", "place"], value_vars=list(kinds.values()), var_name="quantity"
    )
    rows = rows.assign(series=rows["matrix"].map(_MATRICES))[_COLUMNS]
    y = axes.linear("mass on the first token", format=".0%")
    across = "blocks multiplied, from the embeddings up"
    return _spectra_panel(rows, across, y, "Products over depth")


def _powers(limit: Frame) -> alt.LayerChart:
    """Where nothing is left after a power there is no rate to draw."""
    stack: Frame = limit[(limit["layer"] == "all") & limit["observed_rate"].notna()]
    columns = {"observed_rate": _LAST, "predicted_rate": _RATE, "power": "place"}
    rows: Frame = stack.rename(columns=columns).melt(
        id_vars=["matrix", "place"], value_vars=[_LAST, _RATE], var_name="quantity"
    )
    rows, y = log_rows(
        rows.assign(series=rows["matrix"].map(_MATRICES))[_COLUMNS], "remainder at k / at k - 1"
    )
    title = "How fast the rest vanishes if the stack is repeated"
    return _spectra_panel(rows, "power k of the whole product", y, title, 0)


_WIDTH, _HEIGHT = 290, 170
_QUANTITIES = {
    "total": ("δ + own weight: the proof's bound for values of norm 1", "δ + own weight"),
    "delta": ("δ: L1 distance over the tokens of v (no factor 1/2)", "δ"),
    "own": ("own weight of the repeated token, α*(n+1, n+1)", "own weight"),
    "kl": ("KL of the row of n from that of n + 1, in nats", "KL (nats)"),
}
"""By column: what a panel's title says, and its axis."""


def attention_variation_chart(result: AttentionVariation) -> Chart:
    """A panel a quantity: the mean over heads and seeds against length, a line a layer.

    Where KL is infinite in some head its mean is too, and nothing is drawn; the chart says so.
    Exact zeros stand as triangles on the lower edge.
    """
    table, frame = result.over_heads(), frame_of(result)
    names = [name for name in _QUANTITIES if np.isfinite(table[name]).any()]
    panels = [_variation_panel(table, name) for name in names]
    name, task = title_of(result.provenance.model), str(frame["task"].iloc[0])
    title = f"How the last token's attention moves when it is repeated, {task} on {name}"
    notes = [
        f"Mean over {frame['head'].nunique()} heads and {frame['seed'].nunique()} seeds, in "
        "float64. In the proof of Theorem B.3 δ + own weight goes to 0 as n grows."
    ]
    if infinite := int(np.isinf(table["kl"]).sum()):
        notes.append(
            f"KL is infinite at {infinite} of {len(table)} layers and lengths: some head no "
            "longer sees a token that it saw."
        )
    return draw.figure(draw.in_rows(panels, 2), title, notes, spacing=26)


def _variation_panel(table: Frame, name: str) -> alt.LayerChart:
    title, axis = _QUANTITIES[name]
    data = table[["layer", "length"]].assign(value=table[name], series=table["layer"])
    rows, y = log_rows(data[np.isfinite(data["value"])], axis)
    x, hue = axes.length_axis(table["length"]), draw.layer_hue(int(table["layer"].max()))
    marks = curve(rows, x, y, hue, width=1.4)
    return draw.panel(marks, _WIDTH, _HEIGHT, title)


def hops_chart(result: Hops) -> Chart:
    """A stack a token: the signed share of each number of hops. Parts that cancel others lie below
    zero.
    """
    hop_rows: Frame = result.reached
    parts = hop_rows[hop_rows["hops"] != ALL].reset_index(drop=True)
    axes.require_finite(parts["share"], "hops")
    names = list(dict.fromkeys(parts["hops"]))
    rows = token_rows(parts, value=parts["share"], series=[_words(name) for name in parts["hops"]])
    ups, downs = (rows["value"].clip(lower=0), rows["value"].clip(upper=0))
    for side in (ups, downs):
        tops = side.groupby(rows["position"]).cumsum()
        used = side != 0
        rows.loc[used, "low"], rows.loc[used, "high"] = (tops - side)[used], tops[used]
    colours = dict(zip(map(_words, names), theme.ordered(len(names)), strict=True))
    hue, tokens = draw.hue("series", colours, **SQUARE), token_labels(frame_of(result))
    panel = token_bars(rows.dropna(subset=["low"]), tokens, hue, "share of ||J||² by hops")
    title = "Attention hops on the way from each token to the last"
    return draw.figure([[panel]], title, hops_findings(result))


def _words(name: str) -> str:
    return {"1": "1 hop", MORE: "more hops"}.get(name, f"{name} hops")


def hops_findings(result: Hops) -> list[str]:
    """Shares of hops in the median over the tokens before the last, and how far parts cancel."""
    summary: Frame = result.summary.set_index("hops")
    shares = [
        f"{_words(name)} {round(share, 2) + 0.0:.0%}"
        for name, share in summary["share"].items()
        if name not in (ALL, "0")
    ]
    frame: Frame = result.frame
    last = int(frame["position"].max())
    spread: Frame = result.cancellation
    spread = spread[spread["position"] < last]["cancellation"]
    if spread.empty:
        return ["No token before the last reaches it."]
    unreached = last - len(spread)
    windows = (
        f" Nothing reaches y_n from {unreached} other{'s' * (unreached > 1)}." if unreached else ""
    )
    return [
        f"Of the frozen derivative's ||J||², in the median over {len(spread)} tokens before the "
        f"last: {', '.join(shares)}.{windows}",
        f"The sizes of the parts add up to {number(float(spread.median()))} times the size of "
        f"their sum in the median, {number(float(spread.max()))} times at most: what is above 1 "
        "cancels.",
    ]
