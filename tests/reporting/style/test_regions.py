"""The regions of a prompt: the rule on exact texts, and a text without a sequence."""

from __future__ import annotations

from ostools.reporting.style.prompt import regions


def _named(text: str) -> list[tuple[str, str]]:
    return [(one.name, text[one.first : one.last + 1]) for one in regions(list(text))]


def test_the_sequence_the_question_and_the_instruction_are_told_apart() -> None:
    assert _named("Look: 1110. What is the last digit? Please answer") == [
        ("opening", "Look: "),
        ("sequence", "1110"),
        ("question", ". What is the last digit?"),
        ("instruction", " Please answer"),
    ]
    assert _named("How many ones?111,111") == [("question", "How many ones?"), ("sequence", "111,111")]


def test_a_text_without_a_sequence_has_no_regions() -> None:
    assert regions(list("The capital of France, in 123 letters, is")) == []
    assert regions([]) == []
