"""Sentences on where a task's prompt was read: which token y is, and what is predicted there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ostools.measure.position import ANSWER, LAST_ITEM, PROMPT_END
from ostools.reporting.style.theme import display_token

_FAVOURITES = 3
"""So many of the likeliest next tokens are named."""
_UNREAD = ": no answer is read"
_WHERE = {
    ANSWER: "the token from which the answer is predicted",
    PROMPT_END: "the last token of the prompt",
    LAST_ITEM: "the last token of the sequence",
}


def where_read(
    parameters: Mapping[str, Any], next_tokens: Iterable[tuple[int, int, str]] | None = None
) -> str:
    """Which token y is, and the likeliest next tokens there, out of a provenance's parameters;
    empty where it was not a task's prompt that was read.

    `next_tokens`: items, seed and likeliest next token of each prompt; None: as the parameters have
        them.
    """
    if "read_at" not in parameters:
        return ""
    read_at = parameters["read_at"]
    rows = parameters.get("next_tokens", ()) if next_tokens is None else next_tokens
    counts = Counter(token for *_, token in rows)
    if not counts:
        return which_token(read_at)
    frequent = ", ".join(
        f"'{display_token(token)}' at {count}" for token, count in counts.most_common(_FAVOURITES)
    )
    unread = "" if any(_may_answer(read_at, token.strip()) for token in counts) else _UNREAD
    return (
        f"{which_token(read_at)} The next token here is {frequent} of {counts.total()} prompts"
        f"{unread}."
    )


def which_token(read_at: Mapping[str, Any]) -> str:
    """Which token y is, where it stands, and how the prompt was asked."""
    tokens = " or ".join(f"'{display_token(token)}'" for token in read_at["tokens"][:_FAVOURITES])
    places = dict(read_at["places"]).items()
    where = ", ".join(f"position {place} at n = {length}" for length, place in places)
    how = "in the chat template" if read_at["chat"] else "in plain text"
    if read_at["position"] == ANSWER:
        line_words = f", with the answer line begun ({read_at['line'].strip()!r})"
        how += line_words if read_at["before_answer"].strip() else "; no words begin the answer"
        how += ", without the reasoning that the prompt asks for" * bool(read_at["reasons"])
    return f"y is that of {_WHERE[read_at['position']]}: {tokens} ({where}), {how}."


def _may_answer(read_at: Mapping[str, Any], word: str) -> bool:
    """Whether a next token may begin an answer: a number where the answer is one, else any word but
    one that leads to it; none where the rest of the prompt follows.
    """
    if read_at["position"] == LAST_ITEM:
        return False
    if read_at["numeric"] or not word:
        return word.isdecimal()
    return read_at["position"] == ANSWER or not read_at["before_answer"].lstrip().startswith(word)
