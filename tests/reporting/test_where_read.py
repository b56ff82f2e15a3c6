"""The sentences on where a task's prompt was read, and on what is predicted there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ostools.reporting.findings.position import where_read

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


def said(tokens: list[str], seeds: int = 1, **changes: Any) -> str:
    rows = [(2 + index, index % seeds, token) for index, token in enumerate(tokens)]
    return where_read({"read_at": READ | changes, "next_tokens": rows})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "the token from which the answer is predicted: '·' (position 45 at n = 2, 82 at n = 39), in the chat template, "
            "with the answer line begun ('The final answer is:')",
        ),
        (
            {"chat": False, "reasons": True},
            "in plain text, .*'The final answer is:'., without the reasoning that the prompt",
        ),
        (
            {"line": "", "before_answer": ""},
            "in the chat template; no words begin the answer",
        ),
        (
            {"position": "prompt-end", "line": ""},
            "the last token of the prompt: '·' .*, in the chat template$",
        ),
        (
            {"position": "last-item", "tokens": ["1"], "places": [[5, 9], [5, 9]], "chat": False},
            "the last token of the sequence: '1' .position 9 at n = 5., in plain text$",
        ),
    ],
)
def test_which_token_is_read(changes: dict[str, Any], words: str) -> None:
    sentence = where_read({"read_at": READ | changes})
    assert sentence.startswith("y is that of ")
    if changes:
        assert re.search(words, sentence.removesuffix("."))
    else:
        assert sentence == f"y is that of {words}."


@pytest.mark.parametrize(
    ("tokens", "changes", "words"),
    [
        (["The"] * 3, {}, "The next token here is 'The' at every n: no answer is read."),
        (["1"] * 3, {}, "The next token here is '1' at every n."),
        (["1"], {}, "The next token here is '1'."),
        (
            ["The"] * 3 + ["10", "10", "1"],
            {},
            "The next token here is 'The' at 3, '10' at 2, '1' at 1 of 6 n.",
        ),
        (
            ["\n"] * 2,
            {"numeric": False, "position": "prompt-end"},
            "is '\\n' at every n: no answer is read.",
        ),
        (
            ["a", "a", "b"],
            {},
            "The next token here is 'a' at 2, 'b' at 1 of 3 n: no answer is read.",
        ),
        # Of an answer that is no number, all but the words that lead to it may be one.
        (
            ["The"] * 2,
            {"numeric": False, "position": "prompt-end"},
            "is 'The' at every n: no answer is read.",
        ),
        (
            ["apple", "The"],
            {"numeric": False, "position": "prompt-end"},
            "is 'apple' at 1, 'The' at 1 of 2 n.",
        ),
        (
            ["1"] * 2,
            {"position": "last-item"},
            "is '1' at every n: the rest of the prompt follows, and no answer is read.",
        ),
    ],
)
def test_what_is_predicted(tokens: list[str], changes: dict[str, Any], words: str) -> None:
    sentence = said(tokens, **changes)
    assert sentence.endswith(words)


def test_prompts_of_several_seeds_are_called_prompts_and_a_text_says_nothing() -> None:
    assert said(["1", "The"], seeds=2).endswith("is '1' at 1, 'The' at 1 of 2 prompts.")
    assert where_read({"length": 3}) == ""
