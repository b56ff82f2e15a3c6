"""The regions of a prompt in a chart: what stands before its sequence, the sequence, the question, the instruction.

The rule, as a prompt is only a text here: the sequence is the longest run of digits, with commas and blanks between them, of at
least `SHORTEST` digits. What stands before it is the opening, or the question if it holds a question mark. What stands after
it is the question up to its last question mark, and the instruction from there on. A text without such a run has no regions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from ostools.reporting.look import axes, draw, theme

OPENING, SEQUENCE, QUESTION, INSTRUCTION = "opening", "sequence", "question", "instruction"
SHORTEST = 4
"""The fewest digits that are named a sequence."""
_RUN = re.compile(r"\d(?:[\d, ]*\d)?")
_STRIP, _LINE = 5, 13  # pixels: the coloured strip, a line of names


@dataclass(frozen=True)
class Region:
    """The tokens from `first` to `last`, both in it."""

    name: str
    first: int
    last: int


def regions(tokens: Sequence[str]) -> list[Region]:
    """The regions of a prompt out of the texts of its tokens; none where it holds no sequence."""
    texts = [_plain(token) for token in tokens]
    text = "".join(texts)
    found = max(_RUN.finditer(text), key=_digits, default=None)
    if found is None or _digits(found) < SHORTEST:
        return []
    end, asked = found.end(), text.rfind("?")
    cuts = [(found.start(), QUESTION if "?" in text[: found.start()] else OPENING), (end, SEQUENCE)]
    cuts += [(asked + 1, QUESTION)] if asked >= end else []
    cuts += [(len(text), INSTRUCTION)]
    names, at = [], 0
    for one in texts:
        # A token belongs to the region of its first character that is no blank; one without text to none.
        place = at + (len(one) - len(one.lstrip()) if one.strip() else 0)
        names.append(next((name for stop, name in cuts if place < stop), cuts[-1][1]) if one else "")
        at += len(one)
    starts = [place for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
    ends = [*(start - 1 for start in starts[1:]), len(names) - 1]
    return [Region(names[first], first, last) for first, last in zip(starts, ends, strict=True) if names[first]]


def _plain(token: str) -> str:
    """The text of a token; what stands for a blank is one, and what is written as <s> is no text."""
    plain = token.replace("▁", " ").replace("Ġ", " ").replace("·", " ")
    return "" if re.fullmatch(r"<[^<> ]*>", plain) else plain


def _digits(found: re.Match[str]) -> int:
    return sum(character.isdigit() for character in found.group())


def coloured(chart: Any, tokens: Sequence[str], labelled: bool = True, aside: Sequence[int] = ()) -> Any:
    """The chart, whose x is the position, under a strip of the regions' colours with their names; the axis is the chart's."""
    found = regions(tokens)
    if not found:
        return chart
    data = pd.DataFrame(
        {
            "from": [max(region.first - 0.5, 0) for region in found],
            "to": [min(region.last + 0.5, len(tokens) - 1) for region in found],
            "hue": [theme.colour(region.name) for region in found],
            "words": [f"{region.name} ({region.last - region.first + 1})" for region in found],
            "tier": [place % 2 for place in range(len(found))],
        }
    )
    # Colours as they are: a scale of their own would be joined with the chart's.
    x = axes.token_axis(tokens, labelled, field="from", aside=aside)
    base = draw.rows(data).encode(x=x, color=alt.Color("hue:N", scale=None))
    marks = [
        base.mark_rect(opacity=0.07, clip=True).encode(x2="to:Q"),
        base.mark_rect(opacity=1).encode(x2="to:Q", y=alt.value(-_STRIP), y2=alt.value(0)),
    ]
    # Neighbours' names stand on two lines, so that a short region's has room.
    for tier in (0, 1):
        words = base.transform_filter(f"datum.tier === {tier}").mark_text(align="left", baseline="bottom", fontSize=10)
        # In ink: of the colours of regions some are too faint for words.
        at = alt.value(-_STRIP - 2 - tier * _LINE)
        marks.append(words.encode(text="words:N", y=at, color=alt.value(theme.INK)))
    return alt.layer(*marks, chart)


def room(tokens: Sequence[str]) -> int:
    """How many pixels the names take above the panel: a title has to stand above them."""
    return _STRIP + 2 + 2 * _LINE if regions(tokens) else 0
