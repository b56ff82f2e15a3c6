"""What the page can show, by the names that its address holds, and which of its controls each view takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class View:
    """One thing that can be shown: the call of `ost` whose result it is, and the command that prints the same.

    `words`: how the page calls it. `layers`: what its slider goes over, the residual streams or the blocks. `takes`: which
    other controls it has: head, towards, repeat (what the collapse view asks). `prediction`: the view that is shown until this
    one is there, a prediction of the same norm. `compared`: the function of `ost` that holds two sides against each other;
    None where the two stand beside each other.
    """

    words: str
    function: str
    command: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: Literal["streams", "blocks"] | None = None
    takes: frozenset[str] = frozenset()
    prediction: str | None = None
    compared: Literal["compare", "attention_difference"] | None = None


def _measured(linearisation: str, words: str, prediction: str | None = None) -> View:
    command = ("sensitivity", "--linearisation", linearisation)
    # Of a logit the parts of `detached` are what is measured: `contributions`.
    takes: frozenset[str] = frozenset() if linearisation == "detached" else frozenset({"towards"})
    options = {"linearisations": (linearisation,)}
    return View(words, "sensitivity", command, options, "streams", takes, prediction, "compare")


def _predicted(variant: str, words: str) -> View:
    command = ("path-sum", "--variant", variant)
    return View(words, "path_sum", command, {"variants": variant}, compared="compare")


VIEWS: dict[str, View] = {
    "full": _measured("full", "Sensitivity, full: the real derivative", "predicted-full"),
    "frozen": _measured("frozen", "Sensitivity, frozen: patterns and norm scales held", "predicted-frozen"),
    "frozen-attention": _measured("frozen-attention", "Sensitivity with attention patterns held"),
    "frozen-norm": _measured("frozen-norm", "Sensitivity with norm scales held"),
    "detached": _measured("detached", "Sensitivity, detached: patterns, norm scales and activations held"),
    "predicted-full": _predicted("second-moment-full", "Prediction of the full sensitivity, from one pass"),
    "predicted-frozen": _predicted("second-moment", "Prediction of the frozen sensitivity, from one pass"),
    "contributions": View(
        "Contributions to the logit of a next token", "contributions", ("contributions",), takes=frozenset({"towards"})
    ),
    "chain": View("Bound chain: where the certified bound loses, in decades", "looseness", ("looseness",)),
    "flow": View("Flow through the layers, predicted", "flow", ("flow",), layers="streams"),
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
