"""Markers of a chat template that stand in a text: counted and told of as plain text, or read as tokens where that is asked."""

from __future__ import annotations

from typing import Any

import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models.tokenizer_calls import notice_markers
from tests.checkpoints import tiny_model

RENDERED = "<bos><start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n"


def test_a_text_with_markers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    notice_markers.cache_clear()
    model = tiny_model("gemma")
    prompt = ost.encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    assert prompt.markers == 2
    assert prompt.provenance == {"markers_as_text": 2}
    ost.encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds 2 markers of the chat template, read as plain text; use ost.Prompt.from_chat_text" in line
    assert ost.sensitivity(model, prompt).provenance.parameters["markers_as_text"] == 2


def test_the_text_of_a_template_is_the_prompt_that_the_template_gives() -> None:
    model: Any = tiny_model("gemma")
    expected, found = ost.encode(model, "Hi there", chat=True), ost.Prompt.from_chat_text(model, RENDERED)
    assert expected.text == RENDERED
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.ids.tolist() == model.tokenizer(RENDERED, add_special_tokens=False).input_ids
    assert found.origins == expected.origins
    assert found.provenance == expected.provenance | {"markers_as_tokens": True}
    assert len(ost.encode(model, RENDERED.removeprefix("<bos>")).ids) > 2 * len(found.ids)  # the markers in letters


def test_a_conversation_of_several_turns_has_no_known_origins() -> None:
    model: Any = tiny_model("gemma")
    turns = RENDERED + "Hello<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    found = ost.Prompt.from_chat_text(model, turns)
    assert found.ids.tolist() == model.tokenizer(turns, add_special_tokens=False).input_ids
    assert found.origins is None
    assert ost.Prompt.from_chat_text(model, turns.removeprefix("<bos>")).ids.tolist() == found.ids.tolist()


@pytest.mark.parametrize(
    ("text", "match"),
    [("", "found empty text"), ("Hi", "expected text with markers of the chat template, found none in 'Hi'")],
)
def test_what_is_no_text_of_a_chat(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        ost.Prompt.from_chat_text(tiny_model("gemma"), text)
