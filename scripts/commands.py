"""Write `ostools/cli/commands.json`: `python -m scripts.commands`, after a signature, a docstring
or a record has changed.

A measurement's command comes from its `@measurement(command=...)`. The commands that put several
functions together, and those that measure nothing, stand here. Options, their help and their
defaults are read from the imported functions. Where a merge has left its marks in the file, take
either side first (`git checkout --theirs`) and write it anew.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ostools as ost
import ostools.measure
import ostools.paper
import ostools.sweep
from ostools import ground, measure, models
from ostools.cli import running
from ostools.cli.commands import read_command
from ostools.cli.verbs import composed, listings
from ostools.cli.verbs.models import models as list_models
from ostools.ground.arguments import full_hints, full_signature, is_list, parts_of, words_of
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress
from ostools.measure import (
    collapse,
    evaluate,
    faithfulness,
    profile,
    sensitivity,
)
from ostools.measure.collapse import verdicts
from ostools.measure.faithfulness import faithfulness as taking_out
from ostools.measure.measurement import RECORDS, MeasurementRecord
from ostools.measure.position import POSITIONS
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.tokens import EncodingOptions
from ostools.paper.behaviour import figure_2, figure_2_tasks, figure_3, figure_4, figure_tasks
from ostools.paper.figure5 import figure_5
from ostools.paper.synthetic import figure_8, figure_9
from ostools.tasks import FIGURE_5, AppendixTask, CollapseTask, Task, label
from ostools.tasks.questions import Question
from ostools.theory import distances
from scripts.command_options import common_of, common_options, written_options

Function = Callable[..., Any]
NOT_OF_A_PROFILE = ("linearisations", "layers", "accuracy", "seed", "logit")
NOT_OF_A_USE = ("layers", "method", "cotangents", "accuracy")
"""Parameters of `sensitivity` that `sensitivity profile` and `ablate faithfulness` do not have."""
LIMITS = ("max_memory",)
"""Parameters that `--max-memory` gives to the functions that have them."""
FOR_TYPE_CHECKERS: dict[str, Any] = {
    **vars(measure),
    **vars(models),
    **vars(ground),
    **vars(verdicts),
    "Way": taking_out.Way,
    **vars(distances),
    "Mitigation": Mitigation,
    "Progress": Progress,
    "Question": Question,
    "TransformerBridge": TransformerBridge,
    "Task": Task,
    "CollapseTask": CollapseTask,
    "Path": Path,
    "Sequence": Sequence,
}
"""Names in annotations of `ostools.cli`, which imports at run time only what a command needs."""
FILE = Path(__file__).parents[1] / "ostools" / "cli" / "commands.json"

VERBS = {
    "sensitivity": "Measure how much the last token depends on each token.",
    "bounds": "Bound sensitivity (Theorem 5.1) from one forward pass.",
    "collapse": "Measure representational collapse (Theorem 4.2).",
    "attention": "Show what the last token attends to, and what each head does.",
    "evaluate": "Ask a model the paper's tasks: what it answers, here or elsewhere.",
    "probe": "Say where an answer is lost: decoded, read, or gone.",
    "ablate": "Take parts of a model, or tokens, out and measure what changes.",
    "mitigate": "Compare what may help with doing nothing.",
    "reproduce": "Judge every claim of the paper on a model; draw its figures.",
    "sweep": "Measure many models, tasks and texts, and resume.",
    "report": "Measure everything, write one HTML file.",
    "explore": "Look at a prompt in the browser, as you type it.",
    "list": "List models, tasks, mitigations and measurements.",
    "doctor": "Say what this installation has, and what is missing.",
}
"""The fourteen verbs, in the order of `ostools --help`."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A command that is no measurement's own. The fields are those of
    `ostools.cli.commands.Command`, but:

    lines_of: functions whose docstrings have the lines of parameters handed on to them.
    options_of: functions whose parameters the command's `**options` are, but those named here.
    """

    name: str
    function: Function
    examples: Sequence[str]
    lines_of: Sequence[Function] = ()
    options_of: Mapping[Function, Sequence[str]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    memory: Function | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    of_questions: Sequence[str] = ()
    runs_model: bool = False
    measures: bool = True


_LONGEST = figure_tasks(ways=["cot-few-shot"])
"""The tasks of Figure 3 with the longest prompts."""


def _figure(
    number: int,
    maker: Function,
    example: str,
    memory: Function | None = None,
    asked: Iterable[str | Task] = (),
) -> Declared:
    """One of the paper's figures; those of answers may be given by a model that runs elsewhere."""
    is_counting = number in (3, 4, 6, 7)
    has_answers = is_counting or number == 2
    return Declared(
        name=f"reproduce figure {number}",
        function=maker,
        examples=[example],
        fixed={"number": number} if is_counting else {},
        lines_of=[figure_3] if maker is figure_4 else [],
        memory=memory,
        sizes={"task": [one if isinstance(one, str) else label(one) for one in asked]}
        if memory
        else {},
        of_questions=["lengths", *(("seeds", "panels") if is_counting else ())]
        if has_answers
        else [],
    )


