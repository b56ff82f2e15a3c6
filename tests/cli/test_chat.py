"""--chat, --system and --thinking: the same prompt as in Python, and what is refused before a model
is loaded.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import ostools as ost
from ostools.models import encode
from ostools.results import frame_of
from ostools.tasks import questions
from tests.checkpoints import CHAT_TEMPLATE, tiny_model, write_checkpoint
from tests.cli.asking import assert_refused

SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 512,
}
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama whose template has a switch for thinking."""
    template = CHAT_TEMPLATE + SWITCH
    return str(
        write_checkpoint(
            tmp_path_factory.mktemp("chat") / "t", "llama", chat_template=template, **SIZES
        )
    )


def _result(run: Any, model: str, line: str) -> dict[str, Any]:
    code, out, err = run(*shlex.split(line), "--model", model, "--json")
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


ASKED = {
    "attention --system 'Be short.'": {"system": "Be short."},
    "attention heads --thinking": {"thinking": True},
}


@pytest.mark.parametrize("line", ASKED)
def test_a_text_is_asked_as_a_users_turn(run, thinker: str, line: str) -> None:
    provenance = _result(run, thinker, f"{line} --prompt 'The 11' --chat")["provenance"]
    assert provenance["token_ids"] == _token_ids(**ASKED[line])
    said = [provenance["parameters"][name] for name in ("chat", "system", "thinking")]
    assert said == [True, ASKED[line].get("system"), "on" if "thinking" in line else "off"]


def test_what_a_chat_cannot_be_is_refused(run, thinker: str, bare: str) -> None:
    refusals = {
        "attention --prompt 1 --system 2": "system: expected a chat, found plain text",
        "evaluate --lengths 3 --elicitation zero-shot --thinking": "thinking: expected a chat, found plain text",
    }
    for line, words in refusals.items():
        assert_refused(run(*line.split(), "--model", thinker), words)
    without = run("attention", "--prompt", "The 11", "--chat", "--model", bare)
    assert_refused(without, "a chat template, found none: leave chat out")


BOS_CHOSEN = {
    "attention": ["--bos", "--no-bos"],
    "sensitivity profile": ["--no-bos"],
}


@pytest.mark.parametrize("line", BOS_CHOSEN)
def test_a_bos_is_chosen_of_a_text(run, thinker: str, line: str) -> None:
    """A tokenizer that adds it: `--bos` changes nothing, and stands in the provenance."""
    plain = _result(run, thinker, f"{line} --prompt 'The 11'")["provenance"]
    assert "bos" not in plain["parameters"]
    for option in BOS_CHOSEN[line]:
        provenance = _result(run, thinker, f"{line} --prompt 'The 11' {option}")["provenance"]
        assert provenance["token_ids"] == plain["token_ids"][1 if option == "--no-bos" else 0 :]
        assert provenance["parameters"]["bos"] is (option == "--bos")


def test_a_bos_is_chosen_of_plain_text_alone(run, thinker: str) -> None:
    refusals = {
        "attention --prompt 1 --chat --no-bos": "bos: expected plain text, found a chat, whose template writes",
        "attention --ids 2,40 --bos": "bos: expected a text, found token ids",
        "bounds --ids 2,40 --chat": "chat: expected a text, found token ids",
        "attention --task copy-last --length 3 --bos": "bos: expected plain text, found a chat, whose template writes",
    }
    for line, words in refusals.items():
        assert_refused(run(*shlex.split(line), "--model", thinker), words)


def test_several_prompts_are_each_a_turn(run, thinker: str) -> None:
    line = "sensitivity --prompt 'The 11' --prompt 'The 1' --chat --linearisations frozen"
    prompts = _result(run, thinker, line)["provenance"]["parameters"]["prompts"]
    assert prompts["1"]["token_ids"] == _token_ids()
    assert [prompts[number]["thinking"] for number in ("1", "2")] == ["off", "off"]


def test_a_task_in_the_place_of_a_prompt(run, thinker: str) -> None:
    """Its question, read where it is asked for, under a mitigation that rewrites it; the numbers
    are those of Python.
    """
    line = "bounds --variants local --task count-ones --length 4 --position last-item --mitigation separator:every=2"
    found = _result(run, thinker, line)
    model = ost.load_model(thinker, device="cpu")
    (question,) = questions("count-ones", lengths=[4])
    asked: dict[str, Any] = {"position": "last-item", "mitigation": "separator:every=2"}
    expected = ost.bounds(model, question, variants="local", **asked)
    assert [row["value"] for row in found["rows"]] == frame_of(expected)["value"].tolist()
    assert found["provenance"]["parameters"]["read_at"]["position"] == "last-item"


def test_a_task_and_its_length_stand_together(run, thinker: str) -> None:
    refusals = {
        "bounds --task count-ones": "expected --task NAME and --length N",
        "sensitivity --prompt 1 --position answer": "position",
        "bounds": "expected --prompt or --ids or --task, found none of them",
    }
    for line, words in refusals.items():
        assert_refused(run(*line.split(), "--model", thinker), words)
