"""The charts of the results, as Altair objects that carry their own data and look.

Each takes a result and returns a chart: `.save("figure.pdf")`, or the last line of a notebook cell. Every value that
cannot stand on a log axis is still shown: an exact zero is drawn at the bottom edge as a hollow triangle, and the
subtitle says so. Non-finite values are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import altair as alt
import pandas as pd

from ostools.errors import InputError
from ostools.reporting import theme

if TYPE_CHECKING:
    from ostools.results import Result

NORMS = {"operator": "operator norm of ∂y/∂v", "frobenius": "Frobenius norm of ∂y/∂v"}
NORM_WORDS = {"l1": "L1", "l2": "L2", "linf": "L∞", "cosine": "cosine"}
ZERO_NOTE = "Triangles at the bottom edge are exact zeros: a log axis has no place for them."
_TOKENS_ON_AXIS = 48


def sensitivity_chart(result: Result) -> alt.VConcatChart:
    """Measured sensitivity of y_n to every token, one line per linearisation, one panel per norm."""
    return _profiles(measured_rows(result.frame), "Measured sensitivity of the last representation to each token")


def path_sum_chart(result: Result) -> alt.VConcatChart:
    """The path sums over the tokens: certified bounds dashed, the paper's forms dotted, predictions dash-dotted."""
    return _profiles(path_rows(result.frame), "Path sums of Theorem 5.1 over the tokens")


def comparison_chart(result: Result) -> alt.VConcatChart:
    """Measured, certified, the paper's and predicted profiles on one log axis per norm."""
    rows = result.frame.rename(columns={"source": "name"})
    return _profiles(rows, "Measured sensitivity against the path sums")


def measured_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """A sensitivity table in the long form of the others: one row per position, linearisation and norm."""
    rows = frame.melt(
        id_vars=["position", "token", "linearisation"],
        value_vars=["operator_norm", "frobenius_norm"],
        var_name="norm",
        value_name="value",
    )
    rows["norm"] = rows["norm"].str.removesuffix("_norm")
    return rows.assign(kind="measured", name=rows["linearisation"])


def path_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """A path-sum table with the columns of the others."""
    return frame.rename(columns={"variant": "name"})


def _profiles(rows: pd.DataFrame, title: str) -> alt.VConcatChart:
    """One panel per norm, one line per name, over the positions."""
    _require_finite(rows["value"], "a profile")
    data = pd.DataFrame(
        {
            "position": rows["position"].astype(int),
            "token": [theme.display_token(str(token)) for token in rows["token"]],
            "series": [theme.series(str(kind), str(name)) for kind, name in zip(rows["kind"], rows["name"], strict=True)],
            "kind": rows["kind"].astype(str),
            "name": rows["name"].astype(str),
            "linearisation": rows["linearisation"].astype(str),
            "norm": rows["norm"].astype(str),
            "value": rows["value"].astype(float),
        }
    )
    legend = _legend(data)
    tokens = data.drop_duplicates("position").sort_values("position")["token"].tolist()
    norms = [norm for norm in (*NORMS, *sorted(set(data["norm"]) - set(NORMS))) if (data["norm"] == norm).any()]
    panels = [_profile_panel(data[data["norm"] == norm], norm, legend, tokens, norm == norms[-1]) for norm in norms]
    subtitle = [ZERO_NOTE] if (data["value"] == 0).any() else []
    chart = alt.vconcat(*panels, title=alt.TitleParams(title, subtitle=subtitle), spacing=18)
    return _themed(chart.resolve_scale(color="shared", strokeDash="shared"))


def _legend(data: pd.DataFrame) -> dict[str, Any]:
    """Colour and dash of each series, in one legend: measured first, then certified, the paper's, predicted."""
    order = {kind: rank for rank, kind in enumerate(theme.KINDS)}
    names = data[["series", "kind", "name"]].drop_duplicates()
    names = names.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable")
    labels = names["series"].tolist()
    legend = alt.Legend(title=None)
    return {
        "color": alt.Color(
            "series:N",
            scale=alt.Scale(domain=labels, range=[theme.colour(name) for name in names["name"]]),
            legend=legend,
        ),
        "strokeDash": alt.StrokeDash(
            "series:N",
            scale=alt.Scale(domain=labels, range=[theme.DASHES[kind] for kind in names["kind"]]),
            legend=legend,
        ),
    }


