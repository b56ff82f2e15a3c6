"""Collapse curves: how far two last-token representations are apart, against length, dtype by dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure import Collapse
from ostools.measure.collapse.readings import NORM_WORDS, PIECES, READINGS, VECTOR, Reading
from ostools.measure.collapse.verdicts import Verdict
from ostools.reporting.findings.collapse import longest_trained, overflow_sentence
from ostools.reporting.look import axes, draw, theme
from ostools.results import Column, Frame, frame_of
from ostools.theory.hidden_ranges import HiddenRange

WIDTH, HEIGHT, LINE = 240, 190, 13
PAIRS = {"theorem": "", "task": ": n and n + 1 items (no theorem)", "one-more-digit": ": one more digit (no theorem)"}
"""What a panel's title adds for a pair that is not the theorem's."""
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance of the pair (dots where it jumps)", [1, 0]),
    "reference": ("the same in float64: what collapse is read from", [5, 1.5]),
    "noise": ("rounding noise of the difference in this dtype", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""
JUMPS = 0.08
"""A curve whose neighbours differ by more than 10^JUMPS (20%) in the median is drawn as dots: a line would only fill a band."""


def collapse_chart(
    result: Collapse,
    sites: Sequence[str] | None = None,
    *,
    per: str = VECTOR,
    norm: str = "l2",
) -> alt.FacetChart:
    """Distance between the two last-token representations against length, a panel per site, dtype and kind of pair.

    sites: those that have such pieces where none are given: residual, y and logits for whole vectors.

    Each panel holds the measured distance, the rounding noise of the difference in that dtype and its machine line, the float64
    distance beside them, thin and grey, and the ranges of lengths at which the pair is hidden in every seed, pale, all of them
    of the pieces (`per`) and in the norm that is drawn. Dotted lines stand at the longest length that the model was trained on,
    and where the prompt reaches a sliding window or fills the context. Heads and seeds are shown by their mean, with a band
    from the least to the greatest. Raises `InputError` where every dtype overflows.
    """
    table = result.measured()
    if table.empty:
        raise InputError(f"a collapse chart: {overflow_sentence(result.overflowing())}")
    sites = [site for site, known in READINGS.items() if per in known] if sites is None else sites
    frame = pd.concat([Reading(site, per, norm).of(table) for site in sites])
    rows, floor = axes.floored(_collapse_rows(frame))
    axes.require_finite(rows["value"], "a collapse curve")
    dtypes = list(dict.fromkeys(frame["dtype"]))
    panels = [_panel(site, dtype, pair) for pair in PAIRS for site in sites for dtype in dtypes]
    ranges = _ranges(result.verdicts_over_seeds(per, norm), sites, dtypes)
    layers = _collapse_layers(rows, floor, NORM_WORDS.get(norm, norm), ranges, model_limits(result))
    facet = alt.Facet("panel:N", sort=[panel for panel in panels if (rows["panel"] == panel).any()], title=None)
    chart = axes.unfolded(layers.facet(facet=facet, columns=len(dtypes), spacing=22), rows)
    subtitle = [axes.ZERO_NOTE] if (rows["value"] == 0).any() else []
    tasks = ", ".join(sorted(set(map(str, frame["task"]))))
    over = [f"Mean over {PIECES[per]}; band: from the least to the greatest of them."] if PIECES[per] else []
    overflow = overflow_sentence(result.overflowing())
    subtitle = [*over, *subtitle, *([overflow] if overflow else [])]
    title = alt.TitleParams(f"Distance of the last-token representations, {tasks}", subtitle=subtitle)
    return axes.themed(chart.properties(title=title))


def _panel(site: str, dtype: str, pair: str) -> str:
    return f"{site}, {dtype}{PAIRS.get(pair, f': {pair}')}"


def _collapse_rows(frame: Frame) -> Frame:
    """One row per point drawn: panel, length, quantity, hue (the dtype that gives the colour), value, and the band if any."""
    keys = ["pair", "length", "dtype", "site"]
    measured = frame.groupby(keys, as_index=False, sort=False, observed=True).agg(
        value=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("pair_noise", "mean"),
        machine_line=("machine_line", "mean"),
        exact=("float64_distance", "mean"),
    )
    measured["hue"] = measured["dtype"]
    parts = [measured.assign(quantity="distance")]
    for quantity in ("noise", "machine_line"):
        floor = measured[measured[quantity].notna()]
        value = floor[quantity]
        parts.append(floor.assign(value=value, low=value, high=value, quantity=quantity))
    exact = measured[measured["exact"].notna() & (measured["dtype"] != "float64")]
    value = exact["exact"]
    parts.append(exact.assign(value=value, low=value, high=value, quantity="reference", hue="float64"))
    rows = pd.concat(parts, ignore_index=True)
    names = zip(rows["site"], rows["dtype"], rows["pair"], strict=True)
    rows["panel"] = [_panel(*map(str, name)) for name in names]
    rows["dots"] = rows["quantity"].isin(["distance", "reference"]) & rows["panel"].isin(_jumping(rows))
    # A band is drawn where there is one, if its lower end can stand on the log axis.
    rows["band"] = (rows["high"] > rows["low"]) & (rows["low"] > 0)
    needed = ["panel", "length", "quantity", "hue", "value", "dots"]
    return rows[[*needed, "low", "high", "band"] if bool(np.any(rows["band"])) else needed]


def _jumping(rows: Frame) -> list[str]:
    """The panels whose measured curve jumps up and down from one length to the next."""
    found = []
    for panel, curve in rows[(rows["quantity"] == "distance") & (rows["value"] > 0)].groupby("panel"):
        if jumps(curve.sort_values("length")["value"]):
            found.append(str(panel))
    return found


def jumps(values: Column) -> bool:
    """Whether neighbours differ so much that a line would only fill a band; dots then show what it is made of."""
    steps = np.abs(np.diff(np.log10(values[values > 0].to_numpy(dtype=float))))
    return len(steps) > 30 and float(np.median(steps)) > JUMPS


def _ranges(
    verdicts: Mapping[tuple[str, str, str, int], Verdict], sites: Sequence[str], dtypes: Sequence[str]
) -> list[dict[str, Any]]:
    """Each range of every panel: its place among them, where it begins and ends, its words. Of v^(l) after the last block."""
    last = {site: max(layer for *_, at, layer in verdicts if at == site) for *_, site, _ in verdicts}
    return [
        {
            "panel": _panel(site, dtype, pair),
            "rank": rank,
            "first": span.first,
            "last": span.last,
            "words": _in_words(span),
        }
        for (pair, dtype, site, layer), verdict in verdicts.items()
        if site in sites and dtype in dtypes and layer == last[site]
        for rank, span in enumerate(verdict.ranges)
    ]


def _in_words(span: HiddenRange) -> str:
    return f"hidden from n = {span.first}" + ("" if span.open else f" to {span.last}")


def model_limits(result: Collapse) -> list[dict[str, Any]]:
    """Where along the lengths the model's own numbers lie, with words: the trained length, a sliding window, the context."""
    frame, known = frame_of(result), result.provenance.parameters.get("limits", {})
    tokens = frame.groupby("length")["tokens"].min().sort_index()
    lengths, marks = list(map(int, tokens.index)), []
    trained = longest_trained(result, result.provenance.model.get("trained_lengths"))
    if trained is not None and lengths[0] <= trained < lengths[-1]:
        at = max(n for n in lengths if n <= trained)
        marks.append({"length": at, "words": f"trained to n = {trained}"})
    for window in known.get("sliding_windows", ()):
        reached = [n for n in lengths if tokens[n] >= window]
        if reached and reached[0] != lengths[0]:
            marks.append({"length": reached[0], "words": f"window of {window} tokens"})
    if known.get("context") and tokens[lengths[-1]] + 1 >= known["context"]:
        marks.append({"length": lengths[-1], "words": f"context of {known['context']} tokens"})
    return marks


