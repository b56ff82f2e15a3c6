"""What the page can show, and what it asks for: a view of a prompt with its choices, checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ostools.measure
import ostools.paper
import ostools.sweep  # noqa: F401 -- the measurements of these rooms put themselves into RECORDS
from ostools import mitigations
from ostools.ground import InputError, TransformerBridge, checked_name, short_repr
from ostools.ground.words import title_of
from ostools.measure import RECORDS
from ostools.measure.mitigated_prompts import rewrites
from ostools.models.describe import metadata_of

LONGEST = 20_000
"""The most characters that a text of the page may have."""
LENGTHS = (8, 512)
"""The smallest and the largest longest length of the collapse view."""
SECOND_SIDES = ("", "prompt", "mitigation")
"""What may stand beside the prompt: nothing, another prompt, a mitigation."""
COTANGENTS = 4
"""Of a sketch that is shown while the exact norms are measured: some five forward passes."""


@dataclass(frozen=True)
class View:
    """One thing that can be shown, and the function of `ost` that gives it.

    words: its name on the page. layers: what its slider goes over, residual streams or blocks.
    takes: its other controls (head, logit, longest). before: quicker views that are shown first.
    compared: the function that compares two sides; None where they stand beside each other.
    """

    words: str
    function: str
    options: Mapping[str, object] = field(default_factory=dict)
    layers: Literal["streams", "blocks"] | None = None
    takes: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()
    compared: Literal["compare"] | None = None


def _sensitivity(
    linearisation: str,
    words: str,
    before: tuple[str, ...] = ("attention",),
    logit: bool = True,
    **sketch: object,
) -> View:
    options = {"linearisations": (linearisation,), **sketch}
    takes = frozenset({"logit"} if logit else ())
    return View(words, "sensitivity", options, "streams", takes, before, "compare")


_SKETCH: dict[str, Any] = {"logit": False, "method": "sketch", "cotangents": COTANGENTS}
_OF_TOKENS: dict[str, View] = {
    "full": _sensitivity(
        "full", "Sensitivity, full: the real derivative", ("attention", "sketch-full")
    ),
    "frozen": _sensitivity(
        "frozen",
        "Sensitivity, frozen: patterns and norm scales held",
        ("attention", "sketch-frozen"),
    ),
    "frozen-attention": _sensitivity(
        "frozen-attention", "Sensitivity with attention patterns held"
    ),
    "frozen-norm": _sensitivity("frozen-norm", "Sensitivity with norm scales held"),
    # Of a logit the parts of `detached` are what is measured: `attribution`.
    "detached": _sensitivity(
        "detached", "Sensitivity, detached: patterns, norm scales and activations held", logit=False
    ),
    "sketch-full": _sensitivity(
        "full", f"Sketch of the full sensitivity, from {COTANGENTS} cotangents", **_SKETCH
    ),
    "sketch-frozen": _sensitivity(
        "frozen", f"Sketch of the frozen sensitivity, from {COTANGENTS} cotangents", **_SKETCH
    ),
    "attribution": View(
        "Contributions to the logit of a next token", "attribution", takes=frozenset({"logit"})
    ),
    "attention": View(
        "Attention of the last token, head by head",
        "attention",
        layers="blocks",
        takes=frozenset({"head"}),
    ),
    "collapse": View(
        "Collapse: the prompt's last token repeated, until a dtype hides the difference",
        "collapse",
        takes=frozenset({"longest"}),
    ),
}


def _of_records() -> dict[str, View]:
    """A view of the chart of each measurement of a prompt that no view above is of."""
    functions = {view.function for view in _OF_TOKENS.values()}
    measured = sorted(
        RECORDS.values(), key=lambda record: (record.function.__module__, record.name)
    )
    return {
        record.name.replace("_", "-"): View(record.name.replace("_", " ").capitalize(), record.name)
        for record in measured
        if record.command and _is_of_one_prompt(record.function) and record.name not in functions
    }


def _is_of_one_prompt(function: Callable[..., object]) -> bool:
    """Whether it measures one prompt and asks for no second one."""
    parameters = inspect.signature(function).parameters.values()
    prompts = [parameter.name for parameter in parameters if "Prompt" in str(parameter.annotation)]
    return prompts == ["prompt"]


VIEWS = {**_OF_TOKENS, **_of_records()}
"""By the name that the address holds, in the order of the page's menu."""


