"""The texts of a sweep, read from a list or a file. Cost: one read; all texts are held
in memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from ostools.ground import InputError, in_words, short_repr
from ostools.measure.swept import Text

_PARTED = re.compile(r"\n(?:[ \t]*\n)+")


def read_texts(texts: object) -> tuple[Text, ...]:
    """Read the texts of a list, of a .jsonl file (an object a line), or of a file of plain text,
    whose texts are parted by empty lines. An object has a `text` and may have an `id`; without one
    a text's id is its place, from 0.

    Raises `InputError` for what cannot be read, for what is no text, and for an id that is there
    twice.
    """
    where, items = "texts", texts
    if isinstance(texts, str | Path):
        where, items = str(texts), _items_of(Path(texts))
    if not isinstance(items, list | tuple) or not items:
        raise InputError(f"{where}: expected texts or a file of texts, found {short_repr(items)}")
    read = tuple(_text_of(item, number, where) for number, item in enumerate(items))
    name, count = Counter(text.id for text in read).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where}: expected an id of its own for each text, found {name!r} twice")
    return read


def _text_of(item: object, number: int, where: str) -> Text:
    """A text, or an object with one, as the text of that number. Raises `InputError` for
    another.
    """
    fields = item if isinstance(item, dict) else {"text": item}
    text, name = fields.get("text"), fields.get("id", number)
    is_named = isinstance(name, str | int) and not isinstance(name, bool)
    if not isinstance(text, str) or not text.strip() or not is_named:
        raise InputError(f"{where}: expected texts, found {short_repr(item)} at {number}")
    return Text(str(name), number, text)


def _items_of(path: Path) -> list[object]:
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".jsonl":
            return [json.loads(line) for line in content.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected plain text, or an object with a text in each line of a .jsonl file, "
            f"found {in_words(error)[:200]}"
        ) from error
    return [part for part in _PARTED.split(content) if part.strip()]
