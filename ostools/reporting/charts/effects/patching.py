"""What each part carries of the answer: the share of the clean-corrupt gap that goes with it, layer
by layer.
"""

from __future__ import annotations

import altair as alt

from ostools.measure.patching.patching import DENOISING, KNOCKOUT, LOG_P, NOISING, Patching
from ostools.measure.patching.runs import HEADS, RESIDUAL
from ostools.reporting.findings.effects import patched_logit
from ostools.reporting.forms import TOKENS_WIDTH, gradient, heat, layers_up
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.theme import Looks
from ostools.results import Chart, Frame

_DIRECTIONS = {
    DENOISING: "denoising: clean into corrupt",
    NOISING: "noising: corrupt into clean",
    KNOCKOUT: "knockout: this position is not seen",
}
_LEFT_OUT = (
    "Left out: the tokens before the first that differs; nothing patched there changes anything."
)
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
    moved = table.loc[table["effect"] != 0, column]
    rows = table if by_head or moved.empty else table[table[column] >= moved.min()]
    tokens = [theme.short_word(str(token)) for token in rows["token"]]
    names = [
        str(head) if by_head else f"{word} {positions}"
        for word, positions, head in zip(tokens, rows["positions"], rows["head"], strict=True)
    ]
    largest = max(1.0, float(rows["share"].abs().max()))
    scale = alt.Scale(scheme="redblue", reverse=True, domain=[-largest, largest])
    colour = alt.Color("value:Q", scale=scale, legend=gradient("share of the clean-corrupt gap"))
    columns = ["direction", "layer", "name", "token", "value", "effect"]
    cells = rows.assign(value=rows["share"], name=names)[columns]
    title = "head" if by_head else "token and its position"
    words: Looks = {"labelAngle": -90, "labelFontSize": 10, "labelOverlap": False}
    x = axes.names(list(dict.fromkeys(cells["name"])), alt.X, title, **words)
    count, directions = cells["name"].nunique(), list(dict.fromkeys(cells["direction"]))
    width = min(TOKENS_WIDTH, max(240, 22 * count))
    height = max(90, min(11 * cells["layer"].nunique(), 340))
    beside = 2 * width < TOKENS_WIDTH
    panels = []
    for direction in directions:
        across = x if beside or direction == directions[-1] else axes.quiet(x)
        marks = heat(cells[cells["direction"] == direction], across, layers_up(), colour)
        panels.append(draw.panel(marks, width, height, _DIRECTIONS[direction]))
    part = _PARTS[result.provenance.parameters["what"]]
    title = f"Where {part} carries the logit {patched_logit(table)}"
    notes = [result.findings()[len(directions)], *([_LEFT_OUT] if len(rows) < len(table) else [])]
    grid = [panels] if beside else [[panel] for panel in panels]
    return draw.figure(grid, title, notes, spacing=26, between=18, color="shared")
