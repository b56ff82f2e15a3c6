"""Form: a token profile. Curves over the tokens of a prompt, its regions coloured, a chat template's tokens pale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ostools.reporting.forms.curve import curve
from ostools.reporting.look import axes, draw, regions, theme
from ostools.reporting.look.aside import banded
from ostools.results import Frame

WIDTH = 620
TOOLTIP = ("position:Q", "token:N", "series:N")


def shown_tokens(frame: Frame) -> list[str]:
    """The tokens of a table in the order of their positions, fit to be shown."""
    places = frame.drop_duplicates("position").sort_values("position")
    return [theme.shown(str(token)) for token in places["token"]]


def of_tokens(frame: Frame, **columns: Any) -> Frame:
    """The columns position and token of a table, fit to be drawn, and these."""
    tokens = [theme.shown(str(token)) for token in frame["token"]]
    return frame[["position"]].astype(int).assign(token=tokens, **columns)


def points(tokens: Sequence[str]) -> int:
    """The size of points: they are seen only where there is room between them."""
    return 16 if len(tokens) <= axes.TOKENS_NAMED else 0


def profile(
    rows: Frame,
    tokens: list[str],
    y: dict[str, Any],
    hue: Any,
    *,
    title: str = "",
    height: int = 260,
    last: bool = True,
    aside: Sequence[int] = (),
    coloured: bool = True,
    above: Sequence[Any] = (),
    below: Sequence[Any] = (),
    **looks: Any,
) -> Any:
    """One panel: a curve a series over the tokens.

    last: False leaves the names of tokens to a panel below. aside: positions of tokens that are not the text's.
    coloured: whether the regions of the prompt are. above, below: further marks, over the curves or under them.
    looks: of `curve`.
    """
    x = axes.token_axis(tokens, last, aside=aside)
    drawn = curve(rows, x, y, hue, **({"points": points(tokens), "tooltip": TOOLTIP} | looks))
    panel = banded(alt.layer(*below, *drawn, *above), aside)
    if coloured:
        panel = regions.coloured(panel, tokens, last, aside)
    heading = {"title": draw.heading(title, above=regions.room(tokens) if coloured else 0)} if title else {}
    return panel.properties(width=WIDTH, height=height, **heading)