def _profile_panel(data: pd.DataFrame, norm: str, legend: dict[str, Any], tokens: list[str], last: bool) -> alt.LayerChart:
    floored, floor = _floored(data)
    scale, axis = _log_axis(floored["shown"], floor)
    y = alt.Y("shown:Q", title=NORMS.get(norm, norm), scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("position:Q"),
        alt.Tooltip("token:N"),
        alt.Tooltip("series:N"),
        alt.Tooltip("linearisation:N"),
        alt.Tooltip("value:Q", format=".4g"),
    ]
    base = _chart(floored).encode(x=_position_axis(tokens, last), y=y, color=legend["color"], tooltip=tooltip)
    layers: list[Any] = [base.mark_line().encode(strokeDash=legend["strokeDash"], detail="series:N")]
    # Points carry the tooltips; they are seen only where there is room between them.
    layers.append(base.mark_circle(size=16, opacity=0.9 if len(tokens) <= _TOKENS_ON_AXIS else 0))
    if floor is not None:
        layers.append(_zero_marks(base))
    return alt.layer(*layers).properties(width=620, height=260)


def _position_axis(tokens: list[str], labelled: bool) -> alt.X:
    axis = alt.Axis(grid=False, tickMinStep=1, title="position i of the token")
    if len(tokens) <= _TOKENS_ON_AXIS:
        words = [f"{token} {place}" for place, token in enumerate(tokens)]
        axis = alt.Axis(
            grid=False,
            title="token and its position i",
            values=list(range(len(tokens))),
            labelExpr=_lookup(list(range(len(tokens))), words),
            labelAngle=-90,
            labelAlign="right",
            labelBaseline="middle",
            labelOverlap=False,
            labelFontSize=10,
            labelLimit=0,
        )
    if not labelled:
        axis.labels, axis.title = False, None
    return alt.X("position:Q", scale=alt.Scale(domain=[0, max(len(tokens) - 1, 1)], nice=False), axis=axis)


def _lookup(values: Sequence[float], words: Sequence[str]) -> str:
    """A Vega expression that puts the words at the values. ASCII JSON, so that nothing in a token can end its literal."""
    return f"{theme.safe_json(list(words))}[indexof({theme.safe_json(list(values))}, datum.value)]"


