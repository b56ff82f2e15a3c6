"""What the position effect says: whether the middle of a text counts for less, whatever tokens stand there."""

from __future__ import annotations

from typing import Any

from ostools.experiments.position import MODEL, UNTRAINED, PositionEffect
from ostools.ground.words import number
from ostools.reporting.page.section import Finding
from ostools.results import Row

SHAPES = {
    "U-shape": "The middle of a text counts for less than both its ends.",
    "rises at the end only": "The start and the middle of a text count for less than its end.",
    "rises at the start only": "The start of a text counts for more than its middle and its end.",
    "inverted U": "The middle of a text counts for more than both its ends.",
    "no shape shown": "The test does not show that any part of a text counts for less.",
}
FALLS_BEHIND = ("U-shape", "rises at the end only")
"""Shapes in which the middle of a text counts for less than its end."""
SUBJECTS = {MODEL: "The model", UNTRAINED: "The same architecture before training"}


def contrast_words(result: PositionEffect) -> list[str]:
    """Of each source how many times the middle third's norm the other two have, with 95% intervals."""
    rows: Any = result.contrasts.set_index("source")
    return [
        f"{subject}: first third {_times(rows.loc[source], 'start')}, last third {_times(rows.loc[source], 'end')}."
        for source, subject in SUBJECTS.items()
        if source in rows.index
    ]


def position_headline(result: PositionEffect) -> Finding:
    """The shape of the model's own profile, the two contrasts, and what the untrained model shows."""
    parameters: Any = result.provenance.parameters
    rows: Any = result.contrasts.set_index("source")
    words = [
        f"Over {int(rows.loc[MODEL, 'passages'])} passages of {parameters['tokens']} tokens, each in three rotations, so that "
        "every token stands once in each third. Times the middle third's norm (95% interval over passages):",
        *contrast_words(result),
    ]
    if UNTRAINED in rows.index:
        words.append(_learnt(rows.loc["model minus untrained"]))
    return Finding(SHAPES[result.verdict], " ".join(words), "position", "Position")


def _times(row: Row, end: str) -> str:
    value, low, high = (number(10.0 ** float(row[f"{end}{part}"])) for part in ("", "_low", "_high"))
    return f"{value}× [{low}, {high}]"


def _learnt(row: Row) -> str:
    """Which of the two contrasts training changed."""
    words = {"start": "the first third", "end": "the last third"}
    changed = [words[end] for end in words if float(row[f"{end}_low"]) > 0 or float(row[f"{end}_high"]) < 0]
    if not changed:
        return "That training changed this is not shown."
    return f"Training changed {' and '.join(changed)}: the interval of the difference excludes zero."
