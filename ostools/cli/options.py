"""Options of a command, out of the signature of its function: one meaning a word everywhere.

`model` is a hub id, a directory or a name; `prompt` a text, ids or a file; `lengths` and other
lists of whole numbers are ranges such as 1:64 or lists such as 8,16; `dtypes` and other lists of
names are options that are repeated. Whatever is written is read, or refused, before a model is
loaded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import click

from ostools.cli.commands import Command
from ostools.cli.prompts import read_prompts
from ostools.cli.signature import UNKNOWN, Parameter, signature_of
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.lengths import parse_lengths

SUPPLIED = ("progress", "announce", "say", "interrupted", "max_memory")
"""Parameters that the command line gives itself."""
_WHOLE_TEXTS = ("logit", "mitigation", "mitigations", "task", "tasks", "prompts", "reasoning")
"""Lists whose items may hold a comma."""
_PLURAL = ("logit", "texts")

_TEXTS = ("logit", "reasoning", "item", "system", "prompt", "against_prompt")

_TASK = "a task with its options, such as count-ones:mode=cot-zero-shot; see `ostools list tasks`"
_MITIGATION = "what acts on prompt or pass, such as separator:every=3; see `ostools list mitigations`"
_COMMON = {
    "task": _TASK,
    "mitigation": f"{_MITIGATION}; default none",
    "mitigations": _MITIGATION,
    "chat": "in the chat template, or not; default where there is one",
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
    ("--load-dtype", "NAME", "The dtype to load the model in, such as bfloat16; else float32."),
    ("--base", "NAME", "Of a model that is an adapter (LoRA): where its base is."),
    ("--device-map", "NAME", "For a model larger than the memory: 'auto' or 'disk'. Default: all on the device."),
    ("--max-memory", "SIZE", "What the work may take beside the model (4GiB); else what is free."),
    ("--max-time", "TIME", "End what its first steps show to take longer: 90s, 30min, 6h. Default: no limit."),
    ("--dry-run", "", "Say what memory the work takes; load and measure nothing."),
)
_OF_A_RESULT = (
    ("--out", "FILE", "Chart (.html .png .svg .pdf) or table (.parquet .csv .json); else a table here."),
    ("--size", "SIZE", "Width of a picture: column (3.3 in), page (6.8 in), inches."),
)
_HOSTED = (
    ("--answers", "FILE", "Answers of a model that runs elsewhere, JSON Lines with id and text; none is loaded."),
    ("--endpoint", "URL", "An OpenAI-compatible server, asked for what --answers lacks; key in OPENAI_API_KEY."),
)
_IN_CHAT = (
    ("--chat", "", "The text as a user's turn in the chat template."),
    ("--system", "TEXT", "In the chat template: a system prompt before it."),
    ("--thinking", "", "In the chat template: leave its switch for thinking on."),
)


def _made(rows: Iterable[tuple[str, str, str]], several: bool = False) -> list[click.Parameter]:
    """The options of these rows; `several`: each may be repeated."""
    return [
        click.Option([name], metavar=metavar, help=text, multiple=several)
        if metavar
        else click.Option([name], is_flag=True, default=None, help=text)
        for name, metavar, text in rows
    ]


@dataclass(frozen=True)
class Field:
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
        for parameter in signature_of(command.function).parameters
        if not is_left_out(command, parameter) and not takes_prompt(parameter)
    )


def is_left_out(command: Command, parameter: Parameter) -> bool:
    """Whether a parameter is no option: given by the command line itself, or Python's alone."""
    is_model = parameter.name == "model" and not command.own
    hidden = (*SUPPLIED, *command.fixed, *command.python_only)
    return is_model or parameter.name in hidden


def takes_prompt(parameter: Parameter) -> bool:
    """Whether a parameter is a prompt, with the options that all prompts have."""
    return parameter.name in ("prompt", "prompts") and "Prompt" in parameter.annotation


def has_model(command: Command) -> bool:
    """Whether a command runs a model."""
    names = {parameter.name for parameter in signature_of(command.function).parameters}
    return bool(names & {"model", "models"})


def declared(command: Command) -> list[click.Parameter]:
    """Every argument and option of a command, those of its function first."""
    parameters = signature_of(command.function).parameters
    made: list[click.Parameter] = []
    for prompt in filter(takes_prompt, parameters):
        made += _prompt_options("Sequence[" in prompt.annotation)
        if "chat" not in {parameter.name for parameter in parameters}:
            made += _made(_IN_CHAT)
    made += [field.declared for field in fields_of(command)]
    if has_model(command):
        if not command.own:
            made += _made([("--model", "NAME", MODEL_HELP)])
        made += _made((*(_HOSTED if command.hosted else ()), *_OF_A_MODEL))
    return made + _made((*(_OF_A_RESULT if command.draws else ()), *_OF_EVERY))