def _collapse_layers(
    rows: Frame, floor: float | None, norm: str, ranges: list[dict[str, Any]], limits: list[dict[str, Any]]
) -> alt.LayerChart:
    has_band = "band" in rows
    shown = (
        pd.concat([rows["shown"], rows[rows["band"]]["low"], rows[rows["band"]]["high"]]) if has_band else rows["shown"]
    )
    hues = theme.in_order(set(rows["hue"]))
    base = axes.chart(rows).encode(
        x=axes.length_axis(rows["length"]),
        y=draw.log_y(shown, f"{norm} distance", floor),
        color=draw.hue("hue", hues, title="dtype", columns=len(hues), symbolStrokeWidth=4),
        detail=["quantity:N"],
    )
    dashes = draw.dashes(QUANTITIES, rows["quantity"])
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("quantity:N"),
        alt.Tooltip("hue:N", title="dtype"),
        draw.VALUE,
    ]
    layers: list[Any] = []
    if has_band:
        band = base.transform_filter("datum.band").mark_area(opacity=0.18)
        layers.append(band.encode(y=alt.Y("low:Q"), y2="high:Q"))
    # The reference lies under the dtype's own marks, and is thinner.
    for exact, width, size in (("===", 1.0, 4), ("!==", 1.5, 9)):
        here = base.transform_filter(f"datum.quantity {exact} 'reference'")
        layers.append(here.transform_filter("!datum.dots").mark_line(strokeWidth=width).encode(strokeDash=dashes))
        layers.append(here.transform_filter("datum.dots").mark_circle(size=size))
    layers.append(base.mark_circle(size=24, opacity=0).encode(tooltip=tooltip))
    layers += draw.zeros(base.encode(tooltip=tooltip), floor)
    if ranges:
        middle = float(np.sqrt(float(rows["length"].min()) * float(rows["length"].max())))
        layers += _range_marks(base, ranges, middle)
    below = max((span["rank"] + 1 for span in ranges), default=0)
    for place, limit in enumerate(limits, start=below):
        layers += _limit_marks(base, limit, HEIGHT - 5 - LINE * place)
    return draw.layers(*layers, width=WIDTH, height=HEIGHT)


