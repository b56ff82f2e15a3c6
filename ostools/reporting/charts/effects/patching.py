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
    cells, left_out = _cells(result)
    by_head, directions = bool(cells["head"].notna().any()), list(dict.fromkeys(cells["direction"]))
    largest = max(1.0, float(cells["value"].abs().max()))
    scale = alt.Scale(scheme="redblue", reverse=True, domain=[-largest, largest])
    colour = alt.Color("value:Q", scale=scale, legend=gradient("share of the clean-corrupt gap"))
    title = "head" if by_head else "token and its position"
    words: Looks = {"labelAngle": -90, "labelFontSize": 10, "labelOverlap": False}
    x = axes.names(list(dict.fromkeys(cells["name"])), alt.X, title, **words)
    width = min(TOKENS_WIDTH, max(240, 22 * cells["name"].nunique()))
    height = max(90, min(11 * cells["layer"].nunique(), 340))
    side_by_side = 2 * width < TOKENS_WIDTH
    panels = []
    for direction in directions:
        across = x if side_by_side or direction == directions[-1] else axes.quiet(x)
        of_direction = cells[cells["direction"] == direction].drop(columns="head")
        marks = heat(of_direction, across, layers_up(), colour)
        panels.append(draw.panel(marks, width, height, _DIRECTIONS[direction]))
    part = _PARTS[result.provenance.parameters["what"]]
    title = f"Where {part} carries the logit {patched_logit(result.frame)}"
    notes = [result.findings()[len(directions)], *([_LEFT_OUT] if left_out else [])]
    grid = [panels] if side_by_side else [[panel] for panel in panels]
    return draw.figure(grid, title, notes, spacing=26, between=18, color="shared")


def _cells(result: Patching) -> tuple[Frame, bool]:
    """The effects on the logit, or its difference, by part; and whether positions before the first
    that has some are left out.
    """
    table: Frame = result.frame
    table = table[table["quantity"] != LOG_P]
    axes.require_finite(table["share"], "patching")
    heads = table["head"].notna().any()
    moved_places = table.loc[table["effect"] != 0, "position"]
    rows = table if heads or moved_places.empty else table[table["position"] >= moved_places.min()]
    tokens = [theme.short_word(str(token)) for token in rows["token"]]
    places = [f"{token} {place}" for token, place in zip(tokens, rows["positions"], strict=True)]
    rows = rows.assign(value=rows["share"], name=rows["head"].astype(str) if heads else places)
    columns = ["direction", "layer", "head", "name", "token", "value", "effect"]
    return rows[columns], len(rows) < len(table)
