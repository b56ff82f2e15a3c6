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


def test_what_is_predicted() -> None:
    rows = [(2 + index, 0, token) for index, token in enumerate(["The", "10", "10"])]
    said = where_read({"read_at": READ, "next_tokens": rows})
    assert said.endswith("The next token here is '10' at 2, 'The' at 1 of 3 prompts.")
