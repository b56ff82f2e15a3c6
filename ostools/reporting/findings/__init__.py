"""Functions from a result to at most `MOST` sentences: a number, its unit, its interval, what it is
compared with.

A measured number is called measured, a bound certified, the paper's form the paper's, a prediction
predicted. What a result shows beyond these sentences stands in its tables; what it means stands in
the docs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST = 5
SHAPES = {
    "U-shape": ("U", "The middle of {} counts for less than both its ends"),
    "rises at the end only": (
        "recency",
        "The end of {} counts for more than its middle, and its start is not shown to",
    ),
    "rises at the start only": (
        "primacy",
        "The start of {} counts for more than its middle, and its end is not shown to",
    ),
    "inverted U": ("inverted U", "The middle of {} counts for more than both its ends"),
    "no shape shown": ("none", "It is not shown that any part of {} counts for more than another"),
}
"""By the shape of a profile (`theory.profiles`) its word, and its sentence about a text."""


def shape_sentence(shape: str, text: str) -> str:
    """What a shape says of `text` ("the prompt"), with the shape's word where it has one."""
    word, sentence = SHAPES[shape]
    return sentence.format(text) + ("." if word == "none" else f" ({word}).")


def present(*sentences: str) -> list[str]:
    """The sentences that are not empty."""
    return [sentence for sentence in sentences if sentence]


def as_one_finding(sentences: Iterable[str]) -> str:
    """The sentences that are not empty, as one finding."""
    return " ".join(filter(None, sentences))


def first_few(sentences: Sequence[str], count: int = MOST) -> list[str]:
    """The first `count` sentences; the last of them says how many more there are."""
    first, more = list(sentences[:count]), len(sentences) - count
    if more > 0:
        first[-1] += f" {more} more like this stand{'s' * (more == 1)} in the table."
    return first