def layers_of(view: View, model: TransformerBridge) -> tuple[int, int] | None:
    """The first and the last number of the view's slider."""
    last = int(model.cfg.n_layers)
    return {"streams": (0, last), "blocks": (-1, last - 1), None: None}[view.layers]


def described(model: TransformerBridge) -> dict[str, object]:
    """For the page: names, choices, and what each view takes."""
    return {
        "model": title_of(vars(metadata_of(model))),
        "views": [
            {
                "name": name,
                "words": view.words,
                "layers": layers_of(view, model),
                "takes": sorted(view.takes),
                "before": len(view.before),
            }
            for name, view in VIEWS.items()
        ],
        "heads": int(model.cfg.n_heads),
        "mitigations": mitigations.names(),
        "lengths": LENGTHS,
    }


@dataclass(frozen=True)
class ViewRequest:
    """A view of a prompt with its choices.

    layer, head: -1 is the mean over all.
    logit: the next token whose logit is meant; None: the view's default.
    second_kind: one of `SECOND_SIDES`. second_text: the second prompt, or the mitigation by name.
    longest: the longest length of a collapse.
    """

    view: str
    prompt: str
    layer: int = 0
    head: int = -1
    logit: str | None = None
    second_kind: str = ""
    second_text: str = ""
    longest: int = 32

    @classmethod
    def of(cls, sent: Mapping[str, object], model: TransformerBridge) -> ViewRequest:
        """Check what the page sent; `InputError` for what no page sends, and for unusable texts."""
        name = checked_name("view", sent.get("view"), VIEWS)
        view = VIEWS[name]
        request = cls(name, checked_text("prompt", sent.get("prompt")))
        if (ends := layers_of(view, model)) is not None:
            layer = _whole_in_range("layer", sent.get("layer", ends[0]), *ends)
            request = replace(request, layer=layer)
        if "head" in view.takes:
            heads = (-1, int(model.cfg.n_heads) - 1)
            head = _whole_in_range("head", sent.get("head", -1), *heads)
            request = replace(request, head=head)
        if "logit" in view.takes and (logit := sent.get("logit")) not in (None, ""):
            request = replace(request, logit=checked_text("next token", logit))
        if "longest" in view.takes:
            longest = _whole_in_range("longest length", sent.get("longest", 32), *LENGTHS)
            request = replace(request, longest=longest)
        kind, text = _second_side(sent, request.prompt)
        return replace(request, second_kind=kind, second_text=text)

    @property
    def of_view(self) -> View:
        """The requested view."""
        return VIEWS[self.view]

    def before(self, place: int) -> ViewRequest | None:
        """The quicker view that is shown first; `place` 0 is the quickest. None where there is
        none.
        """
        if self.logit is not None or place >= len(self.of_view.before):
            return None
        name = self.of_view.before[place]
        return replace(
            self, view=name, layer=self.layer if VIEWS[name].layers == self.of_view.layers else -1
        )


def checked_text(name: str, text: object) -> str:
    """A text that can be measured. Raises `InputError` for anything else."""
    if not isinstance(text, str) or not text:
        raise InputError(f"expected a {name} of at least one character, found none: type a text")
    if len(text) > LONGEST:
        raise InputError(
            f"expected a {name} of at most {LONGEST:,} characters, found {len(text):,}: shorten it"
        )
    return text


def _whole_in_range(name: str, value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise InputError(
            f"{name}: expected a whole number from {low} to {high}, found {short_repr(value)}"
        )
    return value


def _second_side(sent: Mapping[str, object], prompt: str) -> tuple[str, str]:
    """Kind and text of what stands beside the prompt; refuses a mitigation that cannot be shown.

    One that changes a sequence's items: a text does not name them. One whose text is too long.
    """
    kind = checked_name("second side", sent.get("beside", ""), SECOND_SIDES)
    if not kind:
        return "", ""
    text = checked_text("second prompt" if kind == "prompt" else "mitigation", sent.get("other"))
    if kind == "mitigation":
        mitigation = mitigations.mitigation(text)
        if any(rewrites(part, "sequence") for part in mitigations.parts(mitigation)):
            raise InputError(
                f"{mitigations.label(mitigation)} changes the items of a task's sequence, and a "
                "text does not say what its items are: choose a mitigation of the whole prompt "
                "or of the forward pass, or type the changed text as a second prompt"
            )
        checked_text("prompt under the mitigation", mitigations.rewrite(mitigation, prompt))
    return kind, text
