"""Prompts of a command: --chat, --system and --thinking, tasks, token ids and several texts give the
same prompt as in Python; and what is refused before a model is loaded.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.cli.running import parse_ids
from ostools.results import frame_of
from tests.checkpoints import CHAT_TEMPLATE, tiny_model
from tests.cli.asking import assert_refused
from tests.cli.conftest import write_llama

SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama whose template has a switch for thinking."""
    return write_llama(tmp_path_factory.mktemp("chat"), CHAT_TEMPLATE + SWITCH)


def _result(run: Any, model: str, line: str) -> dict[str, Any]:
    code, out, err = run(*shlex.split(line), "--model", model, "--json")
    assert code == 0, err
    return json.loads(out)


def _token_ids(**options: Any) -> list[int]:
    model = tiny_model("llama", fresh=True)
    tokenizer: Any = model.tokenizer
    tokenizer.chat_template = CHAT_TEMPLATE + SWITCH
    try:
        return ost.encode(model, "The 11", chat=True, **options).ids.tolist()
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


REFUSALS = {
    "attention --prompt 1 --system 2": "system: expected a chat, found plain text",
    "evaluate --lengths 3 --elicitation zero-shot --thinking": "thinking: expected a chat, found plain text",
    "attention --prompt 1 --chat --no-bos": "bos: expected plain text, found a chat, whose template writes",
    "attention --ids 2,40 --bos": "bos: expected a text, found token ids",
    "bounds --ids 2,40 --chat": "chat: expected a text, found token ids",
    "attention --task copy-last --length 3 --bos": "bos: expected plain text, found a chat, whose template writes",
    "bounds --task count-ones": "expected --task NAME and --length N",
    "sensitivity --prompt 1 --position answer": "position",
    "bounds": "expected --prompt or --ids or --task, found none of them",
}


@pytest.mark.parametrize("line", REFUSALS)
def test_what_a_prompt_cannot_be_is_refused(run, thinker: str, line: str) -> None:
    assert_refused(run(*line.split(), "--model", thinker), REFUSALS[line])


def test_a_chat_needs_a_template(run, bare: str) -> None:
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
    (question,) = ost.tasks.questions("count-ones", lengths=[4])
    expected = ost.bounds(
        model, question, variants="local", position="last-item", mitigation="separator:every=2"
    )
    assert [row["value"] for row in found["rows"]] == frame_of(expected)["value"].tolist()
    assert found["provenance"]["parameters"]["read_at"]["position"] == "last-item"


# --- several prompts, and token ids in place of a text


def test_the_prompt_that_does_not_fit_is_named_and_nothing_is_written(
    run, directory: str, tmp_path: Path
) -> None:
    asked = ["sensitivity", "--prompt", "a", "--prompt", "1" * 4000, "--model", directory]
    assert_refused(run(*asked, "--out", str(tmp_path / "x.csv")), "prompt 2 of 2 (")
    assert not list(tmp_path.iterdir())


def test_ids_are_read_from_the_line() -> None:
    assert parse_ids("2 40 50") == parse_ids("[2, 40, 50]\n") == parse_ids("2,40,50") == (2, 40, 50)
    for text in ("", "2,-1", "1.5", "٣", "\0"):
        with pytest.raises(ost.InputError, match=r"--ids .*: expected token ids such as 2,40,50"):
            parse_ids(text)


def test_ids_in_place_of_a_prompt(run, directory: str) -> None:
    """The command's numbers are those of the text."""
    ids = ost.encode(ost.load_model(directory, device="cpu"), "The 11").ids.tolist()
    text, numbers = (
        run("bounds", *given, "--model", directory, "--variants", "local", "--json")[1]
        for given in (("--prompt", "The 11"), ("--ids", ",".join(map(str, ids))))
    )
    values = [[row["value"] for row in json.loads(found)["rows"]] for found in (text, numbers)]
    assert values[0] == values[1]
