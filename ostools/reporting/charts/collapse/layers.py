"""The distance of a pair after every block, as a heat map of layers and lengths: the induction in the proof of Theorem B.3.

Beside it, over the same axes, the total variation of the attention that reads each v^(l), where the result has it.
"""

from __future__ import annotations

import textwrap
from typing import Any

import altair as alt
import numpy as np

from ostools.measure.collapse.readings import NORM_WORDS, PIECES, Reading
from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.variation import mean_over_heads
from ostools.reporting.charts.collapse.curves import PAIRS
from ostools.reporting.forms.heat import gradient, heat
from ostools.reporting.look import axes, draw
from ostools.results import Frame, frame_of

WIDTH, STEP, LEAST = 300, 16, 60
"""Of a panel: its width, the height of a layer, and the least height of all."""
_ZERO = "#d9d9d9"
_VARIATION, _LINE = "δ + own weight", 110


def collapse_layers_chart(result: Collapse, *, per: str = "vector", norm: str = "l2") -> alt.VConcatChart:
    """||v^(l) - v*^(l)|| by layer and length, the mean over seeds, a panel per dtype and kind of pair.

    The colour is the distance relative to the same norm of v^(l), which grows from layer to layer; the cosine distance has no
    such norm. Pale where the float64 distance lies below the rounding noise of the difference in that dtype at that layer, grey
    where the two are the same numbers: at the embedding, where nothing but a position can tell them apart.

    The second panel is B.3's total variation of the attention, mean over heads and seeds, in float64: row l is the attention
    that reads v^(l), so that the row of v^(L) is empty. Where the result has none and says why, a note says it.
    """
    frame = _cells(Reading("residual", per, norm).of(result.measured(), every_layer=True), norm)
    last = int(frame["layer"].max())
    domain = _domain(frame)
    panels = [
        _panel(group, f"{dtype}{PAIRS.get(str(pair), str(pair))}", domain, _name(norm), last)
        for (pair, dtype), group in frame.groupby(["pair", "dtype"], sort=False)
    ]
    notes = _notes(frame, norm, f", mean over {PIECES[per]}" if PIECES[per] else "")
    moved = _moved(result)
    if moved is not None:
        panels.insert(1, _panel(moved, "attention, float64", _domain(moved), _VARIATION, last, "magma"))
        notes.append(
            "Attention: δ + own weight of Theorem B.3's proof (no factor 1/2), mean over heads. Row l reads v^(l); there is no "
            f"attention after v^({last})."
        )
    elif words := str(result.provenance.parameters.get("variation", "")):
        notes += textwrap.wrap(f"The attention's total variation was {words}", _LINE)
    tasks = ", ".join(sorted(set(map(str, frame_of(result)["task"]))))
    # Distances and variations have colours of their own; those of the distances have one domain.
    colours = "shared" if moved is None else "independent"
    title = f"How far v and v* are apart after each block, {tasks}"
    return draw.figure(draw.in_rows(panels, 2), title, notes, color=colours)


def _name(norm: str) -> str:
    return "cosine distance" if norm == "cosine" else f"{NORM_WORDS[norm]} distance / norm of v^(l)"


def _domain(cells: Frame) -> list[float]:
    """The range of colours: of what is not 0."""
    shown = cells["value"][cells["value"] > 0]
    return [float(shown.min()), float(shown.max())] if len(shown) else [0.1, 1.0]


def _moved(result: Collapse) -> Frame | None:
    """The attention's total variation as cells; None where there is none."""
    if result.variation is None:
        return None
    means = mean_over_heads(result.variation)
    axes.require_finite(means["total"], "a heat map of layers")
    return _placed(means.assign(value=means["total"], hidden=False))


def _cells(frame: Frame, norm: str) -> Frame:
    """One row a cell: its value, and whether noise hides it."""
    value = "mean" if norm == "cosine" else "relative"
    keys = ["pair", "dtype", "layer", "length"]
    means = {"value": (value, "mean"), "exact": ("float64_distance", "mean"), "noise": ("pair_noise", "mean")}
    cells = frame.groupby(keys, as_index=False, sort=False).agg(**means)
    axes.require_finite(cells["value"], "a heat map of layers")
    return _placed(cells.assign(hidden=(cells["exact"] < cells["noise"]) & (cells["value"] > 0)))


def _placed(cells: Frame) -> Frame:
    """The cells with the next layer and the next length, where each ends."""
    lengths = np.sort(cells["length"].unique())
    ends = np.append(lengths[1:], 2 * lengths[-1] - (lengths[-2] if len(lengths) > 1 else 0))
    end = cells["length"].map(dict(zip(lengths.tolist(), ends.tolist(), strict=True)))
    return cells.assign(end=end, top=cells["layer"] + 1)


def _notes(frame: Frame, norm: str, over: str) -> list[str]:
    last = int(frame["layer"].max())
    notes = [
        f"{_name(norm)}{over}. Layer 0: the embedding; {last}: v^(L), after the last block, before the final norm."
    ]
    colours = []
    if frame["hidden"].any():
        colours.append("Pale: the float64 distance is below the rounding noise of the difference at that layer.")
    if (frame["value"] == 0).any():
        colours.append("Grey: exactly 0, the same numbers in both.")
    return [*notes, " ".join(colours)] if colours else notes


def _panel(cells: Frame, name: str, domain: list[float], colour: str, last: int, scheme: Any = "viridis") -> Any:
    """Layers 0 to `last` over lengths."""
    lengths = cells["length"]
    log = int(lengths.max()) >= 10 * int(lengths.min())
    low, high = int(lengths.min()), int(cells["end"].max())
    kind = alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False)
    ticks = alt.Axis(grid=False, format="d", values=axes.length_ticks(low, int(lengths.max())))
    layers = axes.whole_ticks(0, last)
    rows = cells[["length", "end", "layer", "top", "value", "hidden"]]
    x = alt.X("length:Q", title="length n (items of the sequence)", scale=kind, axis=ticks)
    y = alt.Y(
        "layer:Q",
        title="layer l",
        scale=alt.Scale(domain=[0, last + 1], nice=False),
        axis=alt.Axis(grid=False, ticks=False, values=[at + 0.5 for at in layers], labelExpr="floor(datum.value)"),
    )
    scale = alt.Scale(type="log", scheme=scheme, domain=domain)
    hue = alt.Color("value:Q", scale=scale, legend=gradient(colour, 220, format=".1~g"))
    told, ends = ["layer:Q", "length:Q"], {"across": "end", "up": "top"}
    base = draw.rows(rows[rows["hidden"]]).mark_rect(color="white", opacity=0.62)
    marks = [
        *heat(rows[rows["value"] == 0], x, y, alt.value(_ZERO), told, **ends),
        *heat(rows[rows["value"] > 0], x, y, hue, told, **ends),
        *([base.encode(x=x, x2="end:Q", y=y, y2="top:Q")] if rows["hidden"].any() else []),
    ]
    height = max(LEAST, STEP * (last + 1))
    return draw.layers(*marks, width=WIDTH, height=height, title=draw.heading(name))
