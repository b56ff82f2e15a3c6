"""Sentences on where a task's prompt was read: which token y is, and what is predicted there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ostools.measure.position import ANSWER, LAST_ITEM, PROMPT_END
from ostools.reporting.style.theme import display_token

_FAVOURITES = 3
"""So many of the likeliest next tokens are named."""
_WHERE = {
    ANSWER: "the token from which the answer is predicted",
    PROMPT_END: "the last token of the prompt",
    LAST_ITEM: "the last token of the sequence",
}


def where_read(
    parameters: Mapping[str, Any], next_tokens: Iterable[tuple[int, int, str]] | None = None
) -> str:
    """Both sentences, out of a provenance's parameters; empty where it was not a task's prompt that
    was read.

    `next_tokens`: items, seed and likeliest next token of each prompt; None: as the parameters have
        them.
    """
    if "read_at" not in parameters:
        return ""
    rows = list(parameters.get("next_tokens", ()) if next_tokens is None else next_tokens)
    unit = "n" if len({seed for _, seed, _ in rows}) <= 1 else "prompts"
    predicted = _predicted(parameters["read_at"], [token for *_, token in rows], unit)
    return f"{which_token(parameters['read_at'])} {predicted}".strip()


def which_token(read_at: Mapping[str, Any]) -> str:
    """Which token y is, where it stands, and how the prompt was asked."""
    tokens = " or ".join(f"'{display_token(token)}'" for token in read_at["tokens"][:_FAVOURITES])
    (shortest, first), (longest, last) = read_at["places"]
    also = f", {last} at n = {longest}" if longest != shortest else ""
    how = "in the chat template" if read_at["chat"] else "in plain text"
    if read_at["position"] == ANSWER:
        line_words = f", with the answer line begun ({read_at['line'].strip()!r})"
        how += line_words if read_at["before_answer"].strip() else "; no words begin the answer"
        how += ", without the reasoning that the prompt asks for" * bool(read_at["reasons"])
    where = _WHERE[read_at["position"]]
    return f"y is that of {where}: {tokens} (position {first} at n = {shortest}{also}), {how}."


def _predicted(read_at: Mapping[str, Any], next_tokens: Sequence[str], unit: str) -> str:
    """The likeliest next tokens with their counts, and whether none of them can begin an answer."""
    if not next_tokens:
        return ""
    frequent = Counter(next_tokens).most_common(_FAVOURITES)
    counts = ", ".join(f"'{display_token(token)}' at {count}" for token, count in frequent)
    words = f"The next token here is {counts} of {len(next_tokens)} {unit}"
    if len(frequent) == 1:
        every = f" at every {unit.removesuffix('s')}" if len(next_tokens) > 1 else ""
        words = f"The next token here is '{display_token(next_tokens[0])}'{every}"
    if read_at["position"] == LAST_ITEM:
        return f"{words}: the rest of the prompt follows, and no answer is read."
    answers = any(_may_answer(read_at, token.strip()) for token in set(next_tokens))
    return f"{words}." if answers else f"{words}: no answer is read."


def _may_answer(read_at: Mapping[str, Any], word: str) -> bool:
    """Whether a next token may begin an answer: a number where the answer is one, else any word but
    one that leads to it.
    """
    if read_at["numeric"] or not word:
        return word.isdecimal()
    return read_at["position"] == ANSWER or not read_at["before_answer"].lstrip().startswith(word)