QUANTITIES = {
    "theorem": ("distance, v against v + its last token again (Theorem 4.2)", [1, 0]),
    "one-more-digit": ("distance, one more digit (n against n + 2 tokens, no theorem)", [9, 3, 2, 3]),
    "task": ("distance, n against n + 1 items of a task (no theorem)", [5, 2]),
    "noise": ("rounding noise of the run in this dtype", [2, 2]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""
REFERENCE_DTYPES = ("float64", "float32")


def collapse_chart(
    result: Result,
    sites: Sequence[str] = ("residual", "y", "logits"),
    *,
    per: str = "vector",
    norm: str = "l2",
) -> alt.FacetChart:
    """Distance between the two last-token representations against length, a panel per site and dtype.

    Each panel holds the measured distance of every pair, the rounding noise of that dtype, its machine line, and, in
    the most exact dtype's colour, the distance that the collapse length is read from; a vertical line stands at the
    collapse length where one was reached. Heads (`per`) and seeds are shown by their mean, with a band from the least to
    the greatest.
    """
    frame = result.frame
    frame = frame[frame["site"].isin(list(sites)) & (frame["per"] == per) & (frame["norm"] == norm)]
    if frame.empty:
        known = sorted({f"{r.site}/{r.per}/{r.norm}" for r in result.frame.itertuples()})
        raise InputError(f"no collapse rows for {'/'.join(sites)}, per={per!r}, norm={norm!r}; there are {', '.join(known)}")
    dtypes = list(dict.fromkeys(frame["dtype"]))
    order = [f"{site}, {dtype}" for site in sites if (frame["site"] == site).any() for dtype in dtypes]
    data = _collapse_rows(frame)
    _require_finite(data["value"], "a collapse curve")
    chart = _collapse_layers(data, norm).facet(
        facet=alt.Facet("panel:N", sort=order, title=None), columns=len(dtypes), spacing=22
    )
    tasks = ", ".join(sorted(set(map(str, frame["task"]))))
    subtitle = [ZERO_NOTE] if (data["value"] == 0).any() else []
    title = alt.TitleParams(f"Distance of the last-token representations, {tasks}", subtitle=subtitle)
    return _themed(chart.properties(title=title))


def _collapse_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per point drawn: panel, length, quantity, value, low, high, the dtype that gives the colour."""
    keys = ["task", "pair", "length", "tokens", "dtype", "site"]
    merged = frame.groupby(keys, as_index=False, sort=False, observed=True).agg(
        value=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("noise", "mean"),
        machine_line=("machine_line", "mean"),
    )
    distances = merged.assign(quantity=merged["pair"], hue=merged["dtype"])
    parts = [distances]
    # The floors belong to the representation, not to the pair: drawn once, from the pair that the theorem is about.
    first = "theorem" if (merged["pair"] == "theorem").any() else merged["pair"].iloc[0]
    floors = distances[distances["pair"] == first]
    for quantity in ("noise", "machine_line"):
        present = floors[floors[quantity].notna()]
        parts.append(present.assign(value=present[quantity], low=present[quantity], high=present[quantity], quantity=quantity))
    exact = next((dtype for dtype in REFERENCE_DTYPES if (merged["dtype"] == dtype).any()), None)
    reference = floors[floors["dtype"] == exact]
    for dtype in set(merged["dtype"]) - {exact}:
        parts.append(reference.assign(dtype=dtype, low=reference["value"], high=reference["value"]))
    rows = pd.concat(parts, ignore_index=True)
    rows["reference"] = rows["hue"] != rows["dtype"]
    rows["panel"] = rows["site"] + ", " + rows["dtype"]
    return rows.drop(columns=["noise", "machine_line", "task", "pair"])


def _collapse_layers(data: pd.DataFrame, norm: str) -> alt.LayerChart:
    floored, floor = _floored(data)
    lows = floored["low"].where(floored["low"] > 0, floored["shown"])
    floored = floored.assign(low=lows, band=floored["high"] > floored["low"])
    hues = [dtype for dtype in theme.COLOURS if dtype in set(floored["hue"])]
    quantities = [name for name in QUANTITIES if name in set(floored["quantity"])]
    words = {name: QUANTITIES[name][0] for name in quantities}
    floored["drawn"] = floored["quantity"].map(words)
    span = (int(floored["length"].min()), int(floored["length"].max()))
    kind = "log" if span[0] > 0 and span[1] >= 10 * span[0] else "linear"
    rounds = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    ticks = [value for value in rounds if span[0] <= value <= span[1]] if kind == "log" else alt.Undefined
    scale, axis = _log_axis(pd.concat([floored["shown"], lows]), floor)
    base = _chart(floored).encode(
        x=alt.X(
            "length:Q",
            title="length n (items of the sequence)",
            scale=alt.Scale(type=kind, domain=list(span), nice=False),
            axis=alt.Axis(grid=False, format="d", tickMinStep=1, values=ticks),
        ),
        y=alt.Y(
            "shown:Q",
            title=f"{NORM_WORDS.get(norm, norm)} distance",
            scale=scale,
            axis=axis,
        ),
        color=alt.Color(
            "hue:N",
            scale=alt.Scale(domain=hues, range=[theme.colour(hue) for hue in hues]),
            legend=alt.Legend(title="dtype", columns=len(hues), symbolStrokeWidth=4),
        ),
        detail=["drawn:N"],
    )
    dashes = alt.StrokeDash(
        "drawn:N",
        scale=alt.Scale(domain=list(words.values()), range=[QUANTITIES[name][1] for name in quantities]),
        legend=alt.Legend(title=None, columns=1),
    )
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("tokens:Q"),
        alt.Tooltip("drawn:N", title="what"),
        alt.Tooltip("hue:N", title="dtype"),
        alt.Tooltip("value:Q", format=".4g"),
    ]
    layers: list[Any] = []
    if floored["band"].any():
        band = base.transform_filter("datum.band").mark_area(opacity=0.18)
        layers.append(band.encode(y=alt.Y("low:Q"), y2="high:Q"))
    # The reference lies under the dtype's own lines, and thinner.
    layers.append(base.transform_filter("datum.reference").mark_line(strokeWidth=1).encode(strokeDash=dashes))
    layers.append(base.transform_filter("!datum.reference").mark_line(strokeWidth=1.5).encode(strokeDash=dashes))
    layers.append(base.mark_circle(size=24, opacity=0).encode(tooltip=tooltip))
    if floor is not None:
        layers.append(_zero_marks(base.encode(tooltip=tooltip)))
    return alt.layer(*layers).properties(width=240, height=190)


def _chart(data: pd.DataFrame) -> alt.Chart:
    """A chart with its rows inside, whatever the reader's Altair settings are; numbers to six significant digits."""
    rows = [
        {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in cast("list[dict[str, Any]]", data.to_dict(orient="records"))
    ]
    return alt.Chart(alt.InlineData(values=cast(Any, rows)))


def _require_finite(values: pd.Series, what: str) -> None:
    bad = int((~values.astype(float).map(math.isfinite)).sum())
    if bad:
        raise InputError(f"{what} holds {bad} values that are not finite: nothing can be drawn from it")


def _floored(data: pd.DataFrame) -> tuple[pd.DataFrame, float | None]:
    """The rows with `shown`, what stands on the log axis, and where the zeros stand (None without zeros)."""
    values = data["value"].astype(float)
    if (values < 0).any():
        raise InputError("a log axis was asked to show negative values; norms and distances cannot be negative")
    zero = values == 0
    if not zero.any():
        return data.assign(shown=values, zero=False), None
    least = values[~zero].min() if (~zero).any() else 1.0
    floor = 10.0 ** (math.floor(math.log10(least)) - 0.5)
    return data.assign(shown=values.where(~zero, floor), zero=zero), floor


def _log_axis(shown: pd.Series, floor: float | None) -> tuple[alt.Scale, alt.Axis]:
    """A log scale around the values, and an axis with as many round numbers as can be read.

    Powers of ten (every second, third, ... where there are many), with 2 and 5 between them where there are few.
    """
    low, high = float(shown.min()), float(shown.max())
    low, high = (low / 1.25 if floor is None else floor), max(high * 1.25, low * 4)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = max(1, math.ceil(len(powers) / 8))
    digits = (1,) if len(powers) > 5 else (1, 2, 5) if len(powers) <= 3 else (1, 3)
    values = [float(f"{digit}e{power}") for power in powers if power % step == 0 for digit in digits]
    values = [value for value in values if low <= value <= high and (floor is None or value > floor)]
    axis = alt.Axis(values=values, labelExpr=_lookup(values, [_round_number(value) for value in values]), titleLimit=0)
    return alt.Scale(type="log", domain=[low, high], nice=False), axis


def _round_number(value: float) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:.3g}" if value < 1 else f"{value:,.0f}"
    digits, power = f"{value:.0e}".split("e")
    return f"{digits}e{int(power)}"


def _zero_marks(base: alt.Chart) -> alt.Chart:
    marks = base.transform_filter("datum.zero")
    return marks.mark_point(shape="triangle-down", size=45, filled=False, opacity=1, strokeWidth=1.2)


def _themed(chart: Any) -> Any:
    chart = chart.copy(deep=False)
    chart.config = alt.Config.from_dict(theme.config(), validate=False)
    return chart