def is_common(option: click.Parameter) -> bool:
    """Whether an option means the same in all commands that have it: model, limits, output."""
    rows = (*_OF_A_MODEL, *_OF_A_RESULT, *_OF_EVERY)
    return option.opts[0] in {"--model", "--help", *(name for name, _, _ in rows)}


def _prompt_options(several: bool) -> list[click.Parameter]:
    ids = "Token ids in place of a text: 2,40,50, or a file that holds them"
    many = "; repeatable" if several else ""
    rows = (("--prompt", "TEXT", f"The text to measure on{many}."), ("--ids", "IDS|FILE", f"{ids}{many}."))
    text = "a text a line, or as 'ostools evaluate prompts' writes them (.jsonl), or {\"ids\": [2, 40]} a line there."
    file = (("--prompts", "FILE", f"Many: {text}"),) if several else ()
    return [*_made(rows, several), *_made(file)]


# ---- from a parameter to an option


def _kinds(annotation: str) -> list[str]:
    """The parts of `A | B | None` without None."""

    def parts(tree: ast.expr) -> Iterator[str]:
        if isinstance(tree, ast.BinOp):
            yield from parts(tree.left)
            yield from parts(tree.right)
        elif not (isinstance(tree, ast.Constant) and tree.value is None):
            yield ast.unparse(tree)

    return list(parts(ast.parse(annotation, mode="eval").body))


def _list_of(kinds: list[str]) -> str | None:
    """What a parameter lists: "numbers", "texts", or None where it is no list."""
    lists = [kind for kind in kinds if re.match(r"(Sequence|Iterable|list)\[", kind)]
    if not lists:
        return None
    return "numbers" if re.search(r"\[int\]$", lists[0]) else "texts"


def _words(kinds: list[str]) -> tuple[Any, ...]:
    """The values of `Literal[...]`."""
    found = (kind for kind in kinds if kind.startswith("Literal["))
    return next((ast.literal_eval(f"({kind[8:-1]},)") for kind in found), ())


def _field(command: Command, parameter: Parameter) -> Field:
    name, kinds = parameter.name, _kinds(parameter.annotation)
    listed = _list_of(kinds)
    singular = listed == "texts" and name.endswith("s") and name not in _PLURAL
    written = command.renamed.get(name) or (name[:-1] if singular else name)
    option = f"--{written.replace('_', '-')}"
    attribute = written.replace("-", "_")
    usual = command.defaults.get(name)
    more: dict[str, Any] = {"help": _help(command, parameter)}
    if command.own and parameter.by_place:
        more = {"metavar": name.upper(), "required": parameter.required}
        place = click.Argument([attribute], **more)
        place.help = _help(command, parameter)  # pyright: ignore[reportAttributeAccessIssue]
        return Field(name, name.upper(), place, _reader(kinds, name))
    more["required"] = parameter.required and usual is None
    if "bool" in kinds:
        both = parameter.default is not False
        names = [f"{option}/--no-{option[2:]}" if both else option, attribute]
        return Field(name, option, click.Option(names, is_flag=True, default=None, **more), _as_is)
    if listed == "texts" and name not in _CUSTOM:
        more["multiple"] = True
    if name in _CUSTOM and _CUSTOM[name][1]:
        more["multiple"] = True
    more["metavar"] = _metavar(kinds, name, parameter.line)
    more["type"] = _click_type(kinds, listed)
    return Field(name, option, click.Option([option, attribute], **more), _reader(kinds, name))


def _click_type(kinds: list[str], listed: str | None) -> click.ParamType:
    if listed is None and not _words(kinds):
        if "float" in kinds:
            return click.FLOAT
        if "int" in kinds and "str" not in kinds:
            return click.INT
    return click.STRING


def _metavar(kinds: list[str], name: str, line: str) -> str:
    listed, words = _list_of(kinds), _words(kinds)
    if name in _CUSTOM:
        return _CUSTOM[name][2]
    if listed == "numbers":
        return "|".join([*map(str, words), "RANGE"])
    if words:
        return "|".join(map(str, words))
    if name in ("task", "mitigation", "mitigations"):
        return "NAME[:OPTIONS]"
    if listed is None and "float" in kinds:
        return "X"
    if listed is None and "int" in kinds and "str" not in kinds:
        return "N"
    if name in _TEXTS:
        return "TEXT"
    if "Path" not in kinds:
        return "NAME"
    return "DIR" if "directory" in line else "FILE"


def _reader(kinds: list[str], name: str) -> Callable[[str, Any], Any]:
    """How the text of an option becomes the argument."""
    listed, words = _list_of(kinds), _words(kinds)
    if name in _CUSTOM:
        return _CUSTOM[name][0]
    if listed == "numbers":
        least = 1 if name in ("lengths", "windows") else 0
        return partial(_numbers, words=words, least=least)
    if listed == "texts":
        alone = len([kind for kind in kinds if kind != "None"]) > 1
        return partial(_texts, alone=alone, whole=name in _WHOLE_TEXTS)
    if words and "int" not in kinds:
        return partial(_one_of, words=words)
    if "Path" in kinds and "str" not in kinds:
        return lambda option, text: Path(text)
    return _as_is


