"""Whose the tokens are of which something is said: the text's, and what the others have beside them."""

from __future__ import annotations

from ostools.models.chat import MIXED, SPECIAL, SYSTEM, TEMPLATE
from ostools.results import Frame

OTHERS = {
    SPECIAL: "the {} special token{}",
    TEMPLATE: "the {} token{} of the chat template",
    SYSTEM: "the {} token{} of the system prompt",
    MIXED: "the {} token{} of several at once",
}
"""What tokens are called that are not the text's, with their number."""


def among(rows: Frame, every: Frame) -> str:
    """Of how many tokens is spoken, where that is not all."""
    return "" if len(rows) == len(every) else f"of the text's {_count(rows)} "


def others(every: Frame, rows: Frame, column: str) -> str:
    """A sentence, a blank before it: what the tokens have of the sum of a column that are not among the rows."""
    total = float(every[column].sum())
    if len(rows) == len(every) or not total:
        return ""
    parts = []
    for origin, words in OTHERS.items():
        here = every[every["origin"] == origin]
        if many := len(here):
            said = words.format(many, "s" * (many > 1))
            parts.append(f"{said} {'have' if many > 1 else 'has'} {float(here[column].sum()) / total:.1%}")
    return f" Of the sum over all {len(every)} tokens {', '.join(parts)}."


def _count(rows: Frame) -> str:
    return f"{len(rows)} token{'s' * (len(rows) > 1)}"
