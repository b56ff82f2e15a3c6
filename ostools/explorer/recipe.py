"""The calls of `ost` that answer a question: run here and copied from here as code, so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import mitigations
from ostools import measure, models
from ostools.explorer.question import Question
from ostools.ground.progress import Progress
from ostools.measure.profiles.looseness import CHAIN
from ostools.reporting.page.shell import loading, quoted, stored_at
from ostools.results import Result


@dataclass(frozen=True)
class Step:
    """One call: `name = ost.function(*takes, **given, **options)`, in the block of a mitigation where it is `under` one.

    `takes`, `given`: variables (and attributes of them) by place, and by the argument's name; `options`: values.
    """

    name: str
    function: str
    takes: tuple[str, ...] = ("model", "prompt")
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    under: bool = False

    @property
    def lines(self) -> list[str]:
        """The call as Python."""
        named = {**self.given, **{name: repr(value) for name, value in self.options.items()}}
        arguments = ", ".join([*self.takes, *(f"{name}={value}" for name, value in named.items())])
        line = f"{self.name} = ost.{self.function}({arguments})"
        return ["with ost.mitigations.running(model, mitigation):", f"    {line}"] if self.under else [line]

    def run(self, known: Mapping[str, Any], progress: Progress) -> Any:
        """The call itself; `progress` is given where the function tells any."""
        function = _called(self.function)
        telling = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
        given = {name: _found(known, variable) for name, variable in self.given.items()}
        block = mitigations.running(known["model"], known["mitigation"]) if self.under else nullcontext()
        with block:
            return function(*(_found(known, name) for name in self.takes), **given, **self.options, **telling)


def _called(function: str) -> Any:
    place, _, name = function.rpartition(".")
    return getattr({"": measure, "mitigations": mitigations, "models": models}[place], name)


def _found(known: Mapping[str, Any], name: str) -> Any:
    variable, *attributes = name.split(".")
    return reduce(getattr, attributes, known[variable])


@dataclass(frozen=True)
class Found:
    """What a recipe gave: the result, the results of its sides (one, or two that the result compares), and whether a
    mitigation changed nothing."""

    result: Result
    sides: tuple[Result, ...]
    inactive: bool = False


def steps(question: Question) -> list[Step]:
    """The calls, the last of which gives the `result`."""
    if question.view == "chain":
        return [
            Step("profile", "sensitivity", options={"method": "exact"}),
            Step("bounds", "path_sum", options={"variants": CHAIN}),
            Step("result", "looseness", ("profile", "bounds")),
        ]
    one = _one(question)
    if not question.beside:
        return [one]
    compared = "attention_difference" if question.view == "attention" else "compare"
    both = Step("result", compared, ("first", "second"), {"corresponding": True})
    return [replace(one, name="first"), *_second(question, replace(one, name="second")), both]


def _one(question: Question) -> Step:
    view = question.of_view
    options = dict(view.options)
    if view.layers == "streams" and view.function == "sensitivity":
        options |= {"layers": (question.layer,)}
    if question.towards is not None:
        options |= {"towards": question.towards}
    if "repeat" not in view.takes:
        return Step("result", view.function, options=options)
    options |= {} if question.item is None else {"item": question.item}
    options |= {"lengths": range(1, question.longest + 1), "dtypes": question.dtypes}
    return Step("result", view.function, ("model",), options, {"prompt": "prompt"})


def _second(question: Question, step: Step) -> list[Step]:
    """The second side: of another prompt, of the second model, or under a mitigation, with whether that changed anything."""
    if question.beside == "prompt":
        return [replace(step, takes=("model", "other"))]
    if question.beside == "model":
        return [replace(step, takes=("other_model", "prompt"))]
    return [
        Step("mitigation", "mitigations.mitigation", (), {"spec": question.other}),
        Step("words", "mitigations.rewrite", ("mitigation", "prompt")),
        Step("tokens", "models.encode", ("model", "words")),
        Step("acts", "mitigations.acts", ("model", "mitigation", "tokens.ids")),
        replace(step, takes=("model", "words"), under=True),
    ]


def run(question: Question, given: Mapping[str, Any], progress: Progress = False) -> Found:
    """What the steps give; `given`: the models by their variables. Raises `InputError` as the functions do."""
    known: dict[str, Any] = {**given, "prompt": question.prompt, "other": question.other}
    for step in steps(question):
        known[step.name] = step.run(known, progress)
    sides = (known["first"], known["second"]) if question.beside else (known["result"],)
    inactive = "acts" in known and not known["acts"] and known["words"] == question.prompt
    return Found(known["result"], sides, inactive)


def values(question: Question) -> str | None:
    """The Python expression of the numbers that colour the tokens, of a side `{}`; None where the view colours none."""
    layer, head = question.layer, question.head
    if question.view == "attention":
        index = ", ".join(":" if chosen < 0 else str(chosen) for chosen in (layer, head))
        mean = {0: "", 1: ".mean(0)", 2: ".mean((0, 1))"}[(layer < 0) + (head < 0)]
        return f"{{}}.last[{index}]{mean}"
    return {
        "sensitivity": "{}.frame['frobenius_norm']",
        "path_sum": "{}.frame['value']",
        "contributions": "{}.of_tokens['contribution']",
        "flow": f"{{}}.nodes.query('layer == {layer}')['frobenius_norm']",
    }.get(question.of_view.function)


def code(question: Question, found: Found) -> str:
    """Python lines that give the same `result`, and the same `values`, which colour the tokens."""
    lines = ["import ostools as ost", "", f"model = {_loaded(found.sides[0])}"]
    if question.beside == "model":
        lines.append(f"other_model = {_loaded(found.sides[1])}")
    lines.append(f"prompt = {question.prompt!r}")
    if question.beside == "prompt":
        lines.append(f"other = {question.other!r}")
    lines += [line for step in steps(question) for line in step.lines]
    if (expression := values(question)) is not None:
        names = ("first", "second") if question.beside else ("result",)
        lines.append("values = " + ", ".join(expression.format(name) for name in names))
    return "\n".join([*lines, "print(result)"]) + "\n"


def _loaded(result: Result) -> str:
    model: Mapping[str, Any] = result.provenance.model
    given = {"dtype": str(model["dtype"]), "device": str(model["device"])}
    given |= {name: model[name] for name in ("base", "device_map") if model.get(name)}
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    return f"ost.load_model({stored_at(model)!r}{options})"


def command(question: Question, found: Found) -> str:
    """The command that prints the same result as JSON; empty for a comparison, which no command prints."""
    if question.beside:
        return ""
    model: Mapping[str, Any] = found.result.provenance.model
    name, *options = question.of_view.command
    words = ["ostools", name, f"--prompt={question.prompt}", *options]
    if question.of_view.layers == "streams" and name == "sensitivity":
        words += ["--layers", str(question.layer)]
    if question.towards is not None:
        words += [f"--towards={question.towards}"]
    load = loading(model)
    if name == "collapse":
        words += [] if question.item is None else [f"--item={question.item}"]
        words += ["--lengths", f"1:{question.longest}"]
        words += [word for dtype in question.dtypes for word in ("--dtype", dtype)]
        load = ["--load-dtype" if word == "--dtype" else word for word in load]
    return " ".join(map(quoted, [*words, "--model", stored_at(model), *load, "--json"]))
