"""One look for every chart: which colour, which dash, which words.

A colour belongs to a name (a linearisation, a variant, a dtype) wherever it appears; a dash belongs to a kind of statement
(measured, certified, paper, predicted). Every colour has a contrast of at least 3:1 on white and on the report's dark ground.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

KINDS: dict[str, str] = {
    "measured": "measured",
    "estimated": "estimated",
    "certified": "certified bound",
    "paper": "paper's form (not certified)",
    "predicted": "predicted",
}
"""What a kind of row is called in every legend and sentence, in the order in which legends list them."""

DASHES: dict[str, list[float]] = {
    "measured": [1, 0],
    "estimated": [4, 1.5],
    "certified": [7, 4],
    "paper": [1.5, 3],
    "predicted": [9, 3, 2, 3],
}

COLOURS: dict[str, str] = {
    # linearisations
    "full": "#0072b2",
    "frozen": "#c9431e",
    "frozen-attention": "#2e8b9a",
    "frozen-norm": "#a0662f",
    "detached": "#785dc0",
    # certified
    "local": "#178a5b",
    "windowed(1)": "#b0566f",
    # the paper's forms
    "proof": "#9a48d0",
    "theorem-5.1": "#2a86a8",
    "theorem-b5": "#d0386b",
    "theorem-b5-literal": "#a34d1c",
    # what stands beside a measured effect
    "first-order": "#b07400",
    "replaced": "#b07400",
    "probability": "#b07400",
    # dtypes, and formats that numbers are only stored in
    "float64": "#7d7d7d",
    "float32": "#0072b2",
    "bfloat16": "#d1491f",
    "float16": "#178a5b",
    "bfloat16-weights": "#b0566f",
    "bfloat16-residual": "#b07400",
    "bfloat16-kv": "#7a6fd0",
    # the laboratory's encodings
    "none": "#7d7d7d",
    "alibi": "#178a5b",
    "rope-100": "#2e8b9a",
    "rope-10000": "#0072b2",
    "rope-1000000": "#7a6fd0",
    "sinusoidal": "#b07400",
    "learned": "#d0386b",
    "float8_e4m3fn": "#9a48d0",
    "float8_e5m2": "#d0386b",
    "int8": "#b07400",
    "int4": "#7d8a1f",
    # what is copied; how a model is asked to count
    "copy-last": "#c9431e",
    "copy-first": "#0072b2",
    "no CoT": "#0072b2",
    "CoT zero-shot": "#d1491f",
    "CoT few-shot": "#178a5b",
    # answers and verdicts
    "right": "#178a5b",
    "wrong": "#d1491f",
    "something else": "#7d7d7d",
    "cut off": "#b07400",
    "helps": "#0072b2",
    "hurts": "#d1491f",
    "larger": "#178a5b",
    "smaller": "#b07400",
    "no measurable effect": "#7d7d7d",
    "no verdict": "#b0566f",
    "Pareto": "#178a5b",
    "dominated": "#7d7d7d",
    "unmitigated": "#0072b2",
    # regions of a prompt
    "opening": "#7d7d7d",
    "sequence": "#d1491f",
    "question": "#0072b2",
    "instruction": "#178a5b",
    # parts of a prompt with reasoning after it
    "BOS and template": "#7d7d7d",
    "other words of the prompt": "#0072b2",
    "items of the sequence": "#d1491f",
    "few-shot examples": "#9a48d0",
    "reasoning": "#178a5b",
    "begun answer line": "#b07400",
    # matrices of attention; how Figure 8 draws
    "pattern": "#8a7a4f",
    "lazy": "#d0386b",
    "vectors": "#0072b2",
    "weights": "#c9431e",
    "right answers": "#8d939c",
}
_SPARE = ("#7a6a9a", "#6d8a3f", "#a85a5a", "#4f86a0", "#8a6fb0", "#5f8a6a", "#a8703f", "#6f7fa0")
_ORDERED = ("#178a5b", "#2e8b9a", "#3282bd", "#5878d8", "#7a6fd0", "#9a48d0", "#c0408f")

INK = "#33383f"
"""Text, and lines that belong to no series."""
LIGHT_GROUND = "#ffffff"

TOKEN_LENGTH = 14
"""Longest token that a chart or a table shows; the rest is cut and marked."""


def colour(name: str) -> str:
    """The colour of a name, the same in every chart; `windowed(k)` and names yet unknown get a stable spare one."""
    return COLOURS.get(name) or _SPARE[sum(map(ord, name)) % len(_SPARE)]


def colours(names: Sequence[str]) -> list[str]:
    """The colours of the names of one chart: `colour`'s, but no two names yet unknown share one while there are spare ones."""
    assigned = {name: COLOURS[name] for name in names if name in COLOURS}
    for name in (name for name in dict.fromkeys(names) if name not in COLOURS):
        start = sum(map(ord, name)) % len(_SPARE)
        order = [*_SPARE[start:], *_SPARE[:start]]
        assigned[name] = next((spare for spare in order if spare not in assigned.values()), order[0])
    return [assigned[name] for name in names]


def in_order(names: Collection[str]) -> dict[str, str]:
    """The names with their colours, in the order in which the colours are listed; names yet unknown last."""
    ordered_names = [name for name in COLOURS if name in names]
    ordered_names += sorted(set(names).difference(ordered_names))
    return dict(zip(ordered_names, colours(ordered_names), strict=True))


