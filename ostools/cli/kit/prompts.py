"""Prompts of a command: text or token ids, one or many, given one by one or read from a file, each refused by its line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from ostools.ground.errors import InputError
from ostools.ground.files.reading import TEXT_LIMIT, read_bytes, read_text

Given: TypeAlias = str | tuple[int, ...]
"""A prompt as a user gives it: a text, or its token ids."""

Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="The text to measure on; or --ids.")]
Prompts = Annotated[
    list[str] | None, typer.Option("--prompt", metavar="TEXT", help="The text to measure on; repeatable.")
]
PromptsFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help='Many: a text a line, or as `ostools prompts` writes them (.jsonl), or {"ids": [2, 40]} a line there.',
    ),
]
_IDS = "Token ids in place of a text: 2,40,50, or a file that holds them"
Ids = Annotated[str | None, typer.Option("--ids", metavar="IDS|FILE", help=f"{_IDS}.")]
ManyIds = Annotated[list[str] | None, typer.Option("--ids", metavar="IDS|FILE", help=f"{_IDS}; repeatable.")]


def given_prompt(prompt: str | None, ids: str | None) -> Given:
    """The one prompt, as text or as ids. Raises `InputError` for none or both, and for an empty one."""
    found = chosen(prompt, ids)
    if found is None:
        raise InputError("expected --prompt TEXT or --ids 2,40,50, found neither")
    return found


def chosen(prompt: str | None, ids: str | None) -> Given | None:
    """The one prompt, None for none. Raises `InputError` for both, and for an empty one."""
    if prompt is not None and ids is not None:
        raise InputError("--prompt and --ids exclude each other: leave one out")
    if prompt == "":
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return prompt if ids is None else parse_ids(ids)


def given_prompts(prompts: Iterable[str] | None, file: Path | None, ids: Iterable[str] | None = None) -> list[Given]:
    """The prompts of one of the three options. Raises `InputError` for none or several of them, and for an empty one."""
    texts, numbers = list(prompts or ()), list(ids or ())
    named = {"--prompt": texts, "--prompts": file, "--ids": numbers}
    if not (used := [name for name, value in named.items() if value]):
        raise InputError("expected --prompt TEXT, --ids 2,40,50 or --prompts FILE, found none of them")
    if len(used) > 1:
        raise InputError(f"{' and '.join(used)} exclude each other: put all prompts into one file")
    if file is not None:
        return prompts_of(file)
    if "" in texts:
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return [*texts, *map(parse_ids, numbers)]


def parse_ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas or blanks between them, in brackets or without; or a file that holds such numbers."""
    numbers = _numbers(text)
    if numbers is None:
        try:
            numbers = _numbers(read_text(Path(text), encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            reason = str(error) if isinstance(error, InputError) else getattr(error, "strerror", None)
            raise InputError(
                f"--ids {text[:60]!r}: expected token ids such as 2,40,50, or a file that holds them, found neither: "
                f"{reason or 'not text in UTF-8'}"
            ) from None
    if numbers is None:
        raise InputError(
            f"--ids {text[:60]!r}: expected a file of token ids such as 2,40,50, found something else in it"
        )
    return numbers


def _numbers(text: str) -> tuple[int, ...] | None:
    """The numbers that a text consists of; None where it holds none, or anything else."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    whole = bool(words) and all(word.isascii() and word.isdigit() and len(word) < 10 for word in words)
    return tuple(map(int, words)) if whole else None


def prompts_of(file: Path) -> list[Given]:
    """One prompt a line of a text file, or under the key `prompt` or `ids` of each line of a .jsonl file, in its order."""
    try:
        lines = read_bytes(file, TEXT_LIMIT).decode("utf-8-sig").split("\n")
    except (OSError, InputError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--prompts {file}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--prompts {file}: expected text in UTF-8, found other bytes at {error.start}") from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise InputError(f"--prompts {file}: expected a prompt a line, found an empty file")
    read = _of_json if file.suffix.lower() == ".jsonl" else _of_text
    return [read(f"--prompts {file}, line {number}", line) for number, line in enumerate(lines, start=1)]


def _of_text(where: str, line: str) -> str:
    text = line.removesuffix("\r")
    if not text.strip():
        raise InputError(f"{where}: expected a prompt, found an empty line; one with line breaks needs a .jsonl file")
    return text


def _of_json(where: str, line: str) -> Given:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: expected a JSON object with the key 'prompt', found something else") from None
    text, ids = (row.get(key) if isinstance(row, dict) else None for key in ("prompt", "ids"))
    if text is not None and ids is not None:
        raise InputError(f"{where}: expected 'prompt' or 'ids', found both: leave one out")
    if isinstance(ids, list) and ids and all(type(index) is int for index in ids):
        return tuple(ids)
    if not isinstance(text, str) or not text:
        raise InputError(
            f"{where}: expected a JSON object with a text under the key 'prompt', or token ids under 'ids', found none"
        )
    return text
