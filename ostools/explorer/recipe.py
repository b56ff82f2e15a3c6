"""The calls of `ost` that answer a question: run here and copied from here as code, so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostools import measure
from ostools.explorer.question import Question
from ostools.ground.progress import Progress, part_of
from ostools.measure.mitigated_prompts import InactiveMitigationError
from ostools.reporting.page.shell import loading, quoted, stored_at
from ostools.results import Result


@dataclass(frozen=True)
class Step:
    """One call: `name = ost.function(*takes, **by_keyword, **options)`.

    `takes`, `by_keyword`: variables by place, and by the argument's name; `options`: values.
    """

    name: str
    function: str
    takes: tuple[str, ...] = ("model", "prompt")
    options: Mapping[str, Any] = field(default_factory=dict)
    by_keyword: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The call as Python."""
        named_values = {**self.by_keyword, **{name: repr(value) for name, value in self.options.items()}}
        arguments = ", ".join([*self.takes, *(f"{name}={value}" for name, value in named_values.items())])
        return f"{self.name} = ost.{self.function}({arguments})"

    def run(self, variables: Mapping[str, Any], progress: Progress) -> Any:
        """The call itself; `progress` is given where the function tells any."""
        function = getattr(measure, self.function)
        telling = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
        keyword_values = {name: variables[variable] for name, variable in self.by_keyword.items()}
        return function(*(variables[name] for name in self.takes), **keyword_values, **self.options, **telling)


@dataclass(frozen=True)
class RecipeResult:
    """What a recipe gave. It has the results of its sides, one or two. It has the result that compares the two sides, where
    there is one. Where a mitigation was refused because it changes nothing, it says so, and has one side alone."""

    sides: tuple[Any, ...]
    compared: Any = None
    inactive: str = ""

    @property
    def results(self) -> dict[str, Any]:
        """What is drawn and saved, by its variable in the copied code."""
        only_result = self.sides[0] if len(self.sides) == 1 else self.compared
        return {"result": only_result} if only_result is not None else dict(zip(SIDES, self.sides, strict=True))


SIDES = ("first", "second")


def steps(question: Question) -> list[Step]:
    """The calls: `result`, or `first` and `second` and, where something holds these against each other, `result`."""
    if not question.beside:
        return _side(question, "result", "model", "prompt")
    model, prompt = {"prompt": ("model", "other"), "model": ("other_model", "prompt")}.get(
        question.beside, ("model", "prompt")
    )
    mitigated = {"mitigation": question.other} if question.beside == "mitigation" else {}
    pair = [*_side(question, "first", "model", "prompt"), *_side(question, "second", model, prompt, mitigated)]
    if (compared := question.of_view.compared) is not None:
        pair.append(Step("result", compared, SIDES, {"corresponding": True}))
    return pair


def _side(
    question: Question, name: str, model: str, prompt: str, mitigated: dict[str, Any] | None = None
) -> list[Step]:
    """The calls of one side, which ends as the variable `name`; `mitigated`: the argument of its mitigation."""
    view, takes, mitigated = question.of_view, (model, prompt), mitigated or {}
    options = dict(view.options)
    if view.layers == "streams" and view.function == "sensitivity":
        options |= {"layers": (question.layer,)}
    if question.logit is not None:
        options |= {"logit": question.logit}
    if "repeat" not in view.takes:
        return [Step(name, view.function, takes, options | mitigated)]
    options |= {} if question.item is None else {"item": question.item}
    options |= {"lengths": range(1, question.longest + 1), "dtypes": question.dtypes}
    return [Step(name, view.function, (model,), options | mitigated, {"prompt": prompt})]


def run(question: Question, models: Mapping[str, Any], progress: Progress = False) -> RecipeResult:
    """What the steps give; `models`: the models by their variables. Raises `InputError` as the functions do."""
    variables: dict[str, Any] = {**models, "prompt": question.prompt, "other": question.other}
    try:
        step_list = steps(question)
        for place, step in enumerate(step_list):
            step_progress = part_of(progress, place, place + 1, len(step_list), units=1000)
            variables[step.name] = step.run(variables, step_progress or False)
    except InactiveMitigationError as error:
        return RecipeResult((variables["first"],), inactive=str(error))
    if not question.beside:
        return RecipeResult((variables["result"],))
    return RecipeResult((variables["first"], variables["second"]), variables.get("result"))


