"""Whose each token of a prompt is: the template's own, the system prompt, the user's text."""

import re
from itertools import groupby
from typing import Any

import pytest
from tokenizers import processors

import ostools as ost
from ostools.models import Prompt, encode
from ostools.models.chat import MIXED, NO_SWITCH, OFF, ON, SPECIAL, SYSTEM, TEMPLATE, TEXT
from ostools.models.tokenizer_calls import note_once
from ostools.models.tokens import count_tokens
from tests.checkpoints import refused, tiny_model, trained
from tests.models.chat.templates import TEMPLATES, Template, on_template, with_template
from tests.sets import quick

NAMES = tuple(TEMPLATES)
TAKES_SYSTEM = tuple(name for name in NAMES if name != "gemma-2")
TEXTS = (
    "Hi",
    "user\nmodel\nassistant",
    "  Hi\n",
    "\ue000 and \ue001",
    "a\n\nb",
    "é€",
)


def _said(prompt: Prompt, *wanted: str) -> str:
    """The tokens of these origins, joined."""
    assert prompt.origins is not None
    pairs = zip(prompt.tokens, prompt.origins, strict=True)
    return "".join(token for token, origin in pairs if origin in wanted)


def _by_transformers(name: str, text: str, system: str | None = None, tokenize: bool = True) -> Any:
    """The independent route: transformers' own rendering, and its encoding in the same call."""
    tokenizer: Any = on_template(name).tokenizer
    messages = [{"role": "user", "content": text}]
    messages = messages if system is None else [{"role": "system", "content": system}, *messages]
    found = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=False, tokenize=tokenize
    )
    return list(found["input_ids"]) if tokenize else found


def _frame(name: str, system: str | None = None) -> list[str]:
    """What stands around a message, and around a system prompt."""
    return re.split(r"Be short\.|Hi", _by_transformers(name, "Hi", system, tokenize=False))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", quick(TEXTS, TEXTS[0], TEXTS[-1]))
def test_ids_are_transformers_own_and_origins_cover_them(name: str, text: str) -> None:
    prompt = encode(on_template(name), text, chat=True)
    assert prompt.ids.tolist() == _by_transformers(name, text)
    assert prompt.origins is not None
    assert len(prompt.origins) == len(prompt.ids)
    # Only OLMo 2's template has a blank next to a blank of the text.
    assert set(prompt.origins) <= {SPECIAL, TEMPLATE, TEXT} | (
        {MIXED} if text.endswith("\n") else set()
    )
    assert len(prompt.ids) == count_tokens(on_template(name).tokenizer, text, chat=True)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_the_text_is_the_frame_and_what_is_left_is_the_text(name: str) -> None:
    prompt = encode(on_template(name), "Hi", chat=True)
    blank = (
        " " if name == "mistral" else ""
    )  # joined with the first word into one token, which is the text's
    assert _said(prompt, TEXT) == blank + "Hi"
    assert _said(prompt, SPECIAL, TEMPLATE) == "".join(_frame(name)).replace("[INST] ", "[INST]")
    assert _said(prompt, SPECIAL) == (TEMPLATES[name].bos or "")
    assert prompt.text == "Hi".join(_frame(name))
    assert prompt.chat is not None
    assert prompt.text is not None
    low, high = prompt.chat.message
    assert prompt.text[low:high] == "Hi"


@pytest.mark.parametrize("name", TAKES_SYSTEM)
@pytest.mark.parametrize(("system", "text"), [("Be short.", "Hi"), ("Hi", "Hi")])
def test_a_system_prompt_stands_where_the_template_puts_it(
    name: str, system: str, text: str
) -> None:
    prompt = encode(on_template(name), text, chat=True, system=system)
    before, between, behind = _frame(name, "Be short.")
    assert prompt.text == before + system + between + text + behind
    assert prompt.ids.tolist() == _by_transformers(name, text, system)
    assert prompt.origins is not None
    assert [one for one, _ in groupby(o for o in prompt.origins if o in (SYSTEM, TEXT))] == [
        SYSTEM,
        TEXT,
    ]
    assert (_said(prompt, SYSTEM).strip(), _said(prompt, TEXT).strip()) == (system, text)
    assert prompt.provenance["system"] == system


