"""JSON of a model's files, in which every key stands once; and the words of another library in one
line.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, short_repr


def one_line(error: object) -> str:
    """Another library's error in one line that fits behind ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the refusal that says which file is broken and how."""
    try:
        content = json.loads(path.read_text("utf-8"), object_pairs_hook=_each_once)
    except FileNotFoundError:
        raise InputError(
            f"expected {path.name} in {path.parent}, found none: is this a Hugging Face model?"
        ) from None
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # brackets a hundred thousand deep
        raise InputError(
            f"expected JSON in {path}, found something else: {one_line(error)}"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object in {path}, found {type(content).__name__}")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once: of a key that stands twice, readers take the one or the
    other.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {short_repr(name)} twice in one object")
    return content
