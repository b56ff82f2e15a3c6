"""What each part carries of the answer: the share of the clean-corrupt gap that goes with it, layer
by layer.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.patching.patching import DENOISING, KNOCKOUT, LOG_P, NOISING, Patching
from ostools.measure.patching.runs import HEADS, RESIDUAL
from ostools.reporting.findings.effects import patched_logit
from ostools.reporting.forms import TOKENS_WIDTH, gradient, heat
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame

_DIRECTIONS = {
    DENOISING: "denoising: clean into corrupt",
    NOISING: "noising: corrupt into clean",
    KNOCKOUT: "knockout: this position is not seen",
}
_PARTS = {
    RESIDUAL: "the residual stream",
    "attention-out": "attention's output",
    "mlp-out": "the MLP's output",
    HEADS: "a head's output",
    "edges": "attention edges",
}


def patching_chart(result: Patching) -> Chart:
    """A panel a direction: layers up, tokens (heads) across, red where a part carries the answer,
    blue against it.

    Of the logit, or of the logit difference. Positions whose parts have no effect anywhere before
    the first that has some are left out: there both prompts are the same.
    """
    table: Frame = result.frame
    table = table[table["quantity"] != LOG_P]
    axes.require_finite(table["share"], "patching")
    by_head = bool(table["head"].notna().any())
    column = "head" if by_head else "position"
    moved: Any = table.loc[table["effect"] != 0, column]
    rows = table if by_head or moved.empty else table[table[column] >= moved.min()]
    words = [theme.short_word(str(token)) for token in rows["token"]]
    names = [
        str(head) if by_head else f"{word} {positions}"
        for word, positions, head in zip(words, rows["positions"], rows["head"], strict=True)
    ]
    largest = max(1.0, float(rows["share"].abs().max()))
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(scheme="redblue", reverse=True, domain=[-largest, largest]),
        legend=gradient("share of the clean-corrupt gap"),
    )
    cells = rows.assign(value=rows["share"], name=names)[
        ["direction", "layer", "name", "token", "value", "effect"]
    ]
    directions = list(dict.fromkeys(cells["direction"]))
    beside = 2 * _width(cells["name"].nunique()) < TOKENS_WIDTH
    panels = [
        _panel(
            cells[cells["direction"] == name],
            name,
            colour,
            beside or name == directions[-1],
            by_head,
        )
        for name in directions
    ]
    parameters = result.provenance.parameters
    left_out = len(table) - len(rows)
    notes = (
        [
            "Left out: the tokens before the first that differs; nothing patched there changes anything."
        ]
        if left_out
        else []
    )
    title = f"Where {_PARTS[parameters['what']]} carries the logit {patched_logit(table)}"
    return draw.figure(
        [panels] if beside else [[panel] for panel in panels],
        title,
        [result.findings()[len(directions)], *notes],
        spacing=26,
        between=18,
        color="shared",
    )


def _panel(cells: Frame, direction: str, colour: Any, last: bool, by_head: bool) -> Any:
    names, layers = list(dict.fromkeys(cells["name"])), cells["layer"].nunique()
    x = alt.X(
        "name:N",
        sort=names,
        title="head" if by_head else "token and its position",
        axis=_token_axis(),
    )
    up = alt.Y(
        "layer:O", sort="descending", title="layer", axis=alt.Axis(ticks=False, labelOverlap=True)
    )
    marks = heat(cells, x if last else axes.quiet(x), up, colour)
    return draw.panel(
        marks, _width(len(names)), max(90, min(11 * layers, 340)), _DIRECTIONS[direction]
    )


def _width(names: int) -> int:
    return min(TOKENS_WIDTH, max(240, 22 * names))


def _token_axis() -> alt.Axis:
    return alt.Axis(labelAngle=-90, ticks=False, labelOverlap=False, labelLimit=0, labelFontSize=10)
