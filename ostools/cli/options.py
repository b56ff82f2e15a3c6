"""Options of a command, out of the signature of its function: one meaning a word everywhere.

`model` is a hub id, a directory or a name; `prompt` a text, ids or a file; `lengths` and other
lists of whole numbers are ranges such as 1:64 or lists such as 8,16; `dtypes` and other lists of
names are options that are repeated. Whatever is written is read, or refused, before a model is
loaded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from ostools.cli.commands import UNKNOWN, Command, Parameter
from ostools.cli.prompts import OF_A_QUESTION, Prompts, read_prompts, require_utf8, texts_of
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name, checked_names
from ostools.ground.whole_numbers import parse_lengths, whole_number

SUPPLIED = ("progress", "say", "max_memory")
"""Parameters that the command line gives itself."""
_WHOLE_TEXTS = ("logit", "mitigation", "mitigations", "task", "tasks", "prompts", "reasoning")
"""Lists whose items may hold a comma."""
_PLURAL = ("logit", "texts")

_TEXTS = ("logit", "reasoning", "item", "system", "prompt", "against_prompt")

_TASK = "a task with its options, such as count-ones:mode=cot-zero-shot; see `ostools list tasks`"
_MITIGATION = "what acts on prompt or pass, such as separator:every=3 (`ostools list mitigations`), or ./mine.py:NAME"
_COMMON = {
    "task": _TASK,
    "mitigation": f"{_MITIGATION}; default none",
    "mitigations": _MITIGATION,
    "bos": "the tokenizer's BOS before a plain text, or not; default as the tokenizer does",
    "chat": "a user's turn in the chat template, or not; default: a text is none, a task's question where there is one",
    "system": "a system prompt, in the chat template",
    "thinking": "leave the chat template's switch for thinking on",
}
"""Help of the words that stand in many signatures."""


MODEL_HELP = "'embedded' (the default) or another of 'ostools list models', a directory, or a hub id."
_OF_EVERY = (
    ("--json", "", "The whole result as JSON on stdout, its provenance with it."),
    ("--quiet", "", "No progress, no notes: results and refusals only."),
)
"""Options as they are declared: name, what stands behind it (nothing: a flag), help."""
_OF_A_MODEL = (
    ("--device", "NAME", "'auto' (cuda, else cpu) or a torch device."),
    ("--load-dtype", "NAME", "The dtype to load the model in, such as float32; else the one that its file stores."),
    ("--device-map", "NAME", "For a model larger than the memory: 'auto' or 'disk'. Default: all on the device."),
    ("--max-memory", "SIZE", "What the work may take beside the model (4GiB); else what is free."),
    ("--max-time", "TIME", "End what its first steps show to take longer: 90s, 30min, 6h. Default: no limit."),
    ("--dry-run", "", "Say what memory the work takes; load and measure nothing."),
)
_OF_A_RESULT = (
    ("--out", "FILE", "Chart (.html .png .svg .pdf) or table (.parquet .csv .json); else a table here."),
    (
        "--size",
        "SIZE",
        "Width of a picture: column (3.3 in), page (6.8 in), slide (19-point letters on a full slide), inches.",
    ),
)
_HOSTED = (
    ("--answers", "FILE", "Answers of a model that runs elsewhere, JSON Lines with id and text; none is loaded."),
    ("--endpoint", "URL", "An OpenAI-compatible server, asked for what --answers lacks; key in OPENAI_API_KEY."),
)


def _declared(rows: Iterable[tuple[str, str, str]], repeatable: bool = False) -> list[click.Parameter]:
    """The options of these rows: name, metavar (empty: a flag), help."""
    return [
        click.Option([name], metavar=metavar, help=text, multiple=repeatable)
        if metavar
        else click.Option([name], is_flag=True, default=None, help=text)
        for name, metavar, text in rows
    ]


class Field(NamedTuple):
    """One parameter on the command line: how it is declared there, and how its text is read."""

    name: str
    option: str
    declared: click.Parameter
    read: Callable[[str, Any], Any]


@cache
def fields_of(command: Command) -> tuple[Field, ...]:
    """The parameters of a command's function that are options or arguments of it."""
    return tuple(
        _field(command, parameter)
        for parameter in command.parameters
        if not is_left_out(command, parameter) and not takes_prompt(parameter)
    )