def _range_marks(base: alt.Chart, ranges: list[dict[str, Any]], middle: float) -> list[alt.Chart]:
    """A pale band over each range of each panel, a line where it begins, and its words."""
    keys, ends, words = (
        theme.safe_json(values)
        for values in (
            [f"{span['panel']}|{span['first']}" for span in ranges],
            [span["last"] for span in ranges],
            [span["words"] for span in ranges],
        )
    )
    # One row a range, out of the rows that the panel already has: a facet's layers share their data.
    at = f"indexof({keys}, datum.panel + '|' + datum.length)"
    here = base.transform_filter(f"datum.quantity === 'distance' && {at} >= 0")
    here = here.transform_calculate(end=f"{ends}[{at}]", words=f"{words}[{at}]")
    x, whole = alt.X("length:Q"), {"y": alt.value(0), "y2": alt.value(HEIGHT), "detail": alt.Undefined}
    band = here.mark_rect(opacity=0.14).encode(x=x, x2="end:Q", **whole)
    rule = here.mark_rule(strokeWidth=1).encode(x=x, **whole)
    # Words stand on the side of the line that has more room, those of a panel's second range above those of its first.
    texts = []
    for rank in range(max(span["rank"] for span in ranges) + 1):
        own = theme.safe_json([f"{span['panel']}|{span['first']}" for span in ranges if span["rank"] == rank])
        chosen = here.transform_filter(f"indexof({own}, datum.panel + '|' + datum.length) >= 0")
        sides: tuple[tuple[str, Any, int], ...] = (("<=", "left", 4), (">", "right", -4))
        for side, align, dx in sides:
            text = chosen.transform_filter(f"datum.length {side} {middle:g}")
            text = text.mark_text(align=align, baseline="bottom", dx=dx, fontSize=10)
            height = alt.value(HEIGHT - 5 - LINE * rank)
            texts.append(text.encode(x=x, y=height, text="words:N", detail=alt.Undefined))
    return [band, rule, *texts]


def _limit_marks(base: alt.Chart, limit: dict[str, Any], height: int) -> list[alt.Chart]:
    """A dotted vertical line in every panel at a number of the model's own, with its words at that height."""
    here = base.transform_filter(f"datum.length === {limit['length']} && datum.quantity === 'distance'")
    x, neutral = alt.X("length:Q"), alt.value(theme.colour("float64"))
    rule = here.mark_rule(strokeWidth=1, strokeDash=[1, 2]).encode(
        x=x, y=alt.value(0), y2=alt.value(HEIGHT), color=neutral, detail=alt.Undefined
    )
    words = here.transform_calculate(words=theme.safe_json(limit["words"]))
    text = words.mark_text(align="right", baseline="bottom", dx=-4, fontSize=10)
    return [rule, text.encode(x=x, y=alt.value(height), text="words:N", color=neutral, detail=alt.Undefined)]