def values(question: Question) -> str | None:
    """The Python expression of the numbers that colour the tokens, of a side `{}`; None where the view colours none."""
    layer, head = question.layer, question.head
    if question.view == "attention":
        index = ", ".join(":" if place < 0 else str(place) for place in (layer, head))
        mean = {0: "", 1: ".mean(0)", 2: ".mean((0, 1))"}[(layer < 0) + (head < 0)]
        return f"{{}}.last[{index}]{mean}"
    return {
        "sensitivity": "{}.frame['frobenius_norm']",
        "attribution": "{}.of_tokens['contribution']",
    }.get(question.of_view.function)


def code(question: Question, recipe_result: RecipeResult) -> str:
    """Python lines that give the same results, and the same `values`, which colour the tokens."""
    lines = ["import ostools as ost", "", f"model = {_loaded(recipe_result.sides[0])}"]
    if question.beside == "model":
        lines.append(f"other_model = {_loaded(recipe_result.sides[1])}")
    lines.append(f"prompt = {question.prompt!r}")
    if question.beside == "prompt":
        lines.append(f"other = {question.other!r}")
    lines += [step.line for step in steps(question)]
    if (expression := values(question)) is not None:
        names = SIDES if question.beside else ("result",)
        lines.append("values = " + ", ".join(expression.format(name) for name in names))
    return "\n".join([*lines, *(f"print({name})" for name in recipe_result.results)]) + "\n"


def _loaded(result: Result) -> str:
    model: Mapping[str, Any] = result.provenance.model
    load_options = {"dtype": str(model["dtype"]), "device": str(model["device"])}
    load_options |= {name: model[name] for name in ("base", "device_map") if model.get(name)}
    options = "".join(f", {name}={value!r}" for name, value in load_options.items())
    return f"ost.load_model({stored_at(model)!r}{options})"


def commands(question: Question, recipe_result: RecipeResult) -> str:
    """The command that prints the same result as JSON. Where no command compares two sides, each side has one."""
    first = [*_command(question, question.prompt), *_options(question, recipe_result.sides[0])]
    if not question.beside:
        return _command_line(first)
    other_prompt = question.other if question.beside == "prompt" else question.prompt
    if question.of_view.compared == "attention_difference":
        against = {
            "prompt": f"--against-prompt={other_prompt}",
            "model": f"--against-model={stored_at(recipe_result.sides[1].provenance.model)}",
            "mitigation": f"--mitigation={question.other}",
        }[question.beside]
        return _command_line([*first, against, "--corresponding"])
    second = [*_command(question, other_prompt), *_options(question, recipe_result.sides[1])]
    second += [f"--mitigation={question.other}"] if question.beside == "mitigation" else []
    return f"{_command_line(first)}\n{_command_line(second)}"


def _command(question: Question, prompt: str) -> list[str]:
    name, *options = question.of_view.command
    words = [name, f"--prompt={prompt}", *options]
    if question.of_view.layers == "streams" and name == "sensitivity":
        words += ["--layers", str(question.layer)]
    if question.logit is not None:
        words += [f"--logit={question.logit}"]
    return words


def _options(question: Question, side: Result) -> list[str]:
    """What is repeated, where anything is, and the model of a side."""
    model: Mapping[str, Any] = side.provenance.model
    words, load = ["--model", stored_at(model)], loading(model)
    if "repeat" in question.of_view.takes:
        words += [] if question.item is None else [f"--item={question.item}"]
        words += ["--lengths", f"1:{question.longest}"]
        words += [word for dtype in question.dtypes for word in ("--dtype", dtype)]
        load = ["--load-dtype" if word == "--dtype" else word for word in load]
    return [*words, *load]


def _command_line(words: Sequence[str]) -> str:
    return " ".join(map(quoted, ["ostools", *words, "--json"]))