def is_left_out(command: Command, parameter: Parameter) -> bool:
    """Whether a parameter is no option: given by the command line itself, or Python's alone."""
    is_model = parameter.name == "model" and not command.loads_model
    hidden = (*SUPPLIED, *command.fixed, *command.python_only)
    return is_model or parameter.name in hidden


def takes_prompt(parameter: Parameter) -> bool:
    """Whether a parameter is a prompt, with the options that all prompts have."""
    return parameter.name in ("prompt", "prompts") and "Prompt" in parameter.annotation


def takes_question(command: Command) -> bool:
    """Whether the prompt may be a task's question, given by --task and --length."""
    kinds = [parameter.annotation for parameter in filter(takes_prompt, command.parameters)]
    return "task" not in command.names and any("Question" in kind for kind in kinds)


def has_model(command: Command) -> bool:
    """Whether a command runs a model."""
    return bool(command.names & {"model", "models"})


def declared(command: Command) -> list[click.Parameter]:
    """Every argument and option of a command, those of its function first."""
    parameters = command.parameters
    options: list[click.Parameter] = []
    for prompt in filter(takes_prompt, parameters):
        options += _prompt_options("Sequence[" in prompt.annotation)
        if takes_question(command):
            options += _question_options({parameter.name for parameter in parameters})
    options += [field.declared for field in fields_of(command)]
    if has_model(command):
        if not command.loads_model:
            options += _declared([("--model", "NAME", MODEL_HELP)])
        options += _declared((*(_HOSTED if command.hosted else ()), *_OF_A_MODEL))
    return options + _declared((*(_OF_A_RESULT if command.draws else ()), *_OF_EVERY))


def is_common(option: click.Parameter) -> bool:
    """Whether an option means the same in all commands that have it: model, limits, output."""
    rows = (*_OF_A_MODEL, *_OF_A_RESULT, *_OF_EVERY)
    return option.opts[0] in {"--model", "--help", *(name for name, _, _ in rows)}


def _prompt_options(repeatable: bool) -> list[click.Parameter]:
    ids = "Token ids in place of a text: 2,40,50"
    many = "; repeatable" if repeatable else ""
    rows = (("--prompt", "TEXT", f"The text to measure on{many}."), ("--ids", "IDS", f"{ids}{many}."))
    text = "a text a line, or as 'ostools evaluate prompts' writes them (.jsonl), or {\"ids\": [2, 40]} a line there."
    file = (("--prompts", "FILE", f"Many: {text}"),) if repeatable else ()
    return [*_declared(rows, repeatable), *_declared(file)]


def _question_options(names: set[str]) -> list[click.Parameter]:
    """Options of a task's question, in the place of a prompt; a measurement's own --seed draws the question too."""
    declarations: dict[str, dict[str, Any]] = {
        "task": {
            "metavar": "NAME[:OPTIONS]",
            "help": f"In place of a prompt {_TASK}; read at the token from which the answer is predicted.",
        },
        "length": {"type": click.INT, "help": "Number of items of the task."},
        "seed": {"type": click.INT, "help": "Seed of the task's sequence, if it draws one."},
    }
    return [click.Option([f"--{name}"], **declarations[name]) for name in OF_A_QUESTION if name not in names]


# ---- from a parameter to an option


class _Kind:
    """Kinds of values that an annotation such as `Literal["all"] | Iterable[int] | None` allows."""

    def __init__(self, annotation: str) -> None:
        parts = re.split(r" \| (?![^\[]*\])", annotation)  # a bar inside brackets is of a list's items
        self.parts = [part for part in parts if part != "None"]
        literals = (part for part in self.parts if part.startswith("Literal["))
        self.words: tuple[Any, ...] = next((ast.literal_eval(f"({part[8:-1]},)") for part in literals), ())
        lists = [part for part in self.parts if re.match(r"(Sequence|Iterable|list)\[", part)]
        self.numbers = bool(lists) and lists[0].endswith("[int]")
        self.texts = bool(lists) and not self.numbers
        plain = not lists and not self.words
        self.is_float = plain and "float" in self.parts
        self.is_whole = plain and not self.is_float and "int" in self.parts and "str" not in self.parts
        self.is_path = "Path" in self.parts and "str" not in self.parts


