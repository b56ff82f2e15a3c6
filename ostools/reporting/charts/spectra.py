"""The total variation of Theorem B.3's proof on real attention patterns, and hops."""

from __future__ import annotations

import altair as alt
import numpy as np

from ostools.ground.words import number, title_of
from ostools.measure import AttentionVariation, Hops
from ostools.measure.jacobian.hops import ALL, MORE
from ostools.reporting.forms import SQUARE, curve, log_rows, token_bars, token_labels, token_rows
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

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
