"""Prompts of a command that takes many: given one by one, or read from a file, each refused by its line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ostools.ground.errors import InputError

Prompts = Annotated[
    list[str] | None, typer.Option("--prompt", metavar="TEXT", help="The text to measure on; repeatable.")
]
PromptsFile = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="Many: a line each, or as `ostools prompts` writes them (.jsonl)."),
]


def given_prompts(prompts: Iterable[str] | None, file: Path | None) -> list[str]:
    """The prompts of one of the two options. Raises `InputError` for none or both, and for an empty one."""
    texts = list(prompts or ())
    if file is not None:
        if texts:
            raise InputError("--prompt and --prompts exclude each other: put the text into the file")
        return prompts_of(file)
    if not texts:
        raise InputError("expected --prompt TEXT or --prompts FILE, found neither")
    if "" in texts:
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return texts


def prompts_of(file: Path) -> list[str]:
    """One prompt a line of a text file, or under the key `prompt` of each line of a .jsonl file, in its order."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"--prompts {file}: cannot be read: {error.strerror or error}") from error
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


def _of_json(where: str, line: str) -> str:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: expected a JSON object with the key 'prompt', found something else") from None
    text = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"{where}: expected a JSON object with a text under the key 'prompt', found none")
    return text
