"""What the page can show, and what it asks for: a view of a prompt with its choices, checked, and
the call of `ost` that answers it.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ostools
import ostools.paper
import ostools.sweep  # the measurements of these rooms put themselves into RECORDS
from ostools.ground import (
    InputError,
    Progress,
    TransformerBridge,
    checked_name,
    short_repr,
    title_of,
)
from ostools.measure import RECORDS
from ostools.models.describe import metadata_of
from ostools.results import Result

LONGEST = 20_000
"""The most characters that a text of the page may have."""
LENGTHS = (8, 512)
"""The smallest and the largest longest length of the collapse view."""
COTANGENTS = 4
"""Of a sketch that is shown while the exact norms are measured: some five forward passes."""


@dataclass(frozen=True)
class View:
    """One thing that can be shown, and the function of `ost` that gives it.

    words: its name on the page. layers: what its slider goes over, residual streams or blocks.
    takes: its other controls (head, logit, longest). before: quicker views that are shown first.
    """

    words: str
    function: str
    options: Mapping[str, object] = field(default_factory=dict)
    layers: Literal["streams", "blocks"] | None = None
    takes: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()


def _sensitivity(
    linearisation: str,
    words: str,
    before: tuple[str, ...] = ("attention",),
    logit: bool = True,
    **sketch: object,
) -> View:
    return View(
        words,
        "sensitivity",
        {"linearisations": (linearisation,), **sketch},
        "streams",
        frozenset({"logit"} if logit else ()),
        before,
    )


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
        "lengths": LENGTHS,
    }


@dataclass(frozen=True)
class ViewRequest:
    """A view of a prompt with its choices.

    layer, head: -1 is the mean over all.
    logit: the next token whose logit is meant; None: the view's default.
    longest: the longest length of a collapse.
    """

    view: str
    prompt: str
    layer: int = 0
    head: int = -1
    logit: str | None = None
    longest: int = 32

    @classmethod
    def of(cls, sent: Mapping[str, object], model: TransformerBridge) -> "ViewRequest":
        """Check what the page sent; `InputError` for what no page sends, and for unusable texts."""
        name = checked_name("view", sent.get("view"), VIEWS)
        takes, prompt = VIEWS[name].takes, checked_text("prompt", sent.get("prompt"))
        choices: dict[str, Any] = {}
        if (ends := layers_of(VIEWS[name], model)) is not None:
            choices["layer"] = _whole_in_range("layer", sent.get("layer", ends[0]), *ends)
        if "head" in takes:
            heads = (-1, int(model.cfg.n_heads) - 1)
            choices["head"] = _whole_in_range("head", sent.get("head", -1), *heads)
        if "logit" in takes and (logit := sent.get("logit")) not in (None, ""):
            choices["logit"] = checked_text("next token", logit)
        if "longest" in takes:
            longest = _whole_in_range("longest length", sent.get("longest", 32), *LENGTHS)
            choices["longest"] = longest
        return cls(name, prompt, **choices)

    @property
    def of_view(self) -> View:
        """The requested view."""
        return VIEWS[self.view]

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the view's function, beside model and prompt."""
        options: dict[str, Any] = dict(self.of_view.options)
        if self.of_view.layers == "streams":
            options["layers"] = (self.layer,)
        if self.logit is not None:
            options["logit"] = self.logit
        if "longest" in self.of_view.takes:
            options["lengths"] = range(1, self.longest + 1)
        return options

    @property
    def line(self) -> str:
        """The call as Python."""
        name, options = self.of_view.function, self.options.items()
        place = "ost" if name in ostools.__all__ else "ost.measure"
        words = "".join(f", {option}={value!r}" for option, value in options)
        return f"result = {place}.{name}(model, prompt=prompt{words})"

    def run(self, model: TransformerBridge, progress: Progress) -> Result:
        """The call itself; `progress` is passed where the function takes it."""
        function: Any = RECORDS[self.of_view.function].function
        options = self.options
        if "progress" in inspect.signature(function).parameters:
            options["progress"] = progress
        return function(model, prompt=self.prompt, **options)

    def before(self, place: int) -> "ViewRequest | None":
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
