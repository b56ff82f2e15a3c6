"""The sentences on where a task's prompt was read, and on what is predicted there."""

from __future__ import annotations

from typing import Any

import pytest

from ostools.reporting.findings import where_read

LINE = "The final answer is: "
READ: dict[str, Any] = {
    "position": "answer",
    "tokens": [" "],
    "places": [[2, 45], [39, 82]],
    "chat": True,
    "line": LINE,
    "before_answer": LINE,
    "numeric": True,
    "reasons": False,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "the token from which the answer is predicted: '·' (position 45 at n = 2, position 82 at n = 39), in the chat "
            "template, with the answer line begun ('The final answer is:')",
        ),
        (
            {"position": "last-item", "tokens": ["1"], "places": [[5, 9], [5, 9]], "chat": False},
            "the last token of the sequence: '1' (position 9 at n = 5), in plain text",
        ),
    ],
)
def test_which_token_is_read(changes: dict[str, Any], words: str) -> None:
    assert where_read({"read_at": READ | changes}) == f"y is that of {words}."
    assert where_read({"length": 3}) == ""


@pytest.mark.parametrize(
    ("tokens", "changes", "words"),
    [
        (["The"] * 3, {}, "'The' at 3 of 3 prompts: no answer is read."),
        (["The", "10", "10"], {}, "'10' at 2, 'The' at 1 of 3 prompts."),
        # Of an answer that is no number, all but the words that lead to it may be one.
        (["The"], {"numeric": False, "position": "prompt-end"}, ": no answer is read."),
        (["apple"], {"numeric": False, "position": "prompt-end"}, "'apple' at 1 of 1 prompts."),
        (["1"], {"position": "last-item"}, ": no answer is read."),
    ],
)
def test_what_is_predicted(tokens: list[str], changes: dict[str, Any], words: str) -> None:
    rows = [(2 + index, 0, token) for index, token in enumerate(tokens)]
    assert where_read({"read_at": READ | changes, "next_tokens": rows}).endswith(words)
