"""One look for every picture: colours, dashes, and words that are safe to draw.

A colour belongs to a name (a linearisation, a variant, a dtype) wherever it appears; a dash belongs
to a kind of statement (measured, certified, paper, predicted). Every colour has a contrast of at
least 3:1 on white and on the report's dark ground.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ostools.results import Looks

KINDS: dict[str, str] = {
    "measured": "measured",
    "estimated": "estimated",
    "certified": "certified bound",
    "paper": "paper's form (not certified)",
    "predicted": "predicted",
}
"""What a kind of row is called in every legend and sentence, in the order in which legends list
them.
"""

DASHES: dict[str, list[float]] = {
    "measured": [1, 0],
    "estimated": [4, 1.5],
    "certified": [7, 4],
    "paper": [1.5, 3],
    "predicted": [9, 3, 2, 3],
}

_NAMES: dict[str, str] = {
    "#0072b2": (
        "full, float32, rope-10000, copy-first, no CoT, helps, unmitigated, vectors, other words "
        "of the prompt"
    ),
    "#c9431e": "frozen, copy-last, weights",
    "#d1491f": "bfloat16, CoT zero-shot, wrong, hurts, items of the sequence",
    "#178a5b": "local, float16, alibi, CoT few-shot, right, larger, window, reasoning",
    "#2e8b9a": "frozen-attention, rope-100",
    "#a0662f": "frozen-norm",
    "#785dc0": "detached",
    "#b0566f": "windowed(1), bfloat16-weights, no verdict",
    "#9a48d0": "proof, float8_e4m3fn, few-shot examples",
    "#2a86a8": "theorem-5.1",
    "#d0386b": "theorem-b5, learned, float8_e5m2, lazy",
    "#a34d1c": "theorem-b5-literal",
    "#b07400": (
        "first-order, replaced, probability, bfloat16-residual, sinusoidal, int8, cut off, "
        "smaller, begun answer line"
    ),
    "#7d7d7d": "float64, none, something else, no measurable effect, template, BOS and template",
    "#7a6fd0": "bfloat16-kv, rope-1000000",
    "#7d8a1f": "int4",
    "#8a7a4f": "pattern",
    "#8d939c": "right answers",
}
COLOURS: dict[str, str] = {
    name: colour for colour, names in _NAMES.items() for name in names.split(", ")
}
"""The colour of a name; names that share one never stand in one chart."""
_SPARE = ("#7a6a9a", "#6d8a3f", "#a85a5a", "#4f86a0", "#8a6fb0", "#5f8a6a", "#a8703f", "#6f7fa0")
_ORDERED = ("#178a5b", "#2e8b9a", "#3282bd", "#5878d8", "#7a6fd0", "#9a48d0", "#c0408f")

INK = "#33383f"
"""Text, and lines that belong to no series."""
LIGHT_GROUND = "#ffffff"

TOKEN_LENGTH = 14
"""Longest token that a chart or a table shows; the rest is cut and marked."""


def colour(name: str) -> str:
    """The colour of a name, the same in every chart; a name yet unknown gets a stable spare one."""
    return COLOURS.get(name) or _SPARE[sum(map(ord, name)) % len(_SPARE)]


def colours(names: Sequence[str]) -> list[str]:
    """The colours of the names of one chart: no two unknown names share one while there are spare
    ones.
    """
    by_name: dict[str, str] = {}
    for name in names:
        start = sum(map(ord, name)) % len(_SPARE)
        spare = [
            look for look in (*_SPARE[start:], *_SPARE[:start]) if look not in by_name.values()
        ]
        by_name.setdefault(name, COLOURS.get(name) or (spare or _SPARE)[0])
    return [by_name[name] for name in names]


def ordered(count: int) -> list[str]:
    """Colours of what has an order (depth, layers), from green through blue to red."""
    last = len(_ORDERED) - 1
    return [_ORDERED[round(place * last / max(count - 1, 1))] for place in range(count)]


def display_token(token: str, length: int = TOKEN_LENGTH) -> str:
    """A token as one short visible word: blanks and controls spelled out, long ones cut."""
    return (
        _cut("".join(_visible(character) for character in token[: length + 1]), length) or "(empty)"
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def short_word(text: str, length: int = TOKEN_LENGTH) -> str:
    """A token, or an answer, as a chart holds it: one short visible word that ends no script."""
    return inert(display_token(text, length))


# Characters that every font has: a chart that falls back to another font in the middle of a word is
# hard to read.
_SPELLED = {" ": "·", "\n": "\\n", "\t": "\\t", "\r": "\\r", "▁": "·"}


def _visible(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    # Cc controls, Cf format (direction marks, joiners), Cs lone surrogates, Co private, Cn
    # unassigned, Z other blanks
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"):
        return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
    return character


def inert(text: str) -> str:
    """Visible text with look-alikes for the two beginnings that could end a script element.

    Only for what others put into HTML unescaped: Altair's notebook display writes a chart's data
    into a script.
    """
    return visible(text).replace("</", "<∕").replace("<!", "<ǃ")


def title(text: str, length: int = 80) -> str:
    """What others called something, in a title: visible, and cut."""
    return _cut(visible(text), length)


def visible(text: str) -> str:
    """The text with control, direction and lone surrogate characters spelled out; blanks stay."""
    return "".join(character if character == " " else _visible(character) for character in text)


def safe_json(value: object) -> str:
    """JSON that may stand inside a script element: ASCII, no `<`, `>` or `&`; refuses NaN
    (ValueError).
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def on_page(spec: Looks) -> Looks:
    """A chart's specification in the colours of a page, light, dark or in print: ink and ground are
    the page's.
    """
    look = config("currentColor") | {"background": None, "aria": False}
    return stacked(_recoloured(spec, "") | {"config": look})


