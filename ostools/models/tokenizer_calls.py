"""Calls of a tokenizer: text to ids and back, with one refusal for whatever it raises; and its markers as ids and in a text.

The library is written in Rust, whose panics reach Python as a `BaseException` that no `except Exception` catches: a pattern
that backtracks too long ends so. Nothing else in ostools calls a tokenizer; a test holds to that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ostools.ground.errors import InputError, in_words, short_repr

Span = tuple[int, int]
_PLAIN = {"clean_up_tokenization_spaces": False}


@contextmanager
def tokenizing(what: object) -> Iterator[None]:
    """An `InputError` in one line for whatever is raised by a tokenizer that reads `what`; interrupts and exits pass."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, InputError) or not is_failure(error):
            raise
        raise InputError(
            f"expected a tokenizer that can read {short_repr(what)}, found one that ends in an error "
            f"({_short(in_words(error))}): "
            "copy the model's own tokenizer there, or give token ids (ost.Prompt.from_ids, --ids)"
        ) from None


def is_failure(error: BaseException) -> bool:
    """Whether a library failed: an Exception, or a panic of Rust's. An interrupt or an exit is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def token_ids(tokenizer: Any, text: str, **options: bool) -> list[int]:
    """The ids that the tokenizer makes of a text; `options` are its own (`add_special_tokens`, `split_special_tokens`)."""
    with tokenizing(text):
        return list(tokenizer(text, return_attention_mask=False, verbose=False, **options).input_ids)


def token_ids_of_each(tokenizer: Any, texts: Sequence[str], **options: bool) -> list[list[int]]:
    """The ids of each text, by one call."""
    with tokenizing(texts[0] if texts else ""):
        rows = tokenizer(list(texts), return_attention_mask=False, verbose=False, **options).input_ids
    return [list(ids) for ids in rows]


def ids_and_places(tokenizer: Any, text: str, **options: bool) -> tuple[list[int], list[Span]]:
    """The ids of a text, and for each the first and the one after the last of its characters."""
    with tokenizing(text):
        encoding = tokenizer(text, return_offsets_mapping=True, verbose=False, **options)
    return list(encoding.input_ids), [(int(start), int(end)) for start, end in encoding.offset_mapping]


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, with the blanks that the tokenizer itself writes."""
    with tokenizing(list(ids)):
        return tokenizer.decode(list(ids), **_PLAIN)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def control_ids(tokenizer: Any) -> frozenset[int]:
    """Every id that is no text: special tokens, and added tokens that the chat template writes (turn markers).

    Other added tokens (runs of spaces, tags) are ordinary text that the tokenizer treats as one piece.
    """
    return _markers(*_state(tokenizer))[0]


def markers_in(tokenizer: Any, text: str) -> int:
    """Number of the tokenizer's markers that a text contains, in letters."""
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
