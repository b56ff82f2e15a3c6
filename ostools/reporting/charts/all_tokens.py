"""All tokens of a text: influence by distance, how alike their states are by layer, the total
variation of Theorem B.3's proof on real attention patterns, and hops.
"""

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground import number, title_of
from ostools.measure import (
    AttentionVariation,
    Hops,
    InfluenceByDistance,
    TokenHomogenization,
)
from ostools.measure.collapse.homogenization import MODEL, UNTRAINED
from ostools.measure.jacobian.distance import TEXT
from ostools.measure.jacobian.hops import ALL, MORE
from ostools.reporting.findings.profiles import (
    distance_findings,
    homogenization_findings,
)
from ostools.reporting.forms import (
    BAND,
    SQUARE,
    curve,
    log_rows,
    token_bars,
    token_labels,
    token_rows,
)
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, Looks, frame_of

_SUBJECTS = {TEXT: "text", "shuffled": "its tokens shuffled", "untrained": "random weights"}
_HUES = {"text": "full", "its tokens shuffled": "frozen", "random weights": "none"}
_MEDIAN, _FITTED = "median", "predicted"
_DASHES = {
    _MEDIAN: ("median, with its quartiles", [1, 0]),
    _FITTED: ("γ + β (r + 1)^-p", theme.DASHES["predicted"]),
}


def distance_chart(result: InfluenceByDistance) -> Chart:
    """||d y_j / d v_i|| over the median of i = j against r + 1, on log axes: medians with
    quartiles, and the fitted laws.
    """
    medians: Frame = result.by_distance
    measured = medians[["distance", "low", "high"]].assign(
        series=medians["source"].map(_SUBJECTS), quantity=_MEDIAN, value=medians["median"]
    )
    laws: Frame = result.laws
    laws = laws[(laws["from_distance"] == 0) & laws["p"].notna()]
    rows: Frame = pd.concat([measured, *map(_fit, laws.to_dict("records"))], ignore_index=True)
    rows, y = log_rows(rows, "norm of ∂y_j/∂v_i, over that of i = j", ("low", "high"))
    rows = rows.assign(length=rows["distance"] + 1)
    x = axes.length_axis(rows["length"], "distance r + 1 = j − i + 1", log=True)
    hues = {name: hue for name, hue in _HUES.items() if name in set(rows["series"])}
    hue = draw.hue("series", hues, columns=3)
    dash = draw.dashes(_DASHES, rows["quantity"])
    fitted = rows["quantity"] == _FITTED
    marks = curve(rows[~fitted], x, y, hue, dash=dash, bands=[BAND], points=8)
    panel = draw.panel(marks + curve(rows[fitted], x, y, hue, dash=dash, width=2.2), 520, 300)
    notes = distance_findings(result)[:2]
    return draw.figure([[panel]], "Influence of a token by its distance", notes)


def _fit(law: Looks) -> Frame:
    r = np.arange(int(law["distances"]))
    values = law["gamma"] + law["beta"] * (r + 1.0) ** -law["p"]
    return pd.DataFrame(
        {"distance": r, "series": _SUBJECTS[law["source"]], "quantity": _FITTED, "value": values}
    )


_ALL, _FIRST = "all tokens", "the first token alone"
_WITHOUT_FIRST = "without the first token (of norms: the median)"
_PARTS = {
    _ALL: (_ALL, [1, 0]),
    _WITHOUT_FIRST: (_WITHOUT_FIRST, [6, 3]),
    _FIRST: (_FIRST, [1.5, 2.5]),
}
_PANELS = {
    "normalised_entropy": ("entropy / log of the most directions", "Matrix entropy"),
    "effective_rank": ("effective rank", "Effective rank"),
    "mean_cosine": ("mean cosine of pairs", "Mean cosine"),
}


def homogenization_chart(result: TokenHomogenization) -> Chart:
    """By layer: entropy, effective rank and cosine with and without the first token, norms, and the
    sink; pale lines are shorter contexts."""
    frame: Frame = frame_of(result)
    longest = int(frame["tokens"].max())
    control = {UNTRAINED: "none"} if UNTRAINED in set(frame["source"]) else {}
    hue = draw.hue("series", {MODEL: "full"} | control)
    panels = [_likeness_panel(frame, column, *words, hue) for column, words in _PANELS.items()]
    at_longest: Frame = frame[frame["tokens"] == longest]
    norms = _by_part(at_longest, {"first_norm": _FIRST, "rest_norm": _WITHOUT_FIRST})
    panels.append(_panel(*log_rows(norms, "L2 norm of v^(l)"), hue, "Norms of the states"))
    sink = _by_part(at_longest, {"sink_rate": _ALL}).dropna(subset=["value"])
    if len(sink):
        title = "Sink rate: heads with more than 0.3 on the first token"
        panels.append(_panel(sink, axes.share("share of heads"), hue, title))
    title = f"How alike the states of {longest} tokens are, layer by layer"
    rows, notes = draw.in_rows(panels, 2), homogenization_findings(result)[:3]
    return draw.figure(rows, title, notes, color="shared", strokeDash="shared")


def _by_part(frame: Frame, columns: dict[str, str]) -> Frame:
    """One row a layer, context length, source and part of the tokens."""
    parts = [
        frame[["layer", "tokens"]].assign(
            series=frame["source"], value=frame[column], quantity=part
        )
        for column, part in columns.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _likeness_panel(
    frame: Frame, column: str, axis: str, title: str, hue: alt.Color
) -> alt.LayerChart:
    rows = _by_part(frame, {column: _ALL, f"rest_{column}": _WITHOUT_FIRST})
    rows = rows.assign(run=rows["tokens"])
    domain = () if column == "effective_rank" else (min(0.0, float(rows["value"].min())), 1)
    return _panel(rows, axes.linear(axis, domain), hue, title)


def _panel(rows: Frame, y: Looks, hue: alt.Color, title: str) -> alt.LayerChart:
    last = max(int(rows["layer"].max()), 1)
    looks = axes.linear(
        "layer l", (0, last), grid=False, format="d", values=axes.whole_ticks(0, last)
    )
    x, dash = alt.X("layer:Q", **looks), draw.dashes(_PARTS, _PARTS)
    longest = rows["tokens"] == rows["tokens"].max()
    marks = curve(rows[~longest], x, y, hue, dash=dash, width=0.8, opacity=0.4)
    return draw.panel(marks + curve(rows[longest], x, y, hue, dash=dash), 300, 190, title)


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
    return draw.panel(curve(rows, x, y, hue, width=1.4), _WIDTH, _HEIGHT, title)


def hops_chart(result: Hops) -> Chart:
    """A stack a token: the signed share of each number of hops. Parts that cancel others lie below
    zero.
    """
    hop_rows: Frame = result.in_reach
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
    spread: Frame = result.cancellation
    spread = spread[spread["position"] < result.frame["position"].max()]["cancellation"]
    if spread.empty:
        return ["No token before the last reaches it."]
    rows, are_estimates = result.provenance.parameters["cotangents"], result.is_estimated
    source = f" (estimated from {rows} random rows)" if are_estimates else ""
    return [
        f"Of the frozen derivative's ||J||²{source}, in the median over {len(spread)} tokens "
        f"before the last that reach it: {', '.join(shares)}.",
        f"The sizes of the parts{' (estimated)' if are_estimates else ''} add up to "
        f"{number(float(spread.median()))} times the size of their sum in the median, "
        f"{number(float(spread.max()))} times at most: what is above 1 cancels.",
    ]
