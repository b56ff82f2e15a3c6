"""What the charts share: log axes that say what they cannot show, data that travel inside the chart, one look.

An exact zero has no place on a log axis: it is drawn at the bottom edge as a hollow triangle, and the chart says so. So is
what lies below its own rounding: its size is that of a machine's order of adding numbers, and was not measured.
Non-finite and negative values are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import altair as alt

from ostools.ground.errors import InputError
from ostools.reporting.style import notebook, theme
from ostools.results import Column, Frame

ZERO_NOTE = "Triangles at the bottom edge are exact zeros: a log axis has no place for them."
ROUNDING_NOTE = (
    "Triangles at the bottom edge are below rounding (exact zeros, or what another order of the sums would change)."
)
"""In place of `ZERO_NOTE` where the values have a rounding."""
PALE = 0.5
"""Opacity of a name that stands aside."""
TOKENS_NAMED = 48
"""Most tokens that an axis names one by one."""
RUN, RUNS_NAMED = 3, 56
"""On a longer axis, at least this many equal tokens in a row get one name; about this many names are written at most."""


def lookup(values: Sequence[int | float | str], words: Sequence[str | list[str]]) -> str:
    """A Vega expression for a label: the word of each value, or its lines. ASCII JSON: no token can end its literal."""
    return f"{theme.safe_json(list(words))}[indexof({theme.safe_json(list(values))}, datum.value)]"


def require_finite(values: Column, what: str) -> None:
    bad = int((~values.astype(float).map(math.isfinite)).sum())
    if bad:
        raise InputError(f"{what} holds {bad} values that are not finite: nothing can be drawn from it")


def floored(data: Frame) -> tuple[Frame, float | None]:
    """The rows with `shown`, what stands on the log axis, and where the zeros stand (None without zeros).

    Where there is a column `rounding`, a value up to it stands with the zeros.
    """
    values = data["value"].astype(float)
    if (values < 0).any():
        raise InputError("a log axis was asked to show negative values; norms and distances cannot be negative")
    zero = values <= data.get("rounding", 0.0)
    if not zero.any():
        return data.assign(shown=values, zero=False), None
    least = values[~zero].min() if (~zero).any() else 1.0
    floor = 10.0 ** (math.floor(math.log10(least)) - 0.5)
    return data.assign(shown=values.where(~zero, floor), zero=zero), floor


def log_axis(positive: Column, floor: float | None) -> tuple[alt.Scale, alt.Axis]:
    """A log scale around the values, and an axis with as many round numbers as can be read.

    Powers of ten (every second, third, ... where there are many), with 2 and 5 between them where there are few.
    """
    low, high = float(positive.min()), float(positive.max())
    low, high = (low / 1.25 if floor is None else floor), max(high * 1.25, low * 4)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = max(1, math.ceil(len(powers) / 8))
    digits = (1,) if len(powers) > 5 else (1, 2, 5) if len(powers) <= 3 else (1, 3)
    values = [float(f"{digit}e{power}") for power in powers if power % step == 0 for digit in digits]
    values = [value for value in values if low <= value <= high and (floor is None or value > floor)]
    axis = alt.Axis(values=values, labelExpr=lookup(values, [_round_number(value) for value in values]), titleLimit=0)
    return alt.Scale(type="log", domain=[low, high], nice=False), axis


def log_channel(positive: Column, title: str | None, floor: float | None = None) -> dict[str, Any]:
    """The title, scale and axis of a log axis around the values."""
    scale, axis = log_axis(positive, floor)
    return {"title": title, "scale": scale, "axis": axis}


def count_axis(
    first: int, last: int, field: str, title: str | None, padding: int = 0, log: bool = False, **axis: Any
) -> alt.X:
    """An axis of whole numbers with so many pixels of room at both ends; `axis`: further properties, such as `values`."""
    kind: dict[str, Any] = {"type": "log"} if log else {}
    scale = alt.Scale(domain=[first, max(last, first + 1)], nice=False, padding=padding, **kind)
    looks: dict[str, Any] = {"grid": False, "format": "d", "values": whole_ticks(first, last)} | axis
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**looks))


def _round_number(value: float) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:.3g}" if value < 1 else f"{value:,.0f}"
    digits, power = f"{value:.0e}".split("e")
    return f"{digits}e{int(power)}"


def whole_ticks(first: int, last: int, most: int = 7) -> list[int]:
    """At most about `most` round whole numbers from `first` to `last`, for counts: Vega puts a tick of 3 at 2.5 too."""
    step = next(
        s for power in range(18) for s in (10**power, 2 * 10**power, 5 * 10**power) if (last - first) / s < most
    )
    return [*range(-(-first // step) * step, last + 1, step)] or [first]


def length_axis(lengths: Column, title: str = "length n (items of the sequence)") -> alt.X:
    """Logarithmic where the lengths span a factor of ten, with ticks at 1, 2, 5, 10, ..."""
    first, last = int(lengths.min()), int(lengths.max())
    kind = "log" if last >= 10 * first else "linear"
    return alt.X(
        "length:Q",
        title=title,
        scale=alt.Scale(type=kind, domain=[first, max(last, first + 1)], nice=False),
        axis=alt.Axis(grid=False, format="d", values=length_ticks(first, last)),
    )


def length_ticks(first: int, last: int) -> list[int]:
    """1, 2, 5, 10, ... where lengths span a factor of ten and stand on a log axis; else round whole numbers."""
    if last < 10 * first:
        return whole_ticks(first, last)
    ticks = (digit * 10**power for power in range(18) for digit in (1, 2, 5))
    return [tick for tick in ticks if first <= tick <= last]


def named_places(
    tokens: Sequence[str], places: Sequence[int | float], title: str, ticks: bool = True, aside: Sequence[int] = ()
) -> alt.Axis:
    """Each token with its position, upright, at its place; the tokens `aside` pale."""
    words = [f"{token} {position}" for position, token in enumerate(tokens)]
    return alt.Axis(
        grid=False,
        ticks=ticks,
        title=title,
        values=list(places),
        labelExpr=lookup(list(places), words),
        labelAngle=-90,
        labelAlign="right",
        labelBaseline="middle",
        labelOverlap=False,
        labelFontSize=10,
        labelLimit=0,
        labelOpacity=_pale([places[position] for position in aside]) if aside else alt.Undefined,
    )


def _pale(places: Sequence[int | float]) -> Any:
    """The opacity of labels: pale at these places."""
    test = f"indexof({theme.safe_json(list(places))}, datum.value) >= 0"
    return {"condition": {"test": test, "value": PALE}, "value": 1}


def _runs_named(tokens: Sequence[str], aside: Sequence[int]) -> alt.Axis:
    """A long prompt: a run of equal tokens has one name with its count, in its middle; of the rest as many as there is room."""
    runs, first = [], 0
    for token, run in groupby(tokens):
        count = len(list(run))
        if count >= RUN:
            runs.append((first + (count - 1) / 2, f"{token} ×{count}"))
        else:
            runs += [(place, f"{token} {place}") for place in range(first, first + count)]
        first += count
    step = -(-len(runs) // RUNS_NAMED)
    labels = [label for place, label in enumerate(runs) if place % step == 0 or "×" in label[1]]
    axis = named_places([], [], "token and its position i (×: so many in a row)", aside=())
    axis.values = [place for place, _ in labels]
    axis.labelExpr = lookup(axis.values, [words for _, words in labels])
    if aside:
        axis.labelOpacity = _pale(list(aside))
    return axis


def token_axis(
    tokens: Sequence[str],
    labelled: bool = True,
    field: str = "position",
    margin: float = 0.0,
    aside: Sequence[int] = (),
) -> alt.X:
    """The positions of a prompt, each with its token where there is room; `margin` on both sides for marks that are wide; the
    names of the tokens `aside` are pale."""
    if len(tokens) <= TOKENS_NAMED:
        axis = named_places(tokens, list(range(len(tokens))), "token and its position i", aside=aside)
    else:
        axis = _runs_named(tokens, aside)
    if not labelled:
        axis.labels, axis.title = False, None
    return alt.X(
        f"{field}:Q", scale=alt.Scale(domain=[-margin, max(len(tokens) - 1, 1) + margin], nice=False), axis=axis
    )


def zero_marks(base: alt.Chart) -> alt.Chart:
    marks = base.transform_filter("datum.zero")
    return marks.mark_point(shape="triangle-down", size=45, filled=False, opacity=1, strokeWidth=1.2)


def themed(chart: Any) -> Any:
    chart = notebook.offline(chart)
    chart.config = alt.Config.from_dict(theme.config(), validate=False)
    if isinstance(chart.title, alt.TitleParams):
        # A title names models, tasks and files, which may be called anything.
        parts = {name: chart.title[name] for name in ("text", "subtitle") if chart.title[name] is not alt.Undefined}
        chart.title = chart.title.copy()
        for name, text in parts.items():
            chart.title[name] = theme.visible(text) if isinstance(text, str) else [theme.visible(line) for line in text]
    return chart