def _field(command: Command, parameter: Parameter) -> Field:
    name, kind = parameter.name, _Kind(parameter.annotation)
    singular = kind.texts and name.endswith("s") and name not in _PLURAL
    word = command.renamed.get(name) or (name[:-1] if singular else name)
    option = f"--{word.replace('_', '-')}"
    attribute = word.replace("-", "_")
    text, reader = _help(command, parameter), _reader(kind, name, command.choices.get(name, ("", ()))[1])
    if command.loads_model and parameter.by_place:
        argument = click.Argument([attribute], metavar=name.upper(), required=parameter.required)
        argument.help = text  # pyright: ignore[reportAttributeAccessIssue]
        return Field(name, name.upper(), argument, reader)
    options: dict[str, Any] = {"help": text}
    options["required"] = parameter.required and command.defaults.get(name) is None
    if "bool" in kind.parts:
        has_negation = parameter.default is not False
        names = [f"{option}/--no-{option[2:]}" if has_negation else option, attribute]
        return Field(name, option, click.Option(names, is_flag=True, default=None, **options), reader)
    declared_option = click.Option(
        [option, attribute],
        multiple=name == "targets" or (kind.texts and name != "texts"),
        metavar=_metavar(kind, name),
        type=click.FLOAT if kind.is_float else click.INT if kind.is_whole and name != "position" else click.STRING,
        **options,
    )
    return Field(name, option, declared_option, reader)


def _metavar(kind: _Kind, name: str) -> str | None:
    """What stands behind an option; None: what click writes by its type."""
    if kind.numbers or kind.words:
        return "|".join([*map(str, kind.words), *(["RANGE"] if kind.numbers else [])])
    if "Path" in kind.parts:
        return "PATH"
    plain = kind.is_float or kind.is_whole or name in _TEXTS
    return None if plain else "NAME[:OPTIONS]" if name in ("task", "mitigation", "mitigations") else "NAME"


def _reader(kind: _Kind, name: str, names: tuple[str, ...]) -> Callable[[str, Any], Any]:
    if name == "targets":
        return _targets
    if name == "texts":
        return lambda option, value: value
    if kind.numbers:
        least = 1 if name in ("lengths", "windows") else 0
        return partial(_numbers, words=kind.words, least=least)
    if name == "position":
        return partial(_position, index="int" in kind.parts, named="str" in kind.parts, names=names)
    if name == "seed":
        return lambda option, value: whole_number(option, int(value))
    if kind.texts:
        return partial(_texts, alone=len(kind.parts) > 1, keeps_commas=name in _WHOLE_TEXTS)
    if kind.words and "int" not in kind.parts:
        return lambda option, text: checked_name(option.lstrip("-"), text, kind.words)
    return lambda option, value: Path(value) if kind.is_path else value


def _position(option: str, text: str, index: bool, named: bool, names: tuple[str, ...]) -> int | str:
    """The index of a token, or the name of a position in a task's prompt, as the command takes one or both."""
    if index and re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        return int(text)
    if not named:
        raise InputError(f"{option} {text!r}: expected the index of a token, such as 5 or -1")
    return checked_name(option.lstrip("-"), text, names)


def _numbers(option: str, text: str, words: tuple[str, ...], least: int) -> Any:
    if text.strip() in words:
        return text.strip()
    if words and not re.fullmatch(r"[\d,:\s]+", text, re.ASCII):
        expected = " or ".join(map(repr, words))
        raise InputError(f"{option} {text!r}: expected {expected} or numbers such as 0,2")
    return tuple(parse_lengths(text, option, least))


def _texts(option: str, values: tuple[str, ...], alone: bool, keeps_commas: bool) -> Any:
    """Names in order; `alone`: one of them is handed on by itself. `keeps_commas`: a comma is no end."""
    split = re.compile(r"$^" if keeps_commas else r",(?![^(]*\))")  # inside parentheses a comma is a name's own
    names = [name if keeps_commas else name.strip() for value in values for name in split.split(value)]
    return names[0] if alone and len(names) == 1 else tuple(names)


_PARTS = (
    r"(\d{1,5})\.(\d{1,5})",
    r"(\d{1,5})\.(\d{1,5}):(\d{1,7}):(\d{1,7})",
    r"(\d{1,5})\.([a-z]+)",
)


