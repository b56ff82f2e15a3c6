"""The markers of a tokenizer (special tokens, turns of a chat template), as ids and as they stand in a text."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any


def control_ids(tokenizer: Any) -> frozenset[int]:
    """Every id that is no text: special tokens, and added tokens that the chat template writes (turn markers).

    Other added tokens (runs of spaces, tags) are ordinary text that the tokenizer treats as one piece.
    """
    return _markers(*_state(tokenizer))[0]


def markers_in(tokenizer: Any, text: str) -> int:
    """How many markers of the tokenizer a text contains, in letters."""
    if tokenizer is None:
        return 0
    pattern = _markers(*_state(tokenizer))[1]
    return len(pattern.findall(text)) if pattern else 0


def _state(tokenizer: Any) -> tuple[Any, str, tuple[int, ...], int]:
    """The tokenizer, and what its markers change with."""
    template = str(tokenizer.chat_template or "")  # or a dictionary of several
    return tokenizer, template, tuple(tokenizer.all_special_ids), len(tokenizer)


@lru_cache(maxsize=4)
def _markers(
    tokenizer: Any, template: str, special: tuple[int, ...], size: int
) -> tuple[frozenset[int], re.Pattern[str] | None]:
    """The ids of the markers, and what finds one in a text: made once, as Gemma has thousands of added tokens."""
    added = tokenizer.added_tokens_decoder.items()
    marks = {index for index, token in added if token.special or (token.content.strip() and token.content in template)}
    ids = frozenset(marks | set(special))
    names = {str(tokenizer.convert_ids_to_tokens(index)) for index in ids}
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if len(name) > 2)
    return ids, re.compile(pattern) if pattern else None


@lru_cache(maxsize=1024)
def notice_markers(text: str, count: int) -> None:
    """Say once for each text, on stderr, that its markers are read as plain text."""
    markers = "1 marker" if count == 1 else f"{count} markers"
    sys.stderr.write(
        f"note: the text {text[:40]!r} holds {markers} of the chat template, read as plain text; use "
        "ost.Prompt.from_chat_text(model, text) where they are meant as tokens\n"
    )
