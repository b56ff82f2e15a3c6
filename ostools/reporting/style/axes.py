"""Axes: logarithmic ones that say what they cannot show, lengths, shares, and the tokens of a
prompt.

An exact zero has no place on a log axis: it is drawn at the bottom edge as a hollow triangle, and
the chart says so. So is what lies below its own rounding, which was not measured. Non-finite and
negative values are refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ostools.ground import InputError
from ostools.reporting.style import theme
from ostools.results import Column, Frame, Looks

ZERO_NOTE = "Triangles at the bottom edge are exact zeros: a log axis has no place for them."
ROUNDING_NOTE = (
    "Triangles are below rounding (exact zeros, or what another order of the sums would change)."
)
"""In place of `ZERO_NOTE` where the values have a rounding."""
TOKENS_NAMED = 48
"""Most tokens that an axis names; of more every second, third, ..."""
LENGTH = "length n (items of the sequence)"


def lookup(values: Sequence[int | float | str], words: Sequence[str | list[str]]) -> str:
    """A Vega expression for a label: the word of each value. ASCII JSON: no token can end its
    literal.
    """
    return f"{theme.safe_json(list(words))}[indexof({theme.safe_json(list(values))}, datum.value)]"


def require_finite(values: Column, what: str) -> None:
    if bad := int((~values.astype(float).map(math.isfinite)).sum()):
        raise InputError(
            f"{what} holds {bad} values that are not finite: nothing can be drawn from it"
        )


def floored(data: Frame) -> tuple[Frame, float | None]:
    """The rows with `shown`, what stands on the log axis, and where the zeros stand (None without
    zeros).

    Where there is a column `rounding`, a value up to it stands with the zeros.
    """
    values = data["value"].astype(float)
    if (values < 0).any():
        raise InputError(
            "a log axis was asked to show negative values; norms and distances cannot be negative"
        )
    zero = values <= data.get("rounding", 0.0)
    if not zero.any():
        return data.assign(shown=values, zero=False), None
    least = values[~zero].min() if (~zero).any() else 1.0
    floor = 10.0 ** (math.floor(math.log10(least)) - 0.5)
    return data.assign(shown=values.where(~zero, floor), zero=zero), floor


_ROUND = (
    "datum.value < 0.001 || datum.value >= 10000 ? replace(format(datum.value, '.0~e'), '+', '')"
    " : format(datum.value, ',.3~r')"
)
"""A Vega expression for the round numbers of a log axis: 1e-5, 0.02, 5,000, 2e4."""


def log_axis(positive: Column, floor: float | None = None) -> tuple[alt.Scale, alt.Axis]:
    """A log scale around the values, and an axis with as many round numbers as can be read."""
    low, high = float(positive.min()), float(positive.max())
    low, high = (low / 1.25 if floor is None else floor), high * 1.25
    if narrow := high / low < 4:
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = max(1, math.ceil(len(powers) / 8))
    of_powers = (1,) if len(powers) > 5 else (1, 2, 5) if len(powers) <= 3 else (1, 3)
    digits = (1, 1.5, 2, 3, 5, 7) if narrow else of_powers
    values = [
        float(f"{digit}e{power}") for power in powers if power % step == 0 for digit in digits
    ]
    values = [
        value for value in values if low <= value <= high and (floor is None or value > floor)
    ]
    axis = alt.Axis(values=values, labelExpr=_ROUND, titleLimit=0)
    return alt.Scale(type="log", domain=[low, high], nice=False), axis


def log_channel(positive: Column, title: str | None, floor: float | None = None) -> Looks:
    """The title, scale and axis of a log axis around the values."""
    scale, axis = log_axis(positive, floor)
    return {"title": title, "scale": scale, "axis": axis}


def linear(
    title: str | None, domain: Sequence[float | int] = (), padding: int = 0, **axis: Any
) -> Looks:
    """The title, scale and axis of a linear axis; one without a domain fits the values, zero
    included.
    """
    scale = (
        alt.Scale(domain=list(domain), nice=False, padding=padding)
        if domain
        else alt.Scale(zero=True)
    )
    return {"title": title, "scale": scale, "axis": alt.Axis(**axis)}


def share(title: str) -> Looks:
    """The axis of shares: all of 0 to 1."""
    return linear(title, (0, 1), 4, format=".0%", values=[0, 0.25, 0.5, 0.75, 1])


def length_axis(
    lengths: Column,
    title: str | None = LENGTH,
    field: str = "length",
    padding: int = 0,
    *,
    log: bool | None = None,
    **axis: Any,
) -> alt.X:
    """An axis of whole numbers: logarithmic where they span a factor of ten, with ticks at 1, 2, 5,
    10, ...

    log: in place of that choice. axis: further properties.
    """
    first, last = int(lengths.min()), int(lengths.max())
    log = last >= 10 * first if log is None else bool(log)
    domain = [first, max(last, first + 1)]
    scale = alt.Scale(type="log" if log else "linear", domain=domain, nice=False, padding=padding)
    ticks = [tick for tick in round_numbers() if first <= tick <= last]
    ticks = ticks if log else whole_ticks(first, last)
    looks: Looks = {"grid": False, "format": "d", "values": ticks} | axis
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**looks))


def round_numbers() -> list[int]:
    """1, 2, 5, 10, 20, ..."""
    return [digit * 10**power for power in range(18) for digit in (1, 2, 5)]


def whole_ticks(first: int, last: int, most: int = 7) -> list[int]:
    """At most about `most` round whole numbers from `first` to `last`: Vega puts a tick of 3 at 2.5
    too.
    """
    step = next(step for step in round_numbers() if (last - first) / step < most)
    return [*range(-(-first // step) * step, last + 1, step)] or [first]


def token_axis(
    tokens: Mapping[int, str], field: str = "position", aside: Sequence[int | float] = ()
) -> alt.X:
    """The positions from the first to the last of these, each with its token where there is room,
    and half a token more on both sides. aside: tokens whose names are pale.
    """
    first, last = min(tokens, default=0), max(tokens, default=0)
    step = -(-(last - first + 1) // TOKENS_NAMED)
    # The last token always has its name.
    places = [place for place in sorted(tokens) if (last - place) % step == 0]
    pale: Any = {
        "condition": {"test": f"indexof({list(aside)}, datum.value) >= 0", "value": 0.5},
        "value": 1,
    }
    axis = alt.Axis(
        grid=False,
        title="token and its position i",
        values=places,
        labelAngle=-90,
        labelAlign="right",
        labelExpr=lookup(places, [f"{tokens[place]} {place}" for place in places]),
        labelBaseline="middle",
        labelOverlap=False,
        labelFontSize=10,
        labelLimit=0,
        labelOpacity=pale if aside else alt.Undefined,
    )
    scale = alt.Scale(domain=[first - 0.5, max(last, first + 1) + 0.5], nice=False)
    return alt.X(f"{field}:Q", scale=scale, axis=axis)


MANY_NAMES = 40
"""Of more names some are left out where they would lie on each other: both places of 30 layers."""


def names(
    order: Sequence[str],
    channel: Any = alt.Y,
    title: str | Sequence[str] | None = None,
    field: str = "name",
    **axis: Any,
) -> Any:
    """An axis of names in this order."""
    looks = {"ticks": False, "labelLimit": 0, "labelOverlap": len(order) > MANY_NAMES} | axis
    scale = alt.Scale(domain=list(order))
    return channel(f"{field}:N", sort=list(order), scale=scale, title=title, axis=alt.Axis(**looks))


def quiet(axis: Any) -> Any:
    """An axis without its words (an encoding, or title, scale and axis), for a panel whose
    neighbour has them.
    """
    copied, words = axis.copy(), axis["axis"].copy()
    words["labels"], words["title"] = False, None
    copied["title"], copied["axis"] = None, words
    return copied


def zero_marks(base: alt.Chart) -> alt.Chart:
    marks = base.transform_filter("datum.zero")
    return marks.mark_point(
        shape="triangle-down", size=45, filled=False, opacity=1, strokeWidth=1.2
    )
