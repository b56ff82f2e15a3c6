"""Prompts of a command: texts or token ids, given one by one or read from a file, each refused by
its line; and whether they are turns in a chat template, or have a BOS before them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ostools.ground.errors import InputError
from ostools.ground.files import TEXT_LIMIT, read_bytes

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.models import Prompt

Value: TypeAlias = str | tuple[int, ...]
"""A prompt as a user gives it: a text, or its token ids."""
WRAPPED = ("chat", "system", "thinking")


@dataclass(frozen=True)
class Prompts:
    """The prompts of a command and how they are put to the model.

    values: texts, or token ids.
    wrapped: bos, chat, system and thinking that were chosen, as `models.encode` takes them; None where none was.
    """

    values: tuple[Value, ...]
    wrapped: Mapping[str, Any] | None = None

    def of(self, model: TransformerBridge) -> str | Prompt | list[str | Prompt]:
        """A prompt as a measurement takes it where there is one, else a list of them."""
        prompts = [self._encoded(model, value) for value in self.values]
        return prompts[0] if len(prompts) == 1 else prompts

    def _encoded(self, model: TransformerBridge, value: Value) -> str | Prompt:
        """A prompt in tokens, or a text as it is where nothing was chosen."""
        from ostools.models import Prompt, encode

        if not isinstance(value, str):
            return Prompt.from_ids(model, value)
        return value if self.wrapped is None else encode(model, value, **self.wrapped)


def read_prompts(values: Mapping[str, Any], *, needed: bool) -> Prompts | None:
    """The prompts of --prompt, --ids and --prompts; None for none, where none is needed.

    Raises `InputError` for none or several of the options, for an empty text, and for options of
    the chat template without a chat.
    """
    prompts = _values(values, needed)
    wrapped, bos = {name: values.get(name) for name in WRAPPED}, values.get("bos")
    chat = bool(wrapped["chat"])
    if not chat and (wrapped["system"] is not None or wrapped["thinking"]):
        option = "--system" if wrapped["system"] is not None else "--thinking"
        raise InputError(f"{option}: expected --chat beside it, found none: only a chat template uses it")
    if prompts is None:
        if bos is not None:
            raise InputError("--bos and --no-bos are of a text: expected --prompt beside them, found none")
        if chat:
            raise InputError(
                "--chat: a task is asked in the chat template where there is one; expected --prompt beside --chat"
            )
        return None
    if chat and not all(isinstance(prompt, str) for prompt in prompts):
        raise InputError("--chat: expected --prompt beside it, found --ids: a chat template is written around a text")
    if bos is not None:
        _require_plain(prompts, chat)
        return Prompts(tuple(prompts), {"bos": bos})
    wrapped |= {"chat": True, "thinking": bool(wrapped["thinking"])}
    return Prompts(tuple(prompts), wrapped if chat else None)


def _require_plain(prompts: list[Value], chat: bool) -> None:
    """Refuse --bos and --no-bos for what is no plain text."""
    if chat or not all(isinstance(prompt, str) for prompt in prompts):
        beside = "--chat, whose template writes its special tokens" if chat else "--ids, which stand as they are"
        raise InputError(f"--bos and --no-bos are of a plain text: expected --prompt alone, found {beside}")


def _values(values: Mapping[str, Any], needed: bool) -> list[Value] | None:
    texts, ids = texts_of(values.get("prompt")), texts_of(values.get("ids"))
    file = values.get("prompts")
    options = {"--prompt": texts, "--ids": ids, "--prompts": file}
    used = [option for option, value in options.items() if value]
    if len(used) > 1:
        many = "put all prompts into one file" if "prompts" in values else "leave one out"
        raise InputError(f"{' and '.join(used)} exclude each other: {many}")
    if not used:
        if needed:
            ways = ["--prompt TEXT", "--ids 2,40,50"] + ["--prompts FILE"] * ("prompts" in values)
            raise InputError(f"expected {' or '.join(ways)}, found none of them")
        return None
    if "" in texts:
        raise InputError("--prompt: expected text, found nothing; give at least one character")
    return prompts_of(Path(file)) if file else [*texts, *map(parse_ids, ids)]


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
        raise InputError(f"{where}: expected text in UTF-8, found {found} at {error.start}") from None


def parse_ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas or blanks between them, in brackets or without."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise InputError(
            f"--ids {text[:60]!r}: expected token ids such as 2,40,50; many stand in a .jsonl file of --prompts"
        )
    return tuple(map(int, words))


def prompts_of(file: Path) -> list[Value]:
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


def _of_json(where: str, line: str) -> Value:
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
    require_utf8(where, text)
    return text
