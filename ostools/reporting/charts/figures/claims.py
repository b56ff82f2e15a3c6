"""The paper's claims on one model: a row a claim, its outcome in one of four columns."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.experiments.reproduce.claim import AGREES, BY_CONSTRUCTION, DISAGREES, OUTCOMES, UNTESTED
from ostools.experiments.reproduce.reproduction import Reproduction
from ostools.ground.words import short_name
from ostools.reporting.forms.bars import names
from ostools.reporting.forms.table import by_name, marked
from ostools.reporting.look import draw
from ostools.results import frame_of

WIDTH, ROW = 460, 19
_LOOKS = {
    AGREES: ("right", "circle"),
    BY_CONSTRUCTION: ("no answer", "cross"),
    DISAGREES: ("wrong", "diamond"),
    UNTESTED: ("no answer", "square"),
}


def claims_chart(result: Reproduction) -> Any:
    """The claims in the paper's order, each with its place; colour and shape say the same as the column."""
    frame = frame_of(result)
    rows = frame[["claim", "place", "outcome"]].assign(name=frame["claim"] + ", " + frame["place"])
    looks: dict[str, Any] = {"orient": "top", "labelAngle": 0, "grid": False, "domain": False}
    column = names(list(OUTCOMES), alt.X, field="outcome", **looks)
    row = names(list(rows["name"]), grid=True, domain=False)
    shown = marked(rows, column, row, by_name("outcome", _LOOKS, None), ["claim:N", "place:N", "outcome:N"], 70)
    panel = draw.layers(shown, width=WIDTH, height=ROW * max(len(rows), 1))
    told = ", ".join(f"{name}: {count}" for name, count in result.outcomes.items())
    return draw.figure([[panel]], f"{len(rows)} claims of the paper on {short_name(result.provenance.model)}", [told])
