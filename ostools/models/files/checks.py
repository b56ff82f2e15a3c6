"""Files of a model's directory: JSON that is read, and what must not stand there.

Each check refuses with one line: what was expected, what was found, what to do. None repairs anything.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, short_repr
from ostools.ground.files import JSON_LIMIT, read_text
from ostools.models.families import KNOWN_ARCHITECTURES

TEMPLATES = "additional_chat_templates"
"""The folder where transformers looks for chat templates too; the one that is called default is then the model's."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_PARTS_OF_ONE = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece*",
    "chat_template*",
    TEMPLATES,
)


def one_line(error: object) -> str:
    """Another library's error in one line that fits behind ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the refusal that says which file is broken and how."""
    try:
        content = json.loads(read_text(path, JSON_LIMIT), object_pairs_hook=_each_once)
    except FileNotFoundError:
        raise InputError(f"expected {path.name} in {path.parent}, found none: is this a Hugging Face model?") from None
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # brackets a hundred thousand deep
        raise InputError(f"expected JSON in {path}, found something else: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object in {path}, found {type(content).__name__}")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once: of a key that stands twice, readers take the one or the other."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {short_repr(name)} twice in one object")
    return content


def check_files(directory: Path) -> None:
    """No file asks for code of the checkpoint's own, and whatever the libraries may open is a file or a directory, links
    followed: a pipe would wait for ever."""
    for folder in (directory, directory / TEMPLATES):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(f"expected only files in {folder}, found {path.name}, a pipe or a device: remove it")
    for file in ("config.json", "tokenizer_config.json"):
        if (directory / file).exists() and "auto_map" in read_json(directory / file):
            raise InputError(
                f"expected a model that transformers itself implements, found remote code (auto_map in "
                f"{directory / file}): ostools runs no code from a checkpoint; convert it to one of {KNOWN_ARCHITECTURES}"
            )


def has_tokenizer(directory: Path) -> bool:
    """Whether the directory brings a tokenizer of its own: without one transformers makes up a five-token one.

    Raises `InputError` for part of a tokenizer.
    """
    if any((directory / file).exists() for file in _TOKENIZER_FILES):
        return True
    parts = sorted({path.name for pattern in _PARTS_OF_ONE for path in directory.glob(pattern)})
    if parts:
        raise InputError(
            f"expected a tokenizer ({', '.join(_TOKENIZER_FILES)}) in {directory}, found only {', '.join(parts[:3])} of one: "
            "copy the model's own there, or remove that too, and the model takes token ids alone"
        )
    return False
