"""Sentences on where a task's prompt was read: which token y is, and what the model predicts there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ostools.measure.position import ANSWER, LAST_ITEM, PROMPT_END
from ostools.reporting.style.theme import display_token

_FAVOURITES = 3
"""So many of the likeliest next tokens are named."""


def where_read(
    parameters: Mapping[str, Any], next_tokens: Iterable[tuple[int, int, str]] | None = None
) -> list[str]:
    """Both sentences, out of a provenance's parameters; none where it was not a task's prompt that
    was read.

    `next_tokens`: items, seed and likeliest next token of each prompt; None: as the parameters have
        them.
    """
    if "read_at" not in parameters:
        return []
    rows = list(parameters.get("next_tokens", ()) if next_tokens is None else next_tokens)
    unit = "n" if len({seed for _, seed, _ in rows}) <= 1 else "prompts"
    tokens = [token for _, _, token in rows]
    return [
        _which_token(parameters["read_at"]),
        *([_predicted(parameters["read_at"], tokens, unit)] if tokens else []),
    ]


def _quoted(token: str) -> str:
    return f"'{display_token(token)}'"


def _which_token(read_at: Mapping[str, Any]) -> str:
    where = {
        ANSWER: "the token from which the answer is predicted",
        PROMPT_END: "the last token of the prompt",
        LAST_ITEM: "the last token of the sequence",
    }[read_at["position"]]
    tokens = " or ".join(_quoted(token) for token in read_at["tokens"][:_FAVOURITES])
    (shortest, first), (longest, last) = read_at["places"]
    places = f"position {first} at n = {shortest}" + (
        f", {last} at n = {longest}" if longest != shortest else ""
    )
    return f"y is that of {where}: {tokens} ({places}), {_how_asked(read_at)}."


def _how_asked(read_at: Mapping[str, Any]) -> str:
    chat = "in the chat template" if read_at["chat"] else "in plain text"
    if read_at["position"] != ANSWER:
        return chat
    without = ", without the reasoning that the prompt asks for" if read_at["reasons"] else ""
    if not read_at["before_answer"].strip():
        return f"{chat}; the task has no words before its answer, so that none are begun{without}"
    return f"{chat}, with the answer line begun ({read_at['line'].strip()!r}){without}"


def _predicted(read_at: Mapping[str, Any], next_tokens: Sequence[str], unit: str) -> str:
    counts, total = Counter(next_tokens), len(next_tokens)
    answers = Counter(token for token in next_tokens if _may_answer(read_at, token))
    if len(counts) == 1:
        where = f" at every {unit.removesuffix('s')}" if total > 1 else ""
        words = f"The next token here is {_quoted(next_tokens[0])}{where}"
    elif read_at["numeric"] and answers:
        ((favourite, often),) = answers.most_common(1)
        words = f"The next token here is a number at {answers.total()} of {total} {unit}"
        words += f", most often {_quoted(favourite)}, at {often}"
    else:
        frequent_tokens = ", ".join(
            f"{_quoted(token)} at {count}" for token, count in counts.most_common(_FAVOURITES)
        )
        words = f"The next token here is {frequent_tokens} of {total} {unit}"
    if read_at["position"] == LAST_ITEM:
        return f"{words}: the rest of the prompt follows, and no answer is read."
    return f"{words}." if answers else f"{words}: no answer is read."


def _may_answer(read_at: Mapping[str, Any], token: str) -> bool:
    """Whether a next token may begin an answer: a number where the answer is one, else any word but
    one that leads to it.
    """
    word = token.strip()
    if read_at["position"] == LAST_ITEM or not word:
        return False
    if read_at["numeric"]:
        return word.isdecimal()
    return read_at["position"] == ANSWER or not read_at["before_answer"].lstrip().startswith(word)
