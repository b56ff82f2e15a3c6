"""Attention patterns to click through, drawn by circuitsvis, on a page that can ask the network for nothing.

circuitsvis is handed what it needs and nothing of its own display is used: that probes a search engine, and loads a script from
a content delivery network where it finds one. Nor does it escape `</script>`: its data are made inert here. A page holds its
library once (1.3 MB), and per attention at most 32 heads of 64 x 64 weights, to three digits (0.8 MB).
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.ground.pooling import pooling_rule
from ostools.measure.attention.attention import Attention
from ostools.measure.attention.difference import attention_difference, distinct_labels
from ostools.reporting.charts.attention import (
    LESS,
    MORE,
    attention_findings,
    bin_label,
    difference_findings,
    heads_rule,
    most_moved,
    sharpest,
)
from ostools.reporting.page.page import TEMPLATES, Script
from ostools.reporting.style import notebook, theme
from ostools.results import checked_output, write_atomically

HEADS = 32
"""How many heads circuitsvis gets; of a model with more, those whose last row is the most concentrated, or moved the most."""
HEIGHT = 900
"""Pixels of a notebook's cell that the view takes; longer ones scroll."""
_STYLE = (TEMPLATES / "style.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Panel:
    """One set of heads as circuitsvis draws it: weights [head, query, key] from `low` to `high`, and what is said of them."""

    title: str
    names: Sequence[str]
    squares: np.ndarray
    tokens: Sequence[str]
    low: float
    high: float
    words: Sequence[str]

    def rendered(self) -> str:
        """circuitsvis' own HTML."""
        from circuitsvis.attention import attention_heads

        view = attention_heads(
            attention=np.round(self.squares, 3),
            tokens=list(self.tokens),
            attention_head_names=list(self.names),
            max_value=self.high,
            min_value=self.low,
            positive_color=MORE,
            negative_color=LESS,
        )
        return view.local_src


@dataclass(frozen=True)
class AttentionView:
    """Heads to click through, in one panel or several side by side: shows itself in a notebook, and is saved as a page."""

    title: str
    panels: tuple[Panel, ...]
    picture: str
    notes: tuple[str, ...]

    @cached_property
    def html(self) -> str:
        """The page: the last token's rows as a picture first, then the panels; no request is possible from it."""
        script = Script(
            _script([(panel.rendered(), f"heads-{index}") for index, panel in enumerate(self.panels)]), "module"
        )
        policy = (
            f"default-src 'none'; script-src {script.policy}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
        )
        parts = [_section(panel, index) for index, panel in enumerate(self.panels)]
        notes = Markup("").join(Markup("<p>{}</p>").format(note) for note in self.notes)
        return (
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
            f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">'
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            "<meta name='color-scheme' content='light dark'><meta name='referrer' content='no-referrer'>"
            f"<link rel='icon' href='data:,'><title>{escape(self.title)}</title><style>{_STYLE}{_SIDES}</style></head>"
            f"<body><main><h1>{escape(self.title)}</h1>{notes}"
            f"<figure><img alt='{escape(self.notes[0])}' src='data:image/png;base64,{self.picture}'></figure>"
            f"<div class='sides'>{Markup('').join(parts)}</div></main>{script.html}</body></html>\n"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The page in a frame of its own, which may run its own script and reach nothing else, the notebook included."""
        frame = (
            f'<iframe sandbox="allow-scripts" title="{escape(self.title)}" style="width: 100%; height: {HEIGHT}px; border: 0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )
        return {
            "text/html": frame,
            "text/plain": f"{self.title} (needs a notebook that runs scripts; or .save('x.html'))",
        }

    def save(self, path: str | Path) -> Path:
        """Write the page (.html). Raises `InputError` for another ending and a path that cannot be written."""
        target = checked_output(path, (".html",))
        return write_atomically(target, lambda part: part.write_text(self.html, encoding="utf-8"))


# Two panels side by side where there is room; the page is as wide as they need.
_SIDES = (
    "main { max-width: 1500px; padding-top: 24px; } .heads h4 { font-size: 9px; } "
    "img { max-width: 100%; height: auto; } .sides section { min-width: 0; } "
    ".sides { display: grid; gap: 24px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }"
)


def _section(panel: Panel, index: int) -> Markup:
    paragraphs = Markup("").join(Markup("<p class='note'>{}</p>").format(words) for words in panel.words)
    return Markup(
        "<section aria-labelledby='title-{0}'><h2 id='title-{0}'>{1}</h2>{2}<div class='heads' id='heads-{0}' tabindex='0' "
        "role='region' aria-label='{1}: heads to click through'></div></section>"
    ).format(index, panel.title, paragraphs)


def attention_view(attention: Attention, against: Attention | None = None) -> AttentionView:
    """The heads of one attention, or of two side by side with their difference where every token has its partner."""
    if against is None:
        head_indices = sharpest(attention.last, HEADS)
        picture = _picture(attention.plot())
        panel = _panel(attention, head_indices, "Head by head")
        return AttentionView("Attention", (panel,), picture, tuple(attention_findings(attention)))
    labels = distinct_labels(attention, against)
    title = "Attention, compared"
    try:
        difference = attention_difference(attention, against)
    except InputError as error:
        panels = tuple(
            _panel(side, sharpest(side.last, HEADS), label)
            for side, label in zip((attention, against), labels, strict=True)
        )
        return AttentionView(title, panels, _picture(against.plot()), (f"Side by side only. {error}",))
    head_indices = most_moved(difference, HEADS)
    how = "whose last row differs the most"
    panels = tuple(
        _panel(side, head_indices, label, how) for side, label in zip((attention, against), labels, strict=True)
    )
    if attention.tokens == against.tokens:
        panels += (_difference_panel(attention, against, head_indices),)
        notes = difference_findings(difference)
    else:
        notes = [
            *difference_findings(difference),
            "Whole patterns are not subtracted: not every token of one prompt has its partner in the other.",
        ]
    return AttentionView(title, panels, _picture(difference.plot()), tuple(notes))


def interactive_view(attention: Attention, element: str) -> tuple[str, str]:
    """circuitsvis' heads view as a script that draws into the element of that id, and the words that say what it holds."""
    panel = _panel(attention, sharpest(attention.last, HEADS), "Heads")
    return _script([(panel.rendered(), element)]), " ".join(panel.words)


def _panel(
    attention: Attention, head_indices: list[int], title: str, how: str = "whose last row is the most concentrated"
) -> Panel:
    layers, heads = attention.squares.shape[:2]
    heads_words = heads_rule(layers * heads, HEADS, how)
    words = [
        f"{heads_words[0].upper()}{heads_words[1:]}."
        if heads_words
        else f"All {layers * heads} heads of {layers} layers."
    ]
    rule = pooling_rule(len(attention.tokens), len(attention.bins))
    words += [f"{rule}."] if rule else []
    words.append("Named layer.head; rows are queries, the last token's at the bottom, columns what they attend to.")
    return Panel(
        title,
        _names(head_indices, heads),
        _squares(attention.squares, head_indices),
        _labels(attention),
        0.0,
        1.0,
        words,
    )


def _difference_panel(first: Attention, second: Attention, head_indices: list[int]) -> Panel:
    """The second's weights minus the first's, on a scale that goes as far below zero as above it."""
    values = _squares(second.squares, head_indices) - _squares(first.squares, head_indices)
    most = max(float(np.abs(values).max()), 1e-3)
    pooled = " of the max-pooled weights" if len(first.bins) < len(first.tokens) else ""
    words = [f"Second less first{pooled}: blue is more in the second, red less; full colour is {most:.3f}."]
    return Panel(
        "The difference", _names(head_indices, first.squares.shape[1]), values, _labels(second), -most, most, words
    )


def _names(head_indices: Sequence[int], heads: int) -> list[str]:
    return [f"{index // heads}.{index % heads}" for index in head_indices]


def _squares(squares: Tensor, head_indices: list[int]) -> np.ndarray:
    return squares.flatten(0, 1)[head_indices].double().numpy()


def _labels(attention: Attention) -> list[str]:
    """What circuitsvis writes beside rows and columns; it adds their number, which is the position where none were pooled."""
    if len(attention.bins) == len(attention.tokens):
        return [theme.display_token(token) for token in attention.tokens]
    return [bin_label(attention.tokens, start, end) for start, end in attention.bins]


def _picture(chart: Any) -> str:
    return notebook.picture_of(chart.to_dict(), notebook.SCALES[0])


def _script(sources: Sequence[tuple[str, str]]) -> str:
    """The scripts inside several of circuitsvis' own HTML as one, its library once, each drawing into the element named."""
    library = ""
    calls = []
    for source, element in sources:
        library, call = _taken_apart(source, element)
        calls.append(call)
    return library + "\n".join(calls)


def _taken_apart(source: str, element: str) -> tuple[str, str]:
    """The library, and the call that draws into `element`, its data made inert.

    The source is `<div id=...> <script ...> library, CircuitsVis.render(id, element, data) </script>`, and the data hold
    tokens as they are. The first call in the source is the real one: whatever a token says comes after it.
    """
    opening = re.match(r'<div id="(circuits-vis-[0-9a-f-]+)"', source)
    start = source.index(">", source.index("<script")) + 1
    end = source.rindex("</script>")
    if opening is None or start > end:
        raise RuntimeError(
            "circuitsvis' HTML is not of the form this version of ostools knows; pin circuitsvis==1.43.*"
        )
    call = source.index(f'CircuitsVis.render(\n      "{opening[1]}"', start)
    data = source[call:end].replace("<", "\\u003c").replace(">", "\\u003e")
    return source[start:call], data.replace(f'"{opening[1]}"', f'"{element}"', 1)