def _unmeasured(name: str, function: Function, *examples: str, **declared: Any) -> Declared:
    """A command that gives no result: it loads its models itself, or needs none."""
    return Declared(
        name=name, function=function, examples=examples or [""], measures=False, **declared
    )


DECLARED = (
    Declared(
        name="sensitivity profile",
        function=composed.profile,
        examples=['--prompt "The capital of France is"'],
        lines_of=[profile],
        options_of={sensitivity: NOT_OF_A_PROFILE},
        memory=sensitivity,
    ),
    Declared(
        name="evaluate prompts",
        function=running.prompts,
        examples=["--task copy-last --lengths 10:300 --out prompts.jsonl"],
        lines_of=[figure_3],
        measures=False,
    ),
    Declared(
        name="ablate faithfulness",
        function=composed.faithfulness,
        examples=['--prompt "Once upon a time, a girl named Ann had a" --out use.png'],
        lines_of=[faithfulness, sensitivity],
        options_of={sensitivity: [*NOT_OF_A_USE]},
        memory=sensitivity,
    ),
    _figure(2, figure_2, "--lengths 10:600 --out figure2.pdf", evaluate, figure_2_tasks()),
    _figure(3, figure_3, "--answers answers.jsonl --out figure3.pdf", evaluate, _LONGEST),
    _figure(4, figure_4, "--seeds 0 --lengths 5:50 --out x.pdf", evaluate, _LONGEST),
    _figure(5, figure_5, "--panels b --out figure5.pdf", collapse, FIGURE_5),
    _figure(
        6,
        figure_3,
        "--model google/gemma-7b --seeds 0,1 --out figure6.pdf",
        evaluate,
        figure_tasks(),
    ),
    _figure(7, figure_4, "--seeds 0 --lengths 5:50 --out x.pdf", evaluate, _LONGEST),
    _figure(8, figure_8, "--seeds 0,1 --out figure8.pdf"),
    _figure(9, figure_9, "--out figure9.pdf"),
    _unmeasured(
        "reproduce",
        composed.reproduce,
        *(
            "--out paper",
            "--figures 5,9 --out figures",
            "--recipe examples/gemma-7b.yaml --out gemma",
        ),
        runs_model=True,
    ),
    _unmeasured("sweep run", composed.run_sweep, "examples/sweep.yaml --out sweep --workers 2"),
    _unmeasured("sweep results", composed.sweep_results, "sweep --out table.csv"),
    _unmeasured(
        "report",
        composed.report,
        "",
        '--model ./my-model --prompt "The capital of France is" --out x.html',
        "--sections collapse,precision --lengths 1:128",
        "--run sweep --out sweep.html",
        runs_model=True,
    ),
    _unmeasured(
        "explore",
        composed.explore,
        '--prompt "The capital of France is" --port 8765',
        runs_model=True,
    ),
    _unmeasured("list models", list_models),
    _unmeasured("list tasks", listings.tasks),
    _unmeasured("list mitigations", listings.mitigations),
    _unmeasured("list measurements", listings.measurements),
    _unmeasured("doctor", listings.doctor),
)


