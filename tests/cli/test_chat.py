"""--chat, --system and --thinking: the same prompt as in Python, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostools.models import encode
from tests.checkpoints import CHAT_TEMPLATE, tiny_model, write_checkpoint
from tests.cli.asking import assert_refused
from tests.sets import quick

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16, "context": 512}
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama whose template has a switch for thinking."""
    return str(
        write_checkpoint(tmp_path_factory.mktemp("chat") / "t", "llama", chat_template=CHAT_TEMPLATE + SWITCH, **SIZES)
    )


def _result(run: Any, model: str, *arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--model", model, "--json")
    assert code == 0, err
    return json.loads(out)


def _token_ids(**options: Any) -> list[int]:
    model = tiny_model("llama", fresh=True)
    tokenizer: Any = model.tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE + SWITCH
    try:
        return encode(model, "The 11", chat=True, **options).ids.tolist()
    finally:
        tokenizer.chat_template = CHAT_TEMPLATE


@pytest.mark.parametrize(
    "command",
    quick(["sensitivity profile", "attention"], "attention"),
)
def test_a_text_is_asked_as_a_users_turn(run, thinker: str, command: str) -> None:
    result = _result(run, thinker, *command.split(), "--prompt", "The 11", "--chat", "--system", "Be short.")
    assert result["provenance"]["token_ids"] == _token_ids(system="Be short.")
    parameters = result["provenance"]["parameters"]
    assert [parameters[name] for name in ("chat", "system", "thinking")] == [True, "Be short.", "off"]


def test_thinking_is_left_on_where_it_is_asked_for(run, thinker: str) -> None:
    result = _result(run, thinker, "bounds", "spectra", "--prompt", "The 11", "--chat", "--thinking")
    assert result["provenance"]["token_ids"] == _token_ids(thinking=True)
    options = ("--task", "copy-last", "--lengths", "3", "--thinking", "--system", "Be short.")
    parameters = _result(run, thinker, "evaluate", *options)["provenance"]["parameters"]
    assert (parameters["system"], parameters["thinking"]) == ("Be short.", "on")


def test_the_options_of_a_chat_need_a_chat(run, thinker: str) -> None:
    plain = run("bounds", "spectra", "--prompt", "The 11", "--system", "Be short.", "--model", thinker)
    assert_refused(plain, "--system: expected --chat beside it, found none")
    lengths = ("--task", "copy-last", "--lengths", "3")
    task = run("evaluate", *lengths, "--elicitation", "zero-shot", "--thinking", "--model", thinker)
    assert_refused(task, "thinking: expected a chat, found plain text")
    both = run("attention", "--task", "copy-last", "--length", "3", "--chat", "--model", thinker)
    assert_refused(both, "--chat: a task is asked in the chat template where there is one")


def test_a_model_without_a_template_refuses(run, bare: str) -> None:
    assert_refused(
        run("bounds", "spectra", "--prompt", "The 11", "--chat", "--model", bare),
        "a chat template, found none: leave chat out",
    )


def test_the_prompts_of_a_file_are_each_a_turn(run, thinker: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("The 11\nThe 1\n")
    result = _result(
        run, thinker, "sensitivity", "--prompts", str(tmp_path / "two.txt"), "--chat", "--linearisation", "frozen"
    )
    prompts = result["provenance"]["parameters"]["prompts"]
    assert prompts["1"]["token_ids"] == _token_ids()
    assert [prompts[number]["thinking"] for number in ("1", "2")] == ["off", "off"]
    assert {row["origin"] for row in result["rows"]} == {"special", "template", "text"}
