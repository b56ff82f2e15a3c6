"""Attention patterns to click through, drawn by circuitsvis, on a page that can ask the network for
nothing.

circuitsvis is handed what it needs and nothing of its own display is used: that probes a search
engine, and loads a script from a content delivery network where it finds one. Nor does it escape
`</script>`: its data are made inert here. A page holds its library once (1.3 MB), and per attention
at most 32 heads of 64 x 64 weights, to three digits (0.8 MB).
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import escape

from ostools.ground.errors import InputError
from ostools.ground.pooling import pooling_rule
from ostools.measure.attention.attention import Attention
from ostools.measure.attention.difference import attention_difference, distinct_labels
from ostools.reporting.charts.attention import (
    DIFFERS,
    MORE,
    SHARPEST,
    attention_findings,
    bin_label,
    difference_findings,
    heads_rule,
    most_moved,
    sharpest,
)
from ostools.reporting.page.page import Figure, Script
from ostools.reporting.page.section import Part, ScriptView, Section, render_sections
from ostools.reporting.style import theme
from ostools.results import checked_output, write_atomically

HEADS = 32
"""How many heads circuitsvis gets; of a model with more, those whose last row is the most
concentrated, or moved the most.
"""
HEIGHT = 900
"""Pixels of a notebook's cell that the view takes; longer ones scroll."""


class Panel(NamedTuple):
    """One set of heads: its title, what is said of it, and circuitsvis' own HTML of it."""

    title: str
    words: list[str]
    source: str


@dataclass(frozen=True)
class AttentionView:
    """Heads to click through, of one attention or of two: shows itself in a notebook, and is saved
    as a page.
    """

    title: str
    rows: Part
    panels: tuple[Panel, ...]

    @cached_property
    def html(self) -> str:
        """The page: the last token's rows first, then the panels; no request is possible from it."""
        elements = [f"heads-{index}" for index in range(len(self.panels))]
        # The first view's script draws all of them: a page holds the library once.
        scripts = [
            _script([panel.source for panel in self.panels], elements),
            *[""] * (len(elements) - 1),
        ]
        parts = [
            Part(
                title=panel.title,
                notes=panel.words,
                view=ScriptView(element, panel.title, Script(script, "module")),
            )
            for panel, element, script in zip(self.panels, elements, scripts, strict=True)
        ]
        rows = Section("findings", "The last token's rows", "The last token", "", [self.rows])
        return render_sections(
            self.title,
            "",
            [rows, Section("heads", "Head by head", "Head by head", "", [Part(columns=parts)])],
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The page in a frame of its own, which may run its own script and reach nothing else, the
        notebook included.
        """
        frame = (
            f'<iframe sandbox="allow-scripts" title="{escape(self.title)}" style="width: 100%; height: {HEIGHT}px; border: 0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )
        return {
            "text/html": frame,
            "text/plain": f"{self.title} (needs a notebook that runs scripts; or .save('x.html'))",
        }

    def save(self, path: str | Path) -> Path:
        """Write the page (.html). Raises `InputError` for another ending and a path that cannot be
        written.
        """
        target = checked_output(path, (".html",))
        return write_atomically(target, lambda part: part.write_text(self.html, encoding="utf-8"))


def attention_view(attention: Attention, against: Attention | None = None) -> AttentionView:
    """The heads of one attention, or of two side by side; their difference as a picture where
    tokens have partners.
    """
    if against is None:
        panel = _panel(attention, sharpest(attention.last, HEADS), "All heads")
        return AttentionView(
            "Attention", _rows(attention.plot(), attention_findings(attention)), (panel,)
        )
    try:
        difference = attention_difference(attention, against)
    except InputError as error:
        difference, rows = None, _rows(against.plot(), [f"Side by side only. {error}"])
    else:
        rows = _rows(difference.plot(), difference_findings(difference))
    panels = [
        _panel(side, sharpest(side.last, HEADS), label)
        if difference is None
        else _panel(side, most_moved(difference, HEADS), label, DIFFERS)
        for side, label in zip(
            (attention, against), distinct_labels(attention, against), strict=True
        )
    ]
    return AttentionView("Attention, compared", rows, tuple(panels))


def _rows(chart: Any, sentences: list[str]) -> Part:
    caption = "Attention of the last token, a row per layer and head"
    return Part(
        figure=Figure("attention-chart", chart, caption, f"{caption}. {sentences[0]}"),
        findings=sentences,
    )


def interactive_view(attention: Attention, element: str) -> tuple[str, str]:
    """circuitsvis' heads view as a script that draws into the element of that id, and the words
    that say what it holds.
    """
    panel = _panel(attention, sharpest(attention.last, HEADS), "Heads")
    return _script([panel.source], [element]), " ".join(panel.words)


def _panel(attention: Attention, head_indices: list[int], title: str, how: str = SHARPEST) -> Panel:
    from circuitsvis.attention import attention_heads

    layers, heads = attention.squares.shape[:2]
    rule = (
        heads_rule(layers * heads, HEADS, how) or f"all {layers * heads} heads of {layers} layers"
    )
    words = [f"{rule[0].upper()}{rule[1:]}."]
    pooled = pooling_rule(len(attention.tokens), len(attention.bins))
    words += [f"{pooled}."] if pooled else []
    words.append(
        "Named layer.head; rows are queries, the last token's at the bottom, columns what they attend to."
    )
    # circuitsvis adds their number to the labels, which is the position where none were pooled.
    labels = [bin_label(attention.tokens, start, end) for start, end in attention.bins]
    view = attention_heads(
        attention=np.round(attention.squares.flatten(0, 1)[head_indices].double().numpy(), 3),
        tokens=labels if pooled else [theme.display_token(token) for token in attention.tokens],
        attention_head_names=[f"{index // heads}.{index % heads}" for index in head_indices],
        max_value=1.0,
        min_value=0.0,
        positive_color=MORE,
    )
    return Panel(title, words, view.local_src)


def _script(sources: Sequence[str], elements: Sequence[str]) -> str:
    """The scripts inside circuitsvis' own HTML as one, its library once, each drawing into its
    element, data made inert.

    A source is `<div id=...> <script ...> library, CircuitsVis.render(id, element, data)
    </script>`, and the data hold tokens as they are. The first call in the source is the real one:
    whatever a token says comes after it.
    """
    library, calls = "", []
    for source, element in zip(sources, elements, strict=True):
        opening = re.match(r'<div id="(circuits-vis-[0-9a-f-]+)"', source)
        start = source.index(">", source.index("<script")) + 1
        end = source.rindex("</script>")
        if opening is None or start > end:
            raise RuntimeError(
                "circuitsvis' HTML is not of the form this version of ostools knows; pin circuitsvis==1.43.*"
            )
        call = source.index(f'CircuitsVis.render(\n      "{opening[1]}"', start)
        library, data = (
            source[start:call],
            source[call:end].replace("<", "\\u003c").replace(">", "\\u003e"),
        )
        calls.append(data.replace(f'"{opening[1]}"', f'"{element}"', 1))
    return library + "\n".join(calls)