def table() -> dict[str, Any]:
    """The verbs and the commands, as `commands.json` holds them: what is empty is left out."""
    measured = [
        _command(record.command, _of_record(record))
        for record in RECORDS.values()
        if record.command
    ]
    declared = [_command(command.name, vars(command)) for command in DECLARED]
    commands = sorted([*measured, *declared], key=lambda command: command["name"].split(" "))
    in_order = [
        command for verb in VERBS for command in commands if command["name"].split(" ")[0] == verb
    ]
    return {"verbs": VERBS, "common": common_options(), "commands": in_order}


def _of_record(record: MeasurementRecord) -> dict[str, Any]:
    of_questions = record.of_questions if record.hosted else ()
    return vars(record) | {"memory": None, "sizes": {}, "of_questions": of_questions}


def _command(name: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    function: Function = declared["function"]
    summary, description, _ = _parts(inspect.getdoc(inspect.unwrap(function)) or "")
    hidden = {*declared.get("python_only", ()), *declared.get("fixed", ())}
    options_of = declared.get("options_of", {})
    parameters = [
        parameter
        for parameter in _all_parameters(function, options_of, declared["lines_of"])
        if parameter["name"] not in hidden
    ]
    measures = declared.get("measures", True)
    is_composed = measures and "ostools.cli" in function.__module__
    checking = dict.fromkeys([*declared["lines_of"], *options_of] if is_composed else [])
    fields = {
        "name": name,
        "function": _target(function),
        "python": python_name(function) if measures else "",
        "summary": summary,
        "description": description,
        "parameters": parameters,
        **{key: declared.get(key) for key in ("examples", "defaults", "fixed", "of_questions")},
        "checked_by": [*map(_target, checking)],
        "memory": "" if declared["memory"] is None else _target(declared["memory"]),
        "sizes": declared["sizes"],
    }
    required = ("python", "summary", "examples")
    fields = {key: value for key, value in fields.items() if value or key in required}
    fields |= {} if measures else {"measures": False}
    lines = {parameter["name"]: parameter.pop("line", "") for parameter in parameters}
    by_place = [parameter["name"] for parameter in parameters if parameter.pop("by_place", False)]
    usual = {parameter["name"]: parameter.pop("default") for parameter in parameters}
    command = read_command(fields)
    fields["options_written"] = written_options(command, lines, by_place, usual)
    return fields | {"common": common_of(command, declared.get("runs_model", False))}


def python_name(function: Function) -> str:
    """The public name of the function, or of the one that a command composes it of."""
    rooms = {"": ost, "measure.": measure, "paper.": ostools.paper}
    name = function.__name__
    return next(f"ost.{room}{name}" for room, module in rooms.items() if name in dir(module))


def _target(function: Function) -> str:
    return f"{function.__module__}:{function.__name__}"


def _all_parameters(
    function: Function, options_of: Mapping[Function, Sequence[str]], lines_of: Sequence[Function]
) -> Iterator[dict[str, Any]]:
    """The function's own parameters, then those of the functions that its `**options` are handed
    to.
    """
    borrowed = [_lines(source) for source in lines_of]
    seen: set[str] = set()
    kinds: set[str] = set()
    for source, hidden in {function: (), **options_of}.items():
        lines, hints = _lines(source), _hints(source)
        for parameter in full_signature(source).parameters.values():
            is_written_out = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if is_written_out and parameter.name not in {*seen, *hidden}:
                seen.add(parameter.name)
                line = next(
                    (
                        known[parameter.name]
                        for known in (lines, *borrowed)
                        if parameter.name in known
                    ),
                    "",
                )
                fields = _parameter(parameter, hints[parameter.name], line)
                if (
                    fields["kind"] == "prompt" and "prompt" in kinds
                ):  # the first is the prompt, others are texts beside it
                    fields = {"name": parameter.name, "kind": "text", "default": None, "line": line}
                kinds.add(fields["kind"])
                yield fields


def _hints(function: Function) -> dict[str, Any]:
    is_verb = function.__module__.startswith("ostools.cli")
    return full_hints(function, FOR_TYPE_CHECKERS if is_verb else None)


def _parameter(parameter: inspect.Parameter, hint: Any, line: str) -> dict[str, Any]:
    name = parameter.name
    kind = {"kind": "limit"} if name in LIMITS else _kind(hint)
    fields = {"name": name, **kind, "default": parameter.default, "line": line}
    if parameter.default is parameter.empty:
        fields["required"] = True
    return fields | ({} if parameter.kind is parameter.KEYWORD_ONLY else {"by_place": True})


def _kind(hint: Any) -> dict[str, Any]:
    """What a command line reads for an annotation: the kind of value, its words, and whether there
    are several.
    """
    parts = [part for part in parts_of(hint) if part is not type(None)]
    lists = [part for part in parts if is_list(part)]
    items = {item for part in lists for item in parts_of(typing.get_args(part)[0])}
    classes = {part for part in {*parts, *items} if isinstance(part, type)}
    several = {"many": True} if lists else {}
    several |= {"or_one": True} if lists and len(parts) > len(lists) else {}
    words = {"words": list(words_of(hint))} if str in map(type, words_of(hint)) else {}
    if any(issubclass(part, TransformerBridge) for part in classes):
        return {"kind": "model"}
    if {*parts_of(Progress)} <= {*parts}:
        return {"kind": "progress"}
    if tasks := classes & {Task, CollapseTask, AppendixTask}:
        return {
            "kind": "repeating"
            if tasks == {CollapseTask}
            else "pairs"
            if CollapseTask in tasks
            else "task"
        }
    if Mitigation in classes:
        return {"kind": "mitigation", **several}
    if Prompt in classes:
        return {"kind": "prompt", **several, **({"question": True} if Question in classes else {})}
    if items == {int}:
        return {"kind": "numbers", **words}
    if Sequence in {typing.get_origin(item) for item in items}:
        return {"kind": "places", "many": True}
    plain = (
        (bool, "flag"),
        (Path, "path"),
        (float, "number"),
        (int, "text" if str in classes else "whole"),
    )
    kind = next(
        (kind for type_, kind in plain if type_ in classes), "names" if items == {str} else "text"
    )
    is_word = bool(words) and not classes
    words |= {"question": True} if words_of(hint) == POSITIONS else {}
    return {"kind": "word" if is_word else kind, **several, **words}


def _lines(function: Function) -> dict[str, str]:
    """The first sentence of each entry of `Args:`, with those of the encoding options where it
    takes them.
    """
    text = inspect.getdoc(inspect.unwrap(function)) or ""
    takes_encoding = (
        EncodingOptions.__annotations__.keys() <= full_signature(function).parameters.keys()
    )
    encoding = _parts(inspect.cleandoc(EncodingOptions.__doc__ or ""))[2] if takes_encoding else {}
    return encoding | _parts(text)[2]


def _parts(text: str) -> tuple[str, str, dict[str, str]]:
    """The first paragraph, what follows it, and the first sentence of each entry of `Args:`."""
    before, _, after = text.partition("\nArgs:\n")
    entries, _, _ = after.partition("\n\n")
    summary, _, description = before.partition("\n\n")
    return _flat(summary), description.strip(), dict(_entries(entries))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and first sentences; an entry may have several names: "system, thinking: ..."."""
    for entry in re.split(r"\n(?=    \S)", f"\n{text}"):
        names, colon, words = entry.strip().partition(": ")
        if colon and all(name.isidentifier() for name in names.split(", ")):
            yield from ((name, _first_sentence(_flat(words))) for name in names.split(", "))


def _first_sentence(text: str) -> str:
    """Text up to the first full stop that ends a sentence, without that stop."""
    end = re.search(r"(?<!\be\.g)(?<!\bi\.e)[.](?=\s+[A-Z\"`(]|$)", text)
    return text[: end.start()] if end else text


def _flat(text: str) -> str:
    return " ".join(text.split())


def text() -> str:
    """What the file should hold."""
    return json.dumps(table(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