def ordered(count: int) -> list[str]:
    """Colours of what has an order (depth, layers): from green through blue to red, all as dark as both grounds allow."""
    last = len(_ORDERED) - 1
    return [_ORDERED[round(place * last / max(count - 1, 1))] for place in range(count)]


def series(kind: str, name: str) -> str:
    """What a legend says of a line: its kind in words, then its name."""
    return f"{KINDS[kind]}: {name}"


def display_token(token: str, length: int = TOKEN_LENGTH) -> str:
    """A token as one short visible word: spaces, line ends, control and direction characters spelled out, long ones cut."""
    return _cut("".join(_visible(character) for character in token[: length + 1]), length) or "(empty)"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def short_word(text: str, length: int = TOKEN_LENGTH) -> str:
    """A token, or an answer, as a chart holds it: one short visible word that ends no script."""
    return inert(display_token(text, length))


# Characters that every font has: a chart that falls back to another font in the middle of a word is hard to read.
_SPELLED = {" ": "·", "\n": "\\n", "\t": "\\t", "\r": "\\r", "▁": "·"}


def _visible(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    # Cc controls, Cf format (direction marks, joiners), Cs lone surrogates, Co private, Cn unassigned, Zl/Zp/Zs other blanks
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"):
        return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
    return character


def inert(text: str) -> str:
    """The text with look-alikes for the two beginnings that could end a script element.

    Only for what others put into HTML unescaped: Altair's notebook display writes a chart's data into a script as they are.
    Control and direction characters are spelled out: SVG may not hold the former, the latter reverse what stands beside them.
    """
    return visible(text).replace("</", "<∕").replace("<!", "<ǃ")


def title(text: str, length: int = 80) -> str:
    """What others called something, in a title: visible, and cut."""
    return _cut(visible(text), length)


def visible(text: str) -> str:
    """The text with control, direction and lone surrogate characters spelled out; blanks stay."""
    return "".join(character if character == " " else _visible(character) for character in text)


def safe_json(value: Any) -> str:
    """JSON that may stand inside a script element: ASCII only, no `<`, `>` or `&`; refuses NaN and infinity (ValueError)."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def on_page(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's specification with the colours of a page, light, dark or in print: ink and ground are the page's."""
    return _recoloured(spec, "") | {"config": config(on_page=True)}


def _recoloured(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        # Rows are data, and hold no colours of ours.
        return {key: part if key in ("values", "datasets") else _recoloured(part, key) for key, part in node.items()}
    if isinstance(node, list):
        return [_recoloured(part, name) for part in node]
    if node == INK:
        return "currentColor"
    return "var(--ground)" if name == "fill" and node == LIGHT_GROUND else node


_LEGEND: dict[str, Any] = {
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "symbolType": "stroke",
    "symbolSize": 420,
    "symbolStrokeWidth": 2,
    "symbolOpacity": 1,
    "labelLimit": 0,
    "orient": "bottom",
    "direction": "vertical",
    "columns": 2,
    "columnPadding": 18,
    "offset": 12,
}
_ASIDE: dict[str, Any] = {"layout": {"bottom": {"direction": "vertical", "margin": 10}}}
"""Vega knows this, Altair's schema does not; on paper legends may stand side by side."""


def config(on_page: bool = False) -> dict[str, Any]:
    """The Vega-Lite configuration of every chart: dark ink on white, as for a paper.

    `on_page`: for an HTML page, where text and axes take the page's own colour, on screen, in the dark and in print, and
    the figure is described as a whole and not mark by mark.
    """
    ink, faint = ("currentColor", "currentColor") if on_page else (INK, "#8d939c")
    axis = {
        "labelColor": ink,
        "titleColor": ink,
        "domainColor": faint,
        "tickColor": faint,
        "gridColor": faint,
        "gridOpacity": 0.25,
        "domainOpacity": 0.6,
        "tickOpacity": 0.6,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return {
        "font": "Helvetica, Arial, 'Liberation Sans', sans-serif",
        "background": None if on_page else LIGHT_GROUND,
        "aria": not on_page,
        "view": {"stroke": None, "continuousWidth": 560, "continuousHeight": 260},
        "axis": axis,
        "legend": {"labelColor": ink, "titleColor": ink, **_LEGEND, **(_ASIDE if on_page else {})},
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "fontSize": 13,
            "subtitleFontSize": 11,
            "anchor": "start",
            "fontWeight": "bold",
            "offset": 10,
        },
        "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "labelFontWeight": "bold"},
        "line": {"strokeWidth": 1.8, "strokeCap": "butt"},
        "text": {"color": ink},
        "rule": {"color": ink},
        # Vega-Lite pales marks; these colours have just the contrast that they need.
        **{mark: {"opacity": 1} for mark in ("circle", "point", "tick")},
    }


def differentiated(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """What a sensitivity is of, by its provenance's parameters: a symbol, and words."""
    position, tokens = parameters.get("position"), parameters.get("logit")
    where = "" if position is None else f" at position {position}"
    if "logit_norm" not in parameters or not tokens:
        return "y", f"the representation{where}" if where else "the last token's representation"
    logits = [f"the logit of {short_word(str(token))}" for token in tokens]
    return "t", f"t = {' minus '.join(logits)}{where}"
