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


def _asked(run: Any, model: str, *arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--model", model, "--json")
    assert code == 0, err
    return json.loads(out)


def _wanted(**options: Any) -> list[int]:
    model = tiny_model("llama", fresh=True)
    tokenizer: Any = model.tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE + SWITCH
    try:
        return encode(model, "The 11", chat=True, **options).ids.tolist()
    finally:
        tokenizer.chat_template = CHAT_TEMPLATE


@pytest.mark.parametrize(
    "command",
    quick(["sensitivity", "bounds", "sensitivity profile", "bounds spectra", "attention"], "sensitivity", "attention"),
)
def test_a_text_is_asked_as_a_users_turn(run, thinker: str, command: str) -> None:
    found = _asked(run, thinker, *command.split(), "--prompt", "The 11", "--chat", "--system", "Be short.")
    assert found["provenance"]["token_ids"] == _wanted(system="Be short.")
    asked = found["provenance"]["parameters"]
    assert (asked["chat"], asked["system"], asked["thinking"]) == (True, "Be short.", "off")


def test_thinking_is_left_on_where_it_is_asked_for(run, thinker: str) -> None:
    found = _asked(run, thinker, "bounds", "spectra", "--prompt", "The 11", "--chat", "--thinking")
    assert found["provenance"]["token_ids"] == _wanted(thinking=True)
    said = _asked(
        run, thinker, "evaluate", "--task", "copy-last", "--lengths", "3", "--thinking", "--system", "Be short."
    )
    asked = said["provenance"]["parameters"]
    assert (asked["system"], asked["thinking"]) == ("Be short.", "on")


@pytest.mark.parametrize("option", [("--system", "Be short."), ("--thinking",)])
def test_they_need_a_chat(run, thinker: str, option: tuple[str, ...]) -> None:
    plain = run("bounds", "spectra", "--prompt", "The 11", *option, "--model", thinker)
    assert_refused(plain, f"{option[0]}: expected --chat beside it, found none")
    other = run("evaluate", "--task", "copy-last", "--lengths", "3", "--no-chat", *option, "--model", thinker)
    assert_refused(other, f"{option[0][2:]}: expected a chat, found plain text")
    task = run("attention", "--task", "copy-last", "--length", "3", "--chat", "--model", thinker)
    assert_refused(task, "--chat: a task is asked in the chat template where there is one")


def test_a_model_without_a_template_refuses(run, bare: str) -> None:
    assert_refused(
        run("bounds", "spectra", "--prompt", "The 11", "--chat", "--model", bare),
        "a chat template, found none: leave chat out",
    )


def test_the_prompts_of_a_file_are_each_a_turn(run, thinker: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("The 11\nThe 1\n")
    found = _asked(
        run, thinker, "sensitivity", "--prompts", str(tmp_path / "two.txt"), "--chat", "--linearisation", "frozen"
    )
    prompts = found["provenance"]["parameters"]["prompts"]
    assert prompts["1"]["token_ids"] == _wanted()
    assert [prompts[number]["thinking"] for number in ("1", "2")] == ["off", "off"]
    assert {row["origin"] for row in found["rows"]} == {"special", "template", "text"}
