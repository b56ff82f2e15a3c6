"""What the page asks for: a view of a prompt and what was chosen with it, checked, and nothing that its view does not take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

import mitigations
from mitigations import Mitigation
from ostools.explorer.views import VIEWS, View
from ostools.ground.errors import InputError, short_repr
from ostools.ground.names import checked_name
from ostools.measure.mitigated_prompts import rewrites
from ostools.models.describe import metadata_of

LONGEST = 20_000
"""The most characters that a text of the page may have."""
LENGTHS = (8, 512)
"""The smallest and the largest value that may be chosen as the longest length of the collapse view."""
DTYPES = ("float64", "float32", "bfloat16", "float16")
SECOND_SIDES = ("", "prompt", "mitigation", "model")
"""What may stand beside the prompt: nothing, another prompt, a mitigation, the second model."""


@dataclass(frozen=True)
class Subject:
    """What is explored: its model, and the second one that may stand beside it."""

    model: TransformerBridge
    second: TransformerBridge | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in which the model may be read: its own, or a narrower one. A wider one would not add a digit."""
        loaded = str(self.model.cfg.dtype).removeprefix("torch.")
        width = getattr(torch, loaded).itemsize
        return (loaded, *(name for name in DTYPES if getattr(torch, name).itemsize < width))

    @property
    def second_sides(self) -> tuple[str, ...]:
        """What may stand beside a prompt."""
        return SECOND_SIDES if self.second is not None else SECOND_SIDES[:-1]

    def layers(self, view: View) -> tuple[int, int] | None:
        """The first and the last number of the view's slider."""
        last = int(self.model.cfg.n_layers)
        return {"streams": (0, last), "blocks": (-1, last - 1), None: None}[view.layers]

    def described(self) -> dict[str, Any]:
        """For the page: names, what may be chosen, and what each view takes."""
        views = [
            {
                "name": name,
                "words": view.words,
                "layers": self.layers(view),
                "takes": sorted(view.takes),
                "before": len(view.before),
            }
            for name, view in VIEWS.items()
        ]
        return {
            "model": metadata_of(self.model).name,
            "second": None if self.second is None else metadata_of(self.second).name,
            "views": views,
            "dtypes": self.dtypes,
            "mitigations": mitigations.names(),
            "lengths": LENGTHS,
        }


@dataclass(frozen=True)
class Question:
    """One question. `layer`, `head`: -1 is the mean over all; `token`: the position that the grid of heads is of.

    `logit`: the next token whose logit is meant, None for the view's own. `beside`: one of `BESIDE`; `other`: the second
    prompt, or the mitigation by its name with options. `item`: what is repeated, None for the prompt's last token; `longest`:
    the longest length; `dtypes`: those that are compared with float64.
    """

    view: str
    prompt: str
    dtype: str
    layer: int = 0
    head: int = -1
    token: int = 0
    logit: str | None = None
    beside: str = ""
    other: str = ""
    item: str | None = None
    longest: int = 32
    dtypes: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Mapping[str, Any], subject: Subject) -> Question:
        """What the page sent, checked. Raises `InputError` for what it could not have sent, and for an unusable text."""
        name, view = request.get("view"), view_named(request.get("view"))
        values: dict[str, Any] = {"view": name, "prompt": checked_text("prompt", request.get("prompt"))}
        values["dtype"] = checked_name("dtype", request.get("dtype", subject.dtypes[0]), subject.dtypes)
        if (ends := subject.layers(view)) is not None:
            values["layer"] = _whole_in_range("layer", request.get("layer", ends[0]), *ends)
        if "head" in view.takes:
            values["head"] = _whole_in_range("head", request.get("head", -1), -1, int(subject.model.cfg.n_heads) - 1)
            values["token"] = _whole_in_range("token", request.get("token", 0), 0, LONGEST)
        if "logit" in view.takes:
            values["logit"] = _optional("next token", request.get("logit"))
        values |= _second_side(request, subject, values["prompt"])
        if "repeat" in view.takes:
            values |= _repeated(request)
        return cls(**values)

    @property
    def of_view(self) -> View:
        """The view that is asked for."""
        return VIEWS[self.view]

    @property
    def mitigation(self) -> Mitigation | None:
        """The one that stands beside."""
        return mitigations.mitigation(self.other) if self.beside == "mitigation" else None

    def alone(self) -> Question:
        """The same with nothing beside it."""
        return replace(self, beside="", other="")

    def before(self, place: int) -> Question | None:
        """What is shown until this is measured, at place 0 the quickest. None where there is none."""
        if self.logit is not None or place >= len(self.of_view.before):
            return None
        name = self.of_view.before[place]
        layer = self.layer if VIEWS[name].layers == self.of_view.layers else -1
        return Question(name, self.prompt, self.dtype, layer, beside=self.beside, other=self.other)


def view_named(name: object) -> View:
    """The view of that name. Raises `InputError` for a name without a view."""
    return VIEWS[checked_name("view", name, VIEWS)]


def checked_text(what: str, text: object) -> str:
    """A text that can be measured. Raises `InputError` for anything else."""
    if not isinstance(text, str) or not text:
        raise InputError(f"expected a {what} of at least one character, found none: type a text")
    if len(text) > LONGEST:
        raise InputError(f"expected a {what} of at most {LONGEST:,} characters, found {len(text):,}: shorten it")
    return text


def _optional(what: str, text: object) -> str | None:
    return None if text in (None, "") else checked_text(what, text)


def _whole_in_range(what: str, number: object, low: int, high: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise InputError(f"{what}: expected a whole number from {low} to {high}, found {short_repr(number)}")
    return number


def _second_side(request: Mapping[str, Any], subject: Subject, prompt: str) -> dict[str, str]:
    """What stands beside. Refuses a mitigation that needs the items of a sequence: a text does not name them. Refuses
    one that makes of the prompt a text that nobody could type here."""
    kind = checked_name("second side", request.get("beside", ""), subject.second_sides)
    if kind in ("", "model"):
        return {"beside": kind}
    second_text = checked_text("second prompt" if kind == "prompt" else "mitigation", request.get("other"))
    if kind == "mitigation":
        mitigation = mitigations.mitigation(second_text)
        if any(rewrites(part, "sequence") for part in mitigations.parts(mitigation)):
            raise InputError(
                f"{mitigations.label(mitigation)} changes the items of a task's sequence, and a text does not say what its "
                "items are: choose a mitigation of the whole prompt or of the forward pass, or type the changed text "
                "as a second prompt"
            )
        checked_text("prompt under the mitigation", mitigations.rewrite(mitigation, prompt))
    return {"beside": kind, "other": second_text}


def _repeated(request: Mapping[str, Any]) -> dict[str, Any]:
    names = request.get("dtypes", list(DTYPES[1:]))
    if not isinstance(names, list) or not names:
        raise InputError("dtypes: expected a list of at least one dtype, found none: choose one")
    return {
        "item": _optional("repeated item", request.get("item")),
        "longest": _whole_in_range("longest length", request.get("longest", 32), *LENGTHS),
        "dtypes": tuple(dict.fromkeys(checked_name("dtype", name, DTYPES[1:]) for name in names)),
    }
