"""The tokens of a prompt in a chart: its regions in colour, and the tokens of a chat template in grey."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.whole_numbers import in_a_row
from ostools.models.chat import MIXED, SPECIAL, SYSTEM, TEMPLATE, TEXT
from ostools.reporting.style import axes, draw, theme
from ostools.results import Frame

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
    texts = [_plain_text(token) for token in tokens]
    text = "".join(texts)
    run = max(_RUN.finditer(text), key=_digit_count, default=None)
    if run is None or _digit_count(run) < SHORTEST:
        return []
    end, question_mark = run.end(), text.rfind("?")
    cuts = [(run.start(), QUESTION if "?" in text[: run.start()] else OPENING), (end, SEQUENCE)]
    cuts += [(question_mark + 1, QUESTION)] if question_mark >= end else []
    cuts += [(len(text), INSTRUCTION)]
    names, at = [], 0
    for piece in texts:
        # A token belongs to the region of its first character that is no blank; one without text to none.
        place = at + (len(piece) - len(piece.lstrip()) if piece.strip() else 0)
        names.append(next((name for stop, name in cuts if place < stop), cuts[-1][1]) if piece else "")
        at += len(piece)
    starts = [place for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
    ends = [*(start - 1 for start in starts[1:]), len(names) - 1]
    return [Region(names[first], first, last) for first, last in zip(starts, ends, strict=True) if names[first]]


def _plain_text(token: str) -> str:
    """The text of a token; what stands for a blank is one, and what is written as <s> is no text."""
    plain = token.replace("▁", " ").replace("Ġ", " ").replace("·", " ")
    return "" if re.fullmatch(r"<[^<> ]*>", plain) else plain


def _digit_count(run: re.Match[str]) -> int:
    return sum(character.isdigit() for character in run.group())


def colour_regions(chart: Any, tokens: Sequence[str], labelled: bool = True, aside: Sequence[int] = ()) -> Any:
    """The chart, whose x is the position, under a strip of the regions' colours with their names; the axis is the chart's."""
    named_regions = regions(tokens)
    if not named_regions:
        return chart
    data = pd.DataFrame(
        {
            "from": [max(region.first - 0.5, 0) for region in named_regions],
            "to": [min(region.last + 0.5, len(tokens) - 1) for region in named_regions],
            "hue": [theme.colour(region.name) for region in named_regions],
            "words": [f"{region.name} ({region.last - region.first + 1})" for region in named_regions],
            "tier": [place % 2 for place in range(len(named_regions))],
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


def regions_height(tokens: Sequence[str]) -> int:
    """How many pixels the names take above the panel: a title has to stand above them."""
    return _STRIP + 2 + 2 * _LINE if regions(tokens) else 0


TEMPLATE_NOTE = "Grey: tokens that are not the text's (chat template, system prompt)."
"""What a chart with such tokens says."""
_UNDERLINE = 2  # pixels: names begin right below


def template_positions(frame: Frame) -> list[int]:
    """The positions of all tokens that are not the text's, of a prompt in a chat template; none of any other prompt."""
    if "origin" not in frame or frame["origin"].isna().any() or set(frame["origin"]) <= {SPECIAL, TEXT}:
        return []
    return sorted({int(place) for place in frame.loc[frame["origin"] != TEXT, "position"]})


def template_note(positions: Sequence[int]) -> list[str]:
    """The line about them in a chart's subtitle, where there are any."""
    return [TEMPLATE_NOTE] if positions else []


def band_template(chart: Any, positions: Sequence[int]) -> Any:
    """The chart, whose x is the position, over a grey band at each run of these positions."""
    if not positions:
        return chart
    data = _run_ends(positions, -0.5)
    rects = draw.rows(data).mark_rect(color=theme.colour("opening"), opacity=0.14, clip=True)
    return alt.layer(rects.encode(x=alt.X("from:Q"), x2="to:Q"), chart)


def underline_template(chart: Any, positions: Sequence[int], height: int, start: float = -0.5) -> Any:
    """The heat map, `height` pixels high, over a grey line at each run of these positions; `start`: of column 0."""
    if not positions:
        return chart
    data = _run_ends(positions, start)
    line = draw.rows(data).mark_rect(color=theme.colour("opening"))
    y, y2 = alt.value(height), alt.value(height + _UNDERLINE)
    return alt.layer(chart, line.encode(x=alt.X("from:Q"), x2="to:Q", y=y, y2=y2))


def _run_ends(positions: Sequence[int], start: float) -> Frame:
    """From where to where each run of neighbours goes on the axis, where a column is 1 wide."""
    runs = in_a_row(positions)
    return pd.DataFrame({"from": [run[0] + start for run in runs], "to": [run[-1] + start + 1.0 for run in runs]})


ORIGIN_WORDS = {
    SPECIAL: "the {} special token{}",
    TEMPLATE: "the {} token{} of the chat template",
    SYSTEM: "the {} token{} of the system prompt",
    MIXED: "the {} token{} of several at once",
}
"""What tokens are called that are not the text's, with their number."""


def token_count_words(rows: Frame, every: Frame) -> str:
    """Of how many tokens is spoken, where that is not all."""
    return "" if len(rows) == len(every) else f"of the text's {_count(rows)} "


def template_share(every: Frame, rows: Frame, column: str) -> str:
    """A sentence, a blank before it: what the tokens have of the sum of a column that are not among the rows."""
    total = float(every[column].sum())
    if len(rows) == len(every) or not total:
        return ""
    parts = []
    for origin, words in ORIGIN_WORDS.items():
        group = every[every["origin"] == origin]
        if many := len(group):
            token_words = words.format(many, "s" * (many > 1))
            parts.append(f"{token_words} {'have' if many > 1 else 'has'} {float(group[column].sum()) / total:.1%}")
    return f" Of the sum over all {len(every)} tokens {', '.join(parts)}."


def _count(rows: Frame) -> str:
    return f"{len(rows)} token{'s' * (len(rows) > 1)}"
