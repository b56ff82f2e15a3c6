"""What charts of answers share: how an answer turned out, the length axis, and where a model's training ends."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.measure.answers.values import digits_in
from ostools.reporting.look import axes, draw, theme
from ostools.results import Column, Frame

RIGHT, OTHER_WORDS, WRONG = "right", "right, in other words", "wrong"
NOTHING_CAME = "nothing came"
OUTCOMES = (RIGHT, OTHER_WORDS, WRONG, SOMETHING_ELSE, CUT_OFF, NOTHING_CAME)
"""What a prompt can lead to: the right answer, the right digits in other words, a wrong answer, no answer, or a cut before
the answer; from a hosted model, nothing at all."""


def outcomes(frame: Frame) -> Column:
    """One of `OUTCOMES` for each row, from the columns correct, kind, answer and key.

    Of what is copied: digits are compared as they are written, "00" is not "0".
    """
    came, kind = frame["correct"].notna(), frame["kind"]
    correct = frame["correct"].astype("boolean").fillna(False).astype(bool)
    given: Any = frame["answer"].map(digits_in, na_action="ignore")
    same = given == frame["key"]
    found = correct.map({True: RIGHT, False: WRONG})
    found = found.mask(~correct & same, OTHER_WORDS)
    found = found.mask(kind == SOMETHING_ELSE, SOMETHING_ELSE).mask(kind == CUT_OFF, CUT_OFF)
    return found.mask(~came, NOTHING_CAME)


def length_axis(lengths: Column, title: str | None, labels: bool = True) -> alt.X:
    first, last = int(lengths.min()), int(lengths.max())
    return alt.X(
        "length:Q",
        title=title,
        scale=alt.Scale(domain=[first, max(last, first + 1)], nice=False, padding=8),
        axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(first, last), labels=labels),
    )


def training_end(trained: int | None, lengths: Column, height: float | int | None) -> list[Any]:
    """A dotted line where training ends, if that is inside the axis; with its words at `height` pixels, if any."""
    if trained is None or not int(lengths.min()) <= trained < int(lengths.max()):
        return []
    looks: dict[str, Any] = {"colour": theme.colour("float64"), "dash": [1, 2]}
    return draw.line_at("x", "length", trained, words=f"trained to {trained}", height=height, **looks)
