"""Calls of a tokenizer: text to ids and back, with one refusal for whatever it raises; its markers;
and what ids are shown as.

Nothing else in ostools calls a tokenizer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ostools.ground import InputError, PreTrainedTokenizerBase, refused, short_repr

if TYPE_CHECKING:
    from transformers import BatchEncoding

Span = tuple[int, int]
HARMLESS = "a"
"""Any text that is certainly no special token."""


def _encoding(tokenizer: Any, text: str | list[str], **options: bool) -> BatchEncoding:
    """What the tokenizer makes of a text, or of each; an `InputError` in one line for whatever it
    raises.
    """
    try:
        return tokenizer(text, verbose=False, **options)
    except Exception as error:
        raise _unreadable(text if isinstance(text, str) else text[:1], error) from None


def _unreadable(what: object, error: Exception) -> InputError:
    return refused(
        f"a tokenizer that can read {short_repr(what)}, found one that ends in an error",
        error,
        "; copy the model's own tokenizer there, or give token ids (ost.Prompt.from_ids, --ids)",
    )


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str, **options: bool) -> list[int]:
    """The ids that the tokenizer makes of a text; `options` are its own (`add_special_tokens`,
    `split_special_tokens`).
    """
    return list(_encoding(tokenizer, text, return_attention_mask=False, **options).input_ids)


def token_ids_of_each(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: bool
) -> list[list[int]]:
    """The ids of each text, by one call."""
    encoded = _encoding(tokenizer, list(texts), return_attention_mask=False, **options)
    return [list(ids) for ids in encoded.input_ids]


def ids_and_places(
    tokenizer: PreTrainedTokenizerBase, text: str, **options: bool
) -> tuple[list[int], list[Span]]:
    """The ids of a text, and for each the first and the one after the last of its characters."""
    encoding = _encoding(tokenizer, text, return_offsets_mapping=True, **options)
    places = [(int(start), int(end)) for start, end in encoding.offset_mapping]
    return list(encoding.input_ids), places


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of ids, with the blanks that the tokenizer itself writes."""
    try:
        return cast(str, tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
    except Exception as error:
        raise _unreadable(list(ids), error) from None


def writes_lines(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the vocabulary has the end of a line."""
    return "\n" in decoded(tokenizer, token_ids(tokenizer, "a\na", add_special_tokens=False))


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What its ids come from: vocabulary and rules, special tokens, and the chat template."""
    if tokenizer.is_fast:
        rules = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
        # Of the last call, not of the tokenizer.
        rules = json.dumps(rules | {"padding": None, "truncation": None}, sort_keys=True)
    else:
        rules = repr(sorted(tokenizer.get_vocab().items()))
    return [rules, repr(tokenizer.special_tokens_map), repr(tokenizer.chat_template)]


# ---- markers


def control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that is no text: special tokens, and added tokens that the chat template writes
    (turn markers).

    Other added tokens (runs of spaces, tags) are ordinary text that the tokenizer treats as one
    piece.
    """
    template = str(tokenizer.chat_template or "")  # or a dictionary of several
    return _control_ids(tokenizer, template, tuple(tokenizer.all_special_ids), len(tokenizer))


@lru_cache(maxsize=4)
def _control_ids(
    tokenizer: PreTrainedTokenizerBase, template: str, special: tuple[int, ...], size: int
) -> frozenset[int]:
    """The arguments are what the ids change with; of Gemma's 6,000 tokens it takes a while."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(special) | {
        index
        for index, token in added
        if token.special or (token.content.strip() and token.content in template)
    }


def markers_in(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Number of the tokenizer's markers that a text contains, in letters."""
    names = {str(tokenizer.convert_ids_to_tokens(index)) for index in control_ids(tokenizer)}
    # Of Gemma's 6,000 names only those in the text: to compile a pattern of all takes a second.
    marks = sorted((name for name in names if len(name) > 2 and name in text), key=len)
    return len(re.findall("|".join(map(re.escape, reversed(marks))), text)) if marks else 0


@lru_cache(maxsize=1024)
def note_once(line: str) -> None:
    """Write a note on stderr, once a process."""
    sys.stderr.write(f"note: {line}\n")


# ---- special tokens around a text


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special ids that the tokenizer itself puts before and after any text."""
    framed = token_ids(tokenizer, HARMLESS, add_special_tokens=True, split_special_tokens=True)
    bare = token_ids(tokenizer, HARMLESS, add_special_tokens=False, split_special_tokens=True)
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return framed[:start], framed[start + len(bare) :]
    raise InputError(
        "expected a tokenizer that puts special tokens around a text, found one that changes the "
        "text's"
    )


def lead(tokenizer: PreTrainedTokenizerBase, bos: bool | None = None) -> list[int]:
    """The special ids before a text: the tokenizer's own; `bos` says whether its BOS is one of them
    (None: as it does).
    """
    before, _ = frame(tokenizer)
    bos_id = cast(int | None, tokenizer.bos_token_id)
    if bos is None or (bos_id in before) is bos:
        return before
    if not bos:
        return [index for index in before if index != bos_id]
    if bos_id is None:
        raise InputError(
            "bos: expected a tokenizer with a BOS token, found one without: leave bos out"
        )
    return [bos_id, *before]


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokenizer's ids of a text, without the special tokens that it puts around it (`frame`);
    the text holds none.
    """
    ids = token_ids(tokenizer, text, add_special_tokens=True, split_special_tokens=True)
    before, after = frame(tokenizer)
    end = len(ids) - len(after)
    body = ids[len(before) : end]
    if ids[: len(before)] != before or ids[end:] != after:
        raise InputError(
            "expected the tokenizer to add the same special tokens to every text, found "
            f"{ids[:3]} ... at the start of {text[:40]!r}: use `ost.Prompt.from_ids` and write "
            "them yourself"
        )
    if not body:
        raise InputError(
            f"expected text, found {text[:40]!r}, of which the tokenizer keeps nothing: give other "
            "text"
        )
    refuse_unknown(tokenizer, body, text)
    for index in control_ids(tokenizer).intersection(body):
        raise InputError(
            f"expected plain text, found {tokenizer.convert_ids_to_tokens(index)!r}, which this "
            "tokenizer can only read as a control token: change the text, or use "
            "`ost.Prompt.from_ids` where the token is meant"
        )
    return body


def refuse_unknown(tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str) -> None:
    """Refuse a text of which a part became the unknown token (GPT-2's is its end of text, which is
    no such thing).
    """
    unknown = tokenizer.unk_token_id
    if unknown in ids and unknown not in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        raise InputError(
            f"expected text that the tokenizer knows, found {ids.count(unknown)} unknown tokens in "
            f"{text[:40]!r}: write it otherwise, or use a model whose tokenizer falls back to bytes"
        )


def required(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    """The tokenizer; an `InputError` for none."""
    if tokenizer is None:
        raise InputError(
            "expected a tokenizer, which text needs, found a model without one: give token ids "
            "(ost.Prompt.from_ids, --ids), or copy the tokenizer's files into the model's "
            "directory and load it again"
        )
    return tokenizer


# ---- what an id is shown as


def token_text(tokenizer: PreTrainedTokenizerBase | None, index: int) -> str:
    """Text to show for one id, never empty: its text inside a longer text, or its bytes as
    `<0xE2>`.
    """
    return token_texts(tokenizer, [index])[index]


def token_texts(tokenizer: PreTrainedTokenizerBase | None, ids: Iterable[int]) -> dict[int, str]:
    """Texts to show for several ids, by id."""
    if tokenizer is None:
        return {index: f"<{index}>" for index in ids}
    # Behind another token, because decoders strip the space at the start of a text.
    anchor = token_ids(tokenizer, HARMLESS, add_special_tokens=False)
    before = decoded(tokenizer, anchor)
    text_by_id: dict[int, str] = {}
    for index in set(ids):
        token = cast(str | None, tokenizer.convert_ids_to_tokens(index))
        joined = decoded(tokenizer, [*anchor, index])
        text = joined.removeprefix(before) if joined.startswith(before) else ""
        is_text = text and "\ufffd" not in text and token is not None
        text_by_id[index] = text if is_text else _bytes_shown(token or "") or f"<{index}>"
    return text_by_id


def _bytes_shown(token: str) -> str:
    """A token that is no text by itself: its bytes as `<0xE2>`."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token) or any(mark not in _BYTE_OF for mark in token):
        return token
    raw = bytes(_BYTE_OF[mark] for mark in token)
    return raw.decode("utf-8", errors="surrogateescape").translate(_SHOW_BYTE)


# Byte-level BPE writes each byte as one printable character (the table that GPT-2 introduced).
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_UNPRINTABLE = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(_UNPRINTABLE)
}
_SHOW_BYTE = {0xDC00 + byte: f"<0x{byte:02X}>" for byte in range(128, 256)}
