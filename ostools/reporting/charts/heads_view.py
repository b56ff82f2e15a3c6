"""Attention patterns to click through, drawn by circuitsvis, on a page that can ask the network for
nothing.

circuitsvis is handed what it needs and nothing of its own display is used: that probes a search
engine, and loads a script from a content delivery network where it finds one. Nor does it escape
`</script>`: its data are made inert here. A page holds its library once (1.3 MB), and per attention
at most 32 heads of 64 x 64 weights, to three digits (0.8 MB).
"""

from __future__ import annotations

import re

import numpy as np

from ostools.ground.pooling import pooling_rule
from ostools.measure import Attention
from ostools.reporting.charts.attention import bin_label, heads_rule, sharpest
from ostools.reporting.page.page import Script
from ostools.reporting.page.section import Part, ScriptView
from ostools.reporting.style import theme

HEADS = 32
"""How many heads circuitsvis gets; of a model with more, those whose last row is the most
concentrated.
"""


def interactive_view(attention: Attention, element: str) -> Part:
    """circuitsvis' heads view, drawn into the element of that id, and the words that say what it
    holds.
    """
    from circuitsvis.attention import attention_heads

    layers, heads = attention.squares.shape[:2]
    rule = heads_rule(layers * heads, HEADS) or f"all {layers * heads} heads of {layers} layers"
    pooled = pooling_rule(len(attention.tokens), len(attention.bins))
    notes = (
        f"{rule[0].upper()}{rule[1:]}. {f'{pooled}. ' if pooled else ''}Named layer.head; rows "
        "are queries, the last token's at the bottom, columns what they attend to."
    )
    # circuitsvis adds their number to the labels, which is the position where none were pooled.
    labels = [bin_label(attention.tokens, start, end) for start, end in attention.bins]
    indices = sharpest(attention.last, HEADS)
    heads_html = attention_heads(
        attention=np.round(attention.squares.flatten(0, 1)[indices].double().numpy(), 3),
        tokens=labels if pooled else [theme.display_token(token) for token in attention.tokens],
        attention_head_names=[f"{index // heads}.{index % heads}" for index in indices],
        max_value=1.0,
        min_value=0.0,
        positive_color=theme.colour("full"),
    )
    label = "Interactive attention patterns, drawn by circuitsvis"
    view = ScriptView(element, label, Script(_script(heads_html.local_src, element), "module"))
    return Part("Head by head", notes=[notes], view=view)


def _script(source: str, element: str) -> str:
    """The script inside circuitsvis' own HTML, drawing into our element, its data made inert.

    The source is `<div id=...> <script ...> library, CircuitsVis.render(id, element, data)
    </script>`, and the data hold tokens as they are. The first call in the source is the real one:
    whatever a token says comes after it.
    """
    opening = re.match(r'<div id="(circuits-vis-[0-9a-f-]+)"', source)
    start, end = source.index(">", source.index("<script")) + 1, source.rindex("</script>")
    if opening is None or start > end:
        raise RuntimeError(
            "circuitsvis' HTML is not of the form this version of ostools knows; pin "
            "circuitsvis==1.43.*"
        )
    call = source.index(f'CircuitsVis.render(\n      "{opening[1]}"', start)
    data = source[call:end].replace("<", "\\u003c").replace(">", "\\u003e")
    return source[start:call] + data.replace(f'"{opening[1]}"', f'"{element}"', 1)