def stacked(spec: Looks) -> Looks:
    """The specification with legends one below the other, which Vega knows and Altair's schema does
    not.
    """
    spec["config"]["legend"]["layout"] = {"bottom": {"direction": "vertical", "margin": 10}}
    return spec


def _recoloured(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        # Rows are data, and hold no colours of ours.
        return {
            key: part if key in ("values", "datasets") else _recoloured(part, key)
            for key, part in node.items()
        }
    if isinstance(node, list):
        return [_recoloured(part, name) for part in node]
    page = "var(--ground)" if name == "fill" else node
    return (
        {INK: "currentColor", LIGHT_GROUND: page}.get(node, node) if isinstance(node, str) else node
    )


def config(ink: str = INK) -> Looks:
    """The Vega-Lite configuration of every chart: dark ink on white, as for a paper."""
    words = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal"}
    faint = {f"{part}Color": ink for part in ("domain", "tick", "grid")}
    return {
        "font": "Helvetica, Arial, 'Liberation Sans', sans-serif",
        "background": LIGHT_GROUND,
        "view": {"stroke": None, "continuousWidth": 560, "continuousHeight": 260},
        "axis": words
        | faint
        | {"gridOpacity": 0.15, "domainOpacity": 0.4, "tickOpacity": 0.4}
        | {"labelFontSize": 11, "titleFontSize": 12, "titlePadding": 8},
        "legend": words
        | {"labelFontSize": 11, "titleFontSize": 11, "labelLimit": 0, "orient": "bottom"}
        | {
            "symbolType": "stroke",
            "symbolSize": 420,
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "offset": 12,
        }
        | {"direction": "vertical", "columns": 2, "columnPadding": 18},
        "title": {"color": ink, "subtitleColor": ink, "fontSize": 13, "subtitleFontSize": 11}
        | {"anchor": "start", "fontWeight": "bold", "offset": 10},
        "header": words | {"labelFontSize": 12, "labelFontWeight": "bold"},
        "line": {"strokeWidth": 1.8, "strokeCap": "butt"},
        "text": {"color": ink},
        "rule": {"color": ink},
        # Vega-Lite pales marks; these colours have just the contrast that they need.
        **{mark: {"opacity": 1} for mark in ("circle", "point", "tick")},
    }


def differentiated(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """What a sensitivity is of, by its provenance's parameters: a symbol, and words."""
    tokens = parameters.get("logit")
    if "logit_norm" not in parameters or not tokens:
        return "y", "the last token's representation"
    logits = [f"the logit of {short_word(str(token))}" for token in tokens]
    return "t", f"t = {' minus '.join(logits)}"
