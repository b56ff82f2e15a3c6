"""Prompts of a command: texts or token ids, given one by one or read from a file, each refused by
its line; or a task's question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ostools.ground.errors import InputError
from ostools.ground.files import TEXT_LIMIT, read_bytes

if TYPE_CHECKING:
    from ostools.ground.lens import TransformerBridge
    from ostools.models import Prompt
    from ostools.tasks.questions import Question

Value: TypeAlias = "str | tuple[int, ...] | Question"
"""A prompt as a user gives it: a text, its token ids, or a task's question."""
OF_A_QUESTION = ("task", "length", "seed")


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


def read_prompts(values: Mapping[str, Any], *, needed: bool, questions: bool) -> Prompts | None:
    """The prompts of --prompt, --ids, --prompts, and with `questions` of --task and --length; None
    for none, where none is needed.

    Raises `InputError` for none or several of the options, for an empty text, and for options of
    `EncodingOptions` that do not go with them.
    """
    prompts = _values(values, needed, questions)
    chat, bos = values.get("chat"), values.get("bos")
    if chat and bos is not None:
        raise InputError(
            "--bos and --no-bos are of a plain text, found --chat, whose template writes its special tokens: leave one out"
        )
    if prompts is None:
        return None
    if any(isinstance(prompt, tuple) for prompt in prompts) and (chat or bos is not None):
        option = "--chat" if chat else "--bos" if bos else "--no-bos"
        raise InputError(
            f"{option}: expected --prompt beside it, found --ids, which stand as they are"
        )
    if not chat and all(isinstance(prompt, str | tuple) for prompt in prompts):
        for name in ("system", "thinking"):
            if values.get(name):
                raise InputError(
                    f"--{name}: expected --chat beside it, found none: only a chat template uses it"
                )
    return Prompts(tuple(prompts))


def _values(values: Mapping[str, Any], needed: bool, questions: bool) -> list[Value] | None:
    texts, ids = texts_of(values.get("prompt")), texts_of(values.get("ids"))
    file = values.get("prompts")
    asked = values.get("task") if questions else None
    options = {"--prompt": texts, "--ids": ids, "--prompts": file, "--task": asked}
    if questions and (asked is None) != (values.get("length") is None):
        found = "--length" if asked is None else "--task"
        raise InputError(
            f"{found}: expected --task NAME and --length N, a question of so many items, found one of them"
        )
    used = [option for option, value in options.items() if value]
    if len(used) > 1:
        many = "put all prompts into one file" if "prompts" in values else "leave one out"
        raise InputError(f"{' and '.join(used)} exclude each other: {many}")
    if not used:
        if needed:
            ways = ["--prompt TEXT", "--ids 2,40,50"] + ["--prompts FILE"] * ("prompts" in values)
            ways += ["--task NAME"] * questions
            raise InputError(f"expected {' or '.join(ways)}, found none of them")
        return None
    if asked is not None:
        return [_question(asked, values["length"], values.get("seed"))]
    for text in texts:
        require_utf8("--prompt", text)
    if "" in texts:
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return prompts_of(Path(file)) if file else [*texts, *map(parse_ids, ids)]


def _question(task: str, length: int, seed: int | None) -> Question:
    from ostools import tasks
    from ostools.tasks.base import seeds_of
    from ostools.tasks.questions import question

    form = tasks.task(task)
    (drawn_by,) = seeds_of(form, [0 if seed is None or not form.random else seed])
    return question(form, length, seed=drawn_by)


def texts_of(value: Any) -> list[str]:
    """A text or a list of them, as a list; None: none."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def require_utf8(where: str, text: str) -> None:
    """Refuse text with bytes that are not UTF-8 (Python keeps those of a command line as halves of
    characters), or with such a half, which JSON can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        found = f"the byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise InputError(
            f"{where}: expected text in UTF-8, found {found} at {error.start}"
        ) from None


def parse_ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas or blanks between them, in brackets or without."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise InputError(
            f"--ids {text[:60]!r}: expected token ids such as 2,40,50; many stand in a .jsonl file of --prompts"
        )
    return tuple(map(int, words))


def prompts_of(file: Path) -> list[Value]:
    """One prompt a line of a text file, or under the key `prompt` or `ids` of each line of a .jsonl
    file, in its order.
    """
    try:
        lines = read_bytes(file, TEXT_LIMIT).decode("utf-8-sig").split("\n")
    except (OSError, InputError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--prompts {file}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"--prompts {file}: expected text in UTF-8, found other bytes at {error.start}"
        ) from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise InputError(f"--prompts {file}: expected a prompt a line, found an empty file")
    read = _of_json if file.suffix.lower() == ".jsonl" else _of_text
    return [
        read(f"--prompts {file}, line {number}", line) for number, line in enumerate(lines, start=1)
    ]


def _of_text(where: str, line: str) -> str:
    text = line.removesuffix("\r")
    if not text.strip():
        raise InputError(
            f"{where}: expected a prompt, found an empty line; one with line breaks needs a .jsonl file"
        )
    return text


def _of_json(where: str, line: str) -> Value:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(
            f"{where}: expected a JSON object with the key 'prompt', found something else"
        ) from None
    text, ids = (row.get(key) if isinstance(row, dict) else None for key in ("prompt", "ids"))
    if text is not None and ids is not None:
        raise InputError(f"{where}: expected 'prompt' or 'ids', found both: leave one out")
    if isinstance(ids, list) and ids and all(type(index) is int for index in ids):
        return tuple(ids)
    if not isinstance(text, str) or not text:
        raise InputError(
            f"{where}: expected a JSON object with a text under the key 'prompt', or token ids under 'ids', found none"
        )
    require_utf8(where, text)
    return text
