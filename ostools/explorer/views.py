"""What the page can show: each view is a few calls of `ost`, run here and copied from here, so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools import measure
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.progress import Progress
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, machine, pass_cost
from ostools.measure.paths.cost import path_sum_cost
from ostools.measure.profiles.looseness import CHAIN
from ostools.models import encode
from ostools.models.shape import Shape
from ostools.reporting.page.shell import loading, quoted, stored_at
from ostools.results import Result

LONGEST = 20_000
"""Characters of a prompt that the page may send."""


@dataclass(frozen=True)
class Step:
    """One call: `name = ost.function(*takes, **options)`."""

    name: str
    function: str
    takes: tuple[str, ...] = ("model", "prompt")
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The call as a line of Python."""
        given = [*self.takes, *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"{self.name} = ost.{self.function}({', '.join(given)})"

    def run(self, known: Mapping[str, Any], progress: Progress) -> Any:
        """The call itself; `progress` is given where the function tells any."""
        function = getattr(measure, self.function)
        telling = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
        return function(*(known[name] for name in self.takes), **self.options, **telling)


@dataclass(frozen=True)
class View:
    """One thing that can be shown: its steps, the last of which gives the `result`, and the command that prints the same.

    `words`: how the page calls it. `column`: what colours the tokens, None where the view has only a chart. `prediction`: the
    view that is shown until this one is there, a prediction of the same norm.
    """

    words: str
    steps: tuple[Step, ...]
    command: tuple[str, ...]
    column: str | None = None
    prediction: str | None = None

    def run(self, model: TransformerBridge, prompt: str, progress: Progress = False) -> Result:
        """What the view shows of a prompt. Raises `InputError` as its functions do."""
        known: dict[str, Any] = {"model": model, "prompt": prompt}
        for step in self.steps:
            known[step.name] = step.run(known, progress)
        return known["result"]


def _predicted(variant: str, words: str) -> View:
    step = Step("result", "path_sum", options={"variants": variant})
    return View(words, (step,), ("path-sum", "--variant", variant), "value")


def _measured(linearisation: str, words: str, prediction: str | None = None) -> View:
    step = Step("result", "sensitivity", options={"linearisations": (linearisation,)})
    command = ("sensitivity", "--linearisation", linearisation)
    return View(words, (step,), command, "frobenius_norm", prediction)


VIEWS: dict[str, View] = {
    "full": _measured("full", "Sensitivity, full: the real derivative", "predicted-full"),
    "frozen": _measured("frozen", "Sensitivity, frozen: patterns and norm scales held", "predicted-frozen"),
    "frozen-attention": _measured("frozen-attention", "Sensitivity with attention patterns held"),
    "frozen-norm": _measured("frozen-norm", "Sensitivity with norm scales held"),
    "predicted-full": _predicted("second-moment-full", "Prediction of the full sensitivity, from one pass"),
    "predicted-frozen": _predicted("second-moment", "Prediction of the frozen sensitivity, from one pass"),
    "contributions": View(
        "Contributions to the logit of the next token that ranks first",
        (Step("result", "contributions"),),
        ("contributions",),
        "contribution",
    ),
    "chain": View(
        "Bound chain: where the certified bound loses, in decades",
        (
            Step("profile", "sensitivity", options={"method": "exact"}),
            Step("bounds", "path_sum", options={"variants": CHAIN}),
            Step("result", "looseness", ("profile", "bounds")),
        ),
        ("looseness",),
    ),
    "flow": View("Flow through the layers, predicted", (Step("result", "flow"),), ("flow",)),
    "attention": View("Attention of the last token", (Step("result", "attention"),), ("attention",)),
}
"""By the name that the address holds, in the order of the page's menu."""


def view_named(name: object) -> View:
    """Raises `InputError` for a name that is none."""
    if not isinstance(name, str) or name not in VIEWS:
        raise unknown_name("view", name, VIEWS)
    return VIEWS[name]


def checked_prompt(prompt: object) -> str:
    """A text that can be measured. Raises `InputError` for anything else."""
    if not isinstance(prompt, str) or not prompt:
        raise InputError("expected a prompt of at least one character, found none: type a text")
    if len(prompt) > LONGEST:
        raise InputError(f"expected a prompt of at most {LONGEST:,} characters, found {len(prompt):,}: shorten it")
    return prompt


def seconds(model: TransformerBridge, view: View, prompt: str) -> float:
    """How long the view is forecast to take on this machine; a forecast, not a measurement."""
    shape, pos = Shape.of(model), len(encode(model, prompt).ids)
    cost = sum((_cost(shape, pos, step) for step in view.steps), Cost())
    return cost.seconds(machine(shape))


def _cost(shape: Shape, pos: int, step: Step) -> Cost:
    if step.function == "sensitivity":
        options = {"method": step.options.get("method", "auto")}
        return sensitivity_cost(shape, pos, step.options.get("linearisations", ("full", "frozen")), **options)
    if step.function == "path_sum":
        variants = step.options["variants"]
        return path_sum_cost(shape, pos, (variants,) if isinstance(variants, str) else variants)
    if step.function == "flow":
        return path_sum_cost(shape, pos, ("second-moment",))
    return Cost() if step.function == "looseness" else pass_cost(shape, pos, 16)


def code(view: View, prompt: str, model: Mapping[str, Any]) -> str:
    """Python lines that give the same `result`; `model`: that of its provenance."""
    given = {"dtype": str(model["dtype"]), "device": str(model["device"])}
    given |= {name: model[name] for name in ("base", "device_map") if model.get(name)}
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    lines = [
        "import ostools as ost",
        "",
        f"model = ost.load_model({stored_at(model)!r}{options})",
        f"prompt = {prompt!r}",
    ]
    return "\n".join([*lines, *(step.line for step in view.steps), "print(result)"]) + "\n"


def command(view: View, prompt: str, model: Mapping[str, Any]) -> str:
    """The command that prints the same result as JSON."""
    name, *options = view.command
    words = ["ostools", name, f"--prompt={prompt}", *options, "--model", stored_at(model), *loading(model), "--json"]
    return " ".join(map(quoted, words))
