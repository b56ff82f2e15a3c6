"""What the page can show, by the names that its address holds, and which of its controls each view takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class View:
    """One thing that can be shown: the call of `ost` whose result it is, and the command that prints the same.

    `words`: how the page calls it. `layers`: what its slider goes over, the residual streams or the blocks. `takes`: which
    other controls it has: head, logit, repeat (what the collapse view asks). `before`: the views that are shown until this
    one is there, the quickest first. `compared`: the function of `ost` that holds two sides against each other; None where the
    two stand beside each other.
    """

    words: str
    function: str
    command: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: Literal["streams", "blocks"] | None = None
    takes: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()
    compared: Literal["compare", "attention_difference"] | None = None


COTANGENTS = 4
"""Of a sketch that is shown while the exact norms are measured: some five forward passes."""


def _measured(linearisation: str, words: str, before: tuple[str, ...] = ("attention",)) -> View:
    command = ("sensitivity", "--linearisation", linearisation)
    # Of a logit the parts of `detached` are what is measured: `attribution`.
    takes: frozenset[str] = frozenset() if linearisation == "detached" else frozenset({"logit"})
    options = {"linearisations": (linearisation,)}
    return View(words, "sensitivity", command, options, "streams", takes, before, "compare")


def _sketched(linearisation: str, words: str) -> View:
    command = ("sensitivity", "--linearisation", linearisation, "--method", "sketch", "--cotangents", str(COTANGENTS))
    options = {"linearisations": (linearisation,), "method": "sketch", "cotangents": COTANGENTS}
    return View(words, "sensitivity", command, options, "streams", before=("attention",), compared="compare")


VIEWS: dict[str, View] = {
    "full": _measured("full", "Sensitivity, full: the real derivative", ("attention", "sketch-full")),
    "frozen": _measured("frozen", "Sensitivity, frozen: patterns and norm scales held", ("attention", "sketch-frozen")),
    "frozen-attention": _measured("frozen-attention", "Sensitivity with attention patterns held"),
    "frozen-norm": _measured("frozen-norm", "Sensitivity with norm scales held"),
    "detached": _measured("detached", "Sensitivity, detached: patterns, norm scales and activations held"),
    "sketch-full": _sketched("full", f"Sketch of the full sensitivity, from {COTANGENTS} cotangents"),
    "sketch-frozen": _sketched("frozen", f"Sketch of the frozen sensitivity, from {COTANGENTS} cotangents"),
    "attribution": View(
        "Contributions to the logit of a next token", "attribution", ("attribution",), takes=frozenset({"logit"})
    ),
    "attention": View(
        "Attention of the last token, head by head",
        "attention",
        ("attention",),
        layers="blocks",
        takes=frozenset({"head"}),
        compared="attention_difference",
    ),
    "collapse": View(
        "Collapse: the prompt's end repeated, until a dtype hides the difference",
        "collapse",
        ("collapse",),
        takes=frozenset({"repeat"}),
    ),
}
"""By the name that the address holds, in the order of the page's menu."""