def _changed(source: str) -> Any:
    return with_template(Template(source, ()))


_TURN = "{{ messages[-1]['content'] }}"


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (
            "gemma-2",
            {"system": "Be short."},
            "expected a chat template that takes a system prompt, found: .*System role not",
        ),
        ("phi-3", {"system": ""}, "system: expected text, or None for no system prompt, found ''"),
        (
            "phi-3",
            {"system": "Be short.", "chat": False},
            "system: expected a chat, found plain text: ask in the chat",
        ),
        (
            "qwen-3",
            {"thinking": True, "chat": False},
            "thinking: expected a chat, found plain text",
        ),
        (_TURN, {"system": "Be short."}, "the system prompt, once and as they are, found"),
        (_TURN + _TURN, {}, "leaves out, repeats or rewrites one"),
        (
            "{{ messages[-1]['content'] | upper }}",
            {},
            "writes the message, and the system prompt, once and as they are",
        ),
        ("{% if %}" + _TURN, {}, "expected a chat template that takes one user turn, found"),
        ("", {}, "expected a tokenizer with a chat template, found none: leave chat out"),
    ],
)
def test_what_a_template_does_not_take_or_loses_repeats_or_rewrites(
    model: str, options: Any, match: str
) -> None:
    tiny = on_template(model) if model in TEMPLATES else _changed(model)
    refused(match, encode, tiny, "Hi", **({"chat": True} | options))


@pytest.mark.parametrize("name", [name for name, template in TEMPLATES.items() if template.control])
def test_control_tokens_in_a_message_or_a_system_prompt_are_refused(name: str) -> None:
    for token in TEMPLATES[name].control:
        with pytest.raises(
            ost.InputError,
            match="the message holds text that the tokenizer reads as a control token",
        ):
            encode(on_template(name), f"Hi {token}", chat=True)
        if name in TAKES_SYSTEM:
            with pytest.raises(
                ost.InputError,
                match="the message holds text that the tokenizer reads as a control token",
            ):
                encode(on_template(name), "Hi", chat=True, system=f"Be {token}")


def test_a_token_across_the_border_is_the_texts_where_only_blanks_are_foreign() -> None:
    """OLMo 2's message ends without a marker: "?" and the template's line end are one token."""
    prompt = encode(on_template("olmo-2"), "Hi?", chat=True)
    assert prompt.tokens[prompt.tokens.index("?\n")] == "?\n"
    assert _said(prompt, TEXT) == "Hi?\n"
    assert _said(prompt, TEMPLATE).endswith("|>\n<|assistant|>\n")


@pytest.mark.parametrize("text", ["\n Hi?"])
def test_blanks_that_a_tokenizer_leaves_out_of_its_places_are_found(text: str) -> None:
    """GPT-NeoX's and others' byte-level tokenizers trim blanks from the places that they give."""
    whole = encode(on_template("phi-3"), text, chat=True)
    model = with_template(TEMPLATES["phi-3"])
    tokenizer: Any = model.tokenizer
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    assert encode(model, text, chat=True).origins == whole.origins


def test_plain_prompts_have_their_tokenizers_special_tokens_and_text() -> None:
    prompt = encode(trained("embedded"), "1110")
    assert prompt.origins == (SPECIAL, *[TEXT] * (len(prompt.ids) - 1))
    assert (prompt.chat, prompt.provenance) == (None, {})
    assert encode(on_template("qwen-3"), "Hi").origins == (TEXT, TEXT)


def test_a_template_that_writes_the_date_says_so() -> None:
    assert encode(on_template("llama-3.2"), "Hi", chat=True).provenance["dated"] is True
    assert encode(on_template("qwen-3"), "Hi", chat=True).provenance["dated"] is False


# ---- switches and markers


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


def test_a_text_with_markers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    note_once.cache_clear()
    model = tiny_model("gemma")
    prompt = encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    assert prompt.markers == 2
    assert prompt.provenance == {"markers_as_text": 2}
    encode(model, "<start_of_turn>user\nHi<end_of_turn>")
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds markers of the chat template (2), read as plain text; give" in line
    assert ost.sensitivity(model, prompt).provenance.parameters["markers_as_text"] == 2
