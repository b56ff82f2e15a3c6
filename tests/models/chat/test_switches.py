"""Thinking is switched off where a template has a switch; markers in a text are plain text, or
tokens where that is asked.
"""

from __future__ import annotations

from typing import Any

import pytest

import ostools as ost
from ostools.models import encode
from ostools.models.chat import NO_SWITCH, OFF, ON
from ostools.models.tokenizer_calls import note_once
from tests.checkpoints import tiny_model
from tests.models.chat.templates import on_template


@pytest.mark.parametrize("name", ["gemma-2", "phi-3"])
def test_a_template_without_a_switch_is_left_as_it_is(name: str) -> None:
    assert encode(on_template(name), "Hi", chat=True).provenance["thinking"] == NO_SWITCH
    with pytest.raises(
        ost.InputError,
        match=r"thinking: expected a chat template with a switch \(enable_thinking\), found none",
    ):
        encode(on_template(name), "Hi", chat=True, thinking=True)


def test_qwen_3_does_not_think_unless_it_is_asked_to() -> None:
    model = on_template("qwen-3")
    off, on = (encode(model, "Hi", chat=True, thinking=thinking) for thinking in (False, True))
    assert (off.provenance["thinking"], on.provenance["thinking"]) == (OFF, ON)
    assert str(off.text) == str(on.text) + "<think>\n\n</think>\n\n"
    tokenizer: Any = model.tokenizer
    default = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True
    )["input_ids"]
    assert on.ids.tolist() == default  # the template's own way is to think
    assert off.origins is not None
    assert set(off.origins[len(on.ids) :]) == {"template"}


# Markers in a text.


def test_a_text_with_markers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    note_once.cache_clear()
    model = tiny_model("gemma")
    prompt = ost.encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    assert prompt.markers == 2
    assert prompt.provenance == {"markers_as_text": 2}
    ost.encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds markers of the chat template (2), read as plain text; give" in line
    assert ost.sensitivity(model, prompt).provenance.parameters["markers_as_text"] == 2