def _as_is(option: str, value: Any) -> Any:
    return value


def _numbers(option: str, text: str, words: tuple[str, ...], least: int) -> Any:
    """One of the words, or whole numbers written as ranges and lists."""
    if text.strip() in words:
        return text.strip()
    if words and not re.fullmatch(r"[\d,:\s]+", text, re.ASCII):
        known = " or ".join(map(repr, words))
        raise InputError(f"{option} {text!r}: expected {known} or numbers such as 0,2")
    return tuple(parse_lengths(text, option, least))


def _texts(option: str, values: tuple[str, ...], alone: bool, whole: bool) -> Any:
    """Names in order; `alone`: one of them is handed on by itself. `whole`: a comma is no end."""
    split = re.compile(r"$^" if whole else r",(?![^(]*\))")  # inside parentheses a comma is a name's own
    names = [name if whole else name.strip() for value in values for name in split.split(value)]
    return names[0] if alone and len(names) == 1 else tuple(names)


def _one_of(option: str, text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        raise unknown_name(option.lstrip("-"), text, words)
    return text


_PARTS = (
    r"(\d{1,5})\.(\d{1,5})",
    r"(\d{1,5})\.(\d{1,5}):(\d{1,7}):(\d{1,7})",
    r"(\d{1,5})\.([a-z]+)",
)


def _targets(option: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Heads, edges or sublayers. Raises `InputError` for text that names no part."""
    read = []
    for text in values:
        matches = (re.fullmatch(form, text.strip(), flags=re.ASCII) for form in _PARTS)
        match = next(filter(None, matches), None)
        if match is None:
            raise InputError(
                f"{option} {text!r}: expected a head layer.head such as 2.0, an edge "
                "layer.head:query:key such as 2.0:64:7, or layer.attention or layer.mlp such as "
                "2.mlp"
            )
        read.append(tuple(int(word) if word.isdigit() else word for word in match.groups()))
    return read


_CUSTOM: dict[str, tuple[Callable[[str, Any], Any], bool, str]] = {
    "targets": (_targets, True, "PART"),
    "texts": (_as_is, False, "FILE"),
}
"""Parameters that are read in a way of their own: reader, whether repeated, metavar."""


def _help(command: Command, parameter: Parameter) -> str:
    name = parameter.name
    if name == "model":
        return MODEL_HELP
    line = _COMMON.get(name) or parameter.line or _borrowed(command, name)
    line = re.sub(r"`(ostools [^`]*)`", r"'\1'", line).replace("`", "")
    line = re.sub(r"\bNone: ", "without it: ", line)
    usual = command.defaults.get(name) or shown_default(parameter)
    text = f"{line[:1].upper()}{line[1:]}."
    return f"{text} Default: {usual}." if usual else text


def _borrowed(command: Command, name: str) -> str:
    """The line of another function that this one hands the parameter to."""
    for target in command.lines_of:
        for parameter in signature_of(f"ostools.{target}").parameters:
            if parameter.name == name and parameter.line:
                return parameter.line
    return ""


def shown_default(parameter: Parameter) -> str:
    """A default as it would be written on the command line; nothing for None, flags, unknowns."""
    value: Any = parameter.default
    if value is UNKNOWN or value is None or isinstance(value, bool) or len(str(value)) == 0:
        return ""
    if isinstance(value, range):
        value = tuple(value)
    if isinstance(value, tuple):
        whole = [item for item in value if isinstance(item, int)]
        if len(whole) == len(value) > 2 and whole == list(range(whole[0], whole[-1] + 1)):
            return f"{value[0]}:{value[-1]}"
        return ",".join(map(str, value))
    return str(value)


# ---- from what is written to arguments


def read_arguments(command: Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the command's function that were given, or that have a default of the command.

    A prompt is a `Prompts`. Raises `InputError` for what cannot be read.
    """
    arguments: dict[str, Any] = {}
    for parameter in filter(takes_prompt, signature_of(command.function).parameters):
        own_chat = any(field.name == "chat" for field in fields_of(command))
        hidden = {"chat", "system", "thinking"} if own_chat else set()
        kept = {name: value for name, value in values.items() if name not in hidden}
        prompts = read_prompts(kept, needed=parameter.required)
        if prompts is not None:
            arguments[parameter.name] = prompts
    for field in fields_of(command):
        value = values.get(str(field.declared.name))
        if value is None or value == ():
            usual = command.defaults.get(field.name)
            if usual is None:
                continue
            several = getattr(field.declared, "multiple", False)
            value = tuple(usual.split(" ")) if several else field.declared.type.convert(usual, field.declared, None)
        arguments[field.name] = field.read(field.option, value)
    return arguments
