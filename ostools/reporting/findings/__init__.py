"""Functions from a result to at most `MOST` sentences: a number, its unit, its interval, what it is
compared with.

A measured number is called measured, a bound certified, the paper's form the paper's, a prediction
predicted. What a result shows beyond these sentences stands in its tables; what it means stands in
the docs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ostools.measure.position import ANSWER, LAST_ITEM, PROMPT_END
from ostools.reporting.style.theme import display_token

MOST = 5
"""So many sentences at most; the others' numbers stand in the table."""
SHAPES = {
    "U-shape": ("U", "The middle of {} counts for less than both its ends (U)."),
    "rises at the end only": (
        "recency",
        "The end of {} counts for more than its middle, and its start is not shown to (recency).",
    ),
    "rises at the start only": (
        "primacy",
        "The start of {} counts for more than its middle, and its end is not shown to (primacy).",
    ),
    "inverted U": (
        "inverted U",
        "The middle of {} counts for more than both its ends (inverted U).",
    ),
    "no shape shown": (
        "none",
        "Neither end of {} is shown to count for more than its middle, nor both for less.",
    ),
}
"""By the shape of a profile (`theory.profiles`) its word, and its sentence about a text."""


def present(*sentences: str) -> list[str]:
    """The sentences that are not empty."""
    return [sentence for sentence in sentences if sentence]


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
    """Which token y is, and the likeliest next tokens there, out of a provenance's parameters;
    empty where it was not a task's prompt that was read.

    `next_tokens`: items, seed and likeliest next token of each prompt; None: as the parameters have
        them.
    """
    if "read_at" not in parameters:
        return ""
    rows = parameters.get("next_tokens", ()) if next_tokens is None else next_tokens
    counts = Counter(token for *_, token in rows)
    frequent = ", ".join(
        f"'{display_token(token)}' at {count}" for token, count in counts.most_common(_FAVOURITES)
    )
    words = f"The next token here is {frequent} of {counts.total()} prompts." if counts else ""
    return f"{which_token(parameters['read_at'])} {words}".strip()


def which_token(read_at: Mapping[str, Any]) -> str:
    """Which token y is, where it stands, and how the prompt was asked."""
    tokens = " or ".join(f"'{display_token(token)}'" for token in read_at["tokens"][:_FAVOURITES])
    places = dict(read_at["places"]).items()
    where = ", ".join(f"position {place} at n = {length}" for length, place in places)
    how = "in the chat template" if read_at["chat"] else "in plain text"
    if read_at["position"] == ANSWER:
        line = read_at["line"].strip()
        how += f", with the answer line begun ({line!r})" if line else "; no words begin the answer"
        how += ", without the reasoning that the prompt asks for" * bool(read_at["reasons"])
    return f"y is that of {_WHERE[read_at['position']]}: {tokens} ({where}), {how}."