def _targets(option: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Heads, edges or sublayers. Raises `InputError` for text that names no part."""
    targets = []
    for text in values:
        matches = (re.fullmatch(form, text.strip(), flags=re.ASCII) for form in _PARTS)
        match = next(filter(None, matches), None)
        if match is None:
            raise InputError(
                f"{option} {text!r}: expected a head layer.head such as 2.0, an edge "
                "layer.head:query:key such as 2.0:64:7, or layer.attention or layer.mlp such as "
                "2.mlp"
            )
        targets.append(tuple(int(word) if word.isdigit() else word for word in match.groups()))
    return targets


def _help(command: Command, parameter: Parameter) -> str:
    name = parameter.name
    if name == "model":
        return MODEL_HELP
    line = _COMMON.get(name) or parameter.line
    line = re.sub(r"`(ostools [^`]*)`", r"'\1'", line).replace("`", "")
    line = re.sub(r"\bNone: ", "without it: ", line)
    usual = command.defaults.get(name) or shown_default(parameter)
    text = f"{line[:1].upper()}{line[1:]}."
    return f"{text} Default: {usual}." if usual else text


def shown_default(parameter: Parameter) -> str:
    """A default as it would be written on the command line; nothing for None, flags, unknowns."""
    value: Any = parameter.default
    if value is UNKNOWN or value is None or isinstance(value, bool) or len(str(value)) == 0:
        return ""
    if isinstance(value, range):
        value = tuple(value)
    if isinstance(value, tuple):
        numbers = [item for item in value if isinstance(item, int)]
        if len(numbers) == len(value) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"{value[0]}:{value[-1]}"
        return ",".join(map(str, value))
    return str(value)


# ---- from what is written to arguments


def read_arguments(command: Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the command's function that were given, or that have a default of the command.

    A prompt is a `Prompts`. Raises `InputError` for what cannot be read.
    """
    for name in (*_TEXTS, "task", "mitigation"):
        for text in texts_of(values.get(name)):
            require_utf8(f"--{name.replace('_', '-')}", text)
    arguments: dict[str, Any] = {}
    for parameter in filter(takes_prompt, command.parameters):
        prompts = read_prompts(values, needed=parameter.required, questions=takes_question(command))
        if prompts is not None:
            arguments[parameter.name] = prompts
    for field in fields_of(command):
        value = values.get(str(field.declared.name))
        if value is None or value == ():
            usual = command.defaults.get(field.name)
            if usual is None:
                continue
            repeatable = getattr(field.declared, "multiple", False)
            value = tuple(usual.split(" ")) if repeatable else field.declared.type.convert(usual, field.declared, None)
        arguments[field.name] = field.read(field.option, value)
        if field.name in command.choices and field.name != "position":  # which may be an index too
            checked_names(command.choices[field.name][0], arguments[field.name], command.choices[field.name][1])
    _require_position_of_a_task(arguments)
    for parameter in command.parameters:
        given = arguments.get(parameter.name)
        if parameter.name == "task":
            for spec in texts_of(given):
                _refuse_unknown(parameter, spec)
        elif parameter.name in ("mitigation", "mitigations") and given is not None:
            arguments[parameter.name] = _typed(given) if isinstance(given, str) else tuple(map(_typed, given))
    return arguments


def _require_position_of_a_task(arguments: Mapping[str, Any]) -> None:
    """Refuse the name of a position that a text or ids do not have; their end has a name for all."""
    prompts, position = arguments.get("prompt", arguments.get("prompts")), arguments.get("position")
    is_named = isinstance(position, str) and position != "prompt-end"
    values = prompts.values if is_named and isinstance(prompts, Prompts) else ()
    if any(isinstance(value, str | tuple) for value in values):
        raise InputError(f"--position {position!r}: expected a task's prompt, found a text or ids: give --task instead")


def _typed(spec: str) -> Any:
    """A mitigation by its name, or the one of a file of the user's own, which runs. Refuses what there is not, before torch is
    imported."""
    from ostools.mitigations.named import is_in_file, typed

    mitigation = typed(spec)
    return mitigation if is_in_file(spec) else spec


def _refuse_unknown(parameter: Parameter, spec: str) -> None:
    """Refuse a task or pairs that there are not, before torch is imported."""
    from ostools import tasks

    kinds = parameter.annotation.split(" | ")
    if "CollapseTask" not in kinds:
        tasks.task(spec)
    elif "Task" in kinds:
        tasks.task(spec, tasks.CollapseTask)
    else:
        tasks.repeating(spec)
