"""Prompts of a command: texts or token ids, given one by one or read from a file, each refused by
its line; or a task's question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ostools.ground.errors import InputError, in_words

if TYPE_CHECKING:
    from ostools.ground.lens import TransformerBridge
    from ostools.models import Prompt
    from ostools.tasks.questions import Question

Argument = TypeVar("Argument")
Value: TypeAlias = "str | tuple[int, ...] | Question"
"""A prompt as a user gives it: a text, its token ids, or a task's question."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a command."""

    values: tuple[Value, ...]

    def of(
        self, model: TransformerBridge
    ) -> str | Prompt | Question | list[str | Prompt | Question]:
        """A prompt as a measurement takes it where there is one, else a list of them."""
        from ostools.models import Prompt

        prompts = [
            Prompt.from_ids(model, value) if isinstance(value, tuple) else value
            for value in self.values
        ]
        return prompts[0] if len(prompts) == 1 else prompts


def split_prompts(arguments: Mapping[str, Argument]) -> tuple[dict[str, Argument], list[Value]]:
    """The arguments that are no prompts, and the prompts."""
    plain = {name: value for name, value in arguments.items() if not isinstance(value, Prompts)}
    prompts = (value.values for value in arguments.values() if isinstance(value, Prompts))
    return plain, [*chain.from_iterable(prompts)]


def read_prompts(values: Mapping[str, object], *, needed: bool, questions: bool) -> Prompts | None:
    """The prompts of --prompt, --ids, --prompts, and with `questions` of --task and --length; None
    for none, where none is needed.

    Raises `InputError` for none or several of the options, for an empty text, and for options of
    `EncodingOptions` that do not go with them.
    """
    way, prompts = _way(values, needed, questions)
    chat, bos = values.get("chat"), values.get("bos")
    if chat and bos is not None:
        raise InputError(
            "--bos and --no-bos are of a plain text, found --chat, whose template writes its "
            "special tokens: leave one out"
        )
    if way == "--ids" and (chat or bos is not None):
        option = "--chat" if chat else "--bos"
        raise InputError(
            f"{option}: expected --prompt beside it, found --ids, which stand as they are"
        )
    for name in ("system", "thinking"):
        if way not in (None, "--task") and values.get(name) and not chat:
            raise InputError(
                f"--{name}: expected --chat beside it, found none: only a chat template uses it"
            )
    return None if way is None else Prompts(tuple(prompts))


def _way(
    values: Mapping[str, object], needed: bool, questions: bool
) -> tuple[str | None, list[Value]]:
    """The option by which prompts were given, and the prompts."""
    ways = ["prompt", "ids", "prompts", *["task"] * questions]
    used = [name for name in ways if values.get(name)]
    if len(used) > 1:
        raise InputError(f"--{' and --'.join(used)} exclude each other: leave one out")
    if questions and (used == ["task"]) != (values.get("length") is not None):
        raise InputError(
            "expected --task NAME and --length N, a question of so many items, found one"
        )
    if not used and needed:
        options = " or ".join(f"--{name}" for name in ways if name in values)
        raise InputError(f"expected {options}, found none of them")
    return (f"--{used[0]}", _values(used[0], values)) if used else (None, [])


def _values(way: str, values: Mapping[str, object]) -> list[Value]:
    value = values[way]
    if way == "task":
        length, seed = values["length"], values.get("seed") or 0
        return [_question(str(value), int(str(length)), int(str(seed)))]
    if way == "prompts":
        return prompts_of(Path(str(value)))
    texts = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
    if "" in texts:
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return [parse_ids(text) if way == "ids" else text for text in texts]


def _question(task: str, length: int, seed: int) -> Question:
    from ostools import tasks
    from ostools.tasks.base import seeds_of
    from ostools.tasks.questions import question

    form = tasks.task(task)
    seeds_of(form, [seed if form.random else 0])
    return question(form, length, seed=seed if form.random else 0)


def parse_ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas or blanks between them, in brackets or without."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise InputError(
            f"--ids {text[:60]!r}: expected token ids such as 2,40,50; many stand in a .jsonl file "
            "of --prompts"
        )
    return tuple(map(int, words))


def prompts_of(file: Path) -> list[Value]:
    """One prompt a line of a text file, or under the key `prompt` or `ids` of each line of a .jsonl
    file, in its order.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {file}: cannot be read: {in_words(error)}") from error
    read = _of_json if file.suffix.lower() == ".jsonl" else _of_text
    return [
        read(f"--prompts {file}, line {number}", line) for number, line in enumerate(lines, start=1)
    ]


def _of_text(where: str, line: str) -> str:
    if not line.strip():
        raise InputError(
            f"{where}: expected a prompt, found an empty line; one with line breaks needs a .jsonl "
            "file"
        )
    return line


def _of_json(where: str, line: str) -> Value:
    """The text or the ids of a line. Raises `InputError` for a line with none, or with both."""
    try:
        row = json.loads(line)
        text, ids = row.get("prompt"), row.get("ids")
    except (ValueError, AttributeError):
        text, ids = None, None
    if isinstance(text, str) and text and ids is None:
        return text
    if text is None and isinstance(ids, list) and ids and all(type(item) is int for item in ids):
        return tuple(ids)
    raise InputError(
        f"{where}: expected a JSON object with a text under the key 'prompt', or token ids under "
        f"'ids', found {line[:60]!r}"
    )
