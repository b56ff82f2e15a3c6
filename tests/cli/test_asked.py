"""`--at`, `--towards` and `--mitigation`: the numbers of the Python call, and refusals that name options."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from tests.cli.asking import assert_refused

PROMPT = "The 11 and 10"
CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--at", "2"), {"at": 2}),
    (("--at", "-2", "--towards", "1"), {"at": -2, "towards": "1"}),
    (("--towards", "1", "--towards", "0"), {"towards": ("1", "0")}),
]


@pytest.mark.parametrize(("options", "arguments"), CASES, ids=str)
def test_the_command_gives_the_numbers_of_the_call(
    run, directory: str, options: tuple[str, ...], arguments: dict[str, Any]
) -> None:
    code, out, _ = run("sensitivity", "--prompt", PROMPT, *options, "--model", directory, "--json", "--quiet")
    expected = ost.sensitivity(ost.load_model(directory), PROMPT, **arguments)
    found = json.loads(out)
    assert code == 0
    # Through JSON and back, so that a missing origin is None in both.
    assert found["rows"] == json.loads(json.dumps(expected.as_json()["rows"]))
    for name in ("at", "towards"):
        asked = expected.provenance.parameters.get(name)
        assert found["provenance"]["parameters"].get(name) == (list(asked) if isinstance(asked, tuple) else asked)


def test_of_several_prompts_each_says_its_own_position(run, directory: str) -> None:
    asked = ("sensitivity", "--prompt", "The 11", "--prompt", PROMPT, "--at", "-2", "--model", directory)
    code, out, _ = run(*asked, "--json", "--quiet")
    found = json.loads(out)
    rows = pd.DataFrame(found["rows"])
    assert code == 0
    assert "at" not in found["provenance"]["parameters"]
    for number, about in found["provenance"]["parameters"]["prompts"].items():
        assert about["at"] == len(about["token_ids"]) - 2
        assert rows.loc[rows["prompt"] == int(number), "position"].max() == about["at"]


def test_a_table_says_what_was_differentiated(run, directory: str) -> None:
    asked = ("sensitivity", "--prompt", PROMPT, "--at", "2", "--towards", "1", "--towards", "0", "--model", directory)
    _, out, _ = run(*asked)
    assert "Measured sensitivity of the logit of '1' minus that of '0' after position 2, at layer 0" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--towards", "1", "--towards", "0", "--towards", "1"), "--towards: expected one token, or two"),
        (("--towards", "1", "--method", "estimate"), "leave --method out"),
        (("--towards", "1", "--linearisation", "detached"), "found --linearisation detached"),
        (("--at", "400"), "at"),
    ],
    ids=str,
)
def test_what_is_not_measured_is_refused(run, directory: str, options: tuple[str, ...], words: str) -> None:
    assert_refused(run("sensitivity", "--prompt", PROMPT, *options, "--model", directory), words)


MITIGATED = [
    ("collapse", "figure-5a", "sliding-window:window=3", "float32"),
    ("collapse", "copy-last", "separator:every=3", "float32"),
    ("attention-variation", "figure-5a", "sliding-window:window=3", None),
]


@pytest.mark.parametrize(("command", "task", "mitigation", "dtype"), MITIGATED, ids=str)
def test_a_mitigated_command_gives_the_numbers_of_the_mitigated_call(
    run, directory: str, command: str, task: str, mitigation: str, dtype: str | None
) -> None:
    options = () if dtype is None else ("--dtype", dtype)
    asked = (command, "--task", task, "--lengths", "4,5", "--mitigation", mitigation, *options, "--model", directory)
    code, out, _ = run(*asked, "--json", "--quiet")
    found, model = json.loads(out), ost.load_model(directory)
    how: dict[str, Any] = {"lengths": [4, 5], "mitigation": mitigation}
    if dtype is None:
        expected: Any = ost.attention_variation(model, task, **how)
    else:
        expected = ost.collapse(model, task, dtypes=[dtype], **how)
    assert code == 0
    assert found["rows"] == json.loads(json.dumps(expected.as_json()["rows"]))
    assert found["provenance"]["parameters"]["mitigation"] == expected.provenance.parameters["mitigation"]


WINDOW, HINT = "sliding-window:window=3", "repeat-prompt"
OF_A_TEXT: list[tuple[str, str, Any]] = [
    ("spectra", WINDOW, lambda model: ost.spectra(model, PROMPT, mitigation=WINDOW)),
]
DEARER = [
    ("path-sum", HINT, lambda model: ost.path_sum(model, PROMPT, mitigation=HINT)),
    ("contributions", HINT, lambda model: ost.contributions(model, PROMPT, mitigation=HINT)),
    ("sensitivity", WINDOW, lambda model: ost.sensitivity(model, PROMPT, mitigation=WINDOW)),
    ("profile --at -2", HINT, lambda model: ost.profile(ost.sensitivity(model, PROMPT, mitigation=HINT, at=-2))),
    (
        "nulls --seeds 1",
        WINDOW,
        lambda model: ost.nulls(model, PROMPT, seeds=[0], mitigation=WINDOW),
    ),
    (
        "faithfulness --variant local --linearisation frozen --way removed --orders 19 --at 4",
        HINT,
        lambda model: ost.faithfulness(
            model,
            [
                ost.sensitivity(model, PROMPT, linearisations=["frozen"], mitigation=HINT, at=4),
                ost.path_sum(model, PROMPT, variants="local", mitigation=HINT, positions="all"),
            ],
            ways="removed",
            orders=19,
            mitigation=HINT,
        ),
    ),
]


@pytest.mark.parametrize(
    ("command", "mitigation", "call"),
    [*OF_A_TEXT, *(pytest.param(*one, marks=pytest.mark.slow) for one in DEARER)],
    ids=lambda value: value if isinstance(value, str) else "call",
)
def test_a_mitigated_measurement_of_a_text_is_that_of_the_call(
    run, directory: str, command: str, mitigation: str, call: Any
) -> None:
    asked = (*command.split(), "--prompt", PROMPT, "--mitigation", mitigation, "--model", directory)
    code, out, _ = run(*asked, "--json", "--quiet")
    found, expected = json.loads(out), call(ost.load_model(directory))
    assert code == 0
    assert found["rows"] == json.loads(json.dumps(expected.as_json()["rows"]))
    assert found["provenance"]["parameters"]["mitigation"] == mitigation


def test_a_table_says_what_it_was_measured_under(run, directory: str) -> None:
    asked = ("path-sum", "--prompt", PROMPT, "--variant", "local", "--model", directory)
    _, out, _ = run(*asked, "--mitigation", WINDOW)
    assert out.startswith(f"under the mitigation {WINDOW}\n\n")
    assert "mitigation" not in run(*asked)[1]


@pytest.mark.parametrize("command", ["sensitivity", "path-sum", "spectra", "contributions", "faithfulness", "nulls"])
def test_what_cannot_rewrite_a_text_is_refused_before_the_model_is_loaded(run, no_model: None, command: str) -> None:
    found = run(command, "--prompt", PROMPT, "--mitigation", "separator:every=3")
    assert_refused(
        found, "--mitigation separator:every=3: it rewrites the sequence of a task", "ostools prompts --task"
    )
    found = run(command, "--ids", "2,40,50", "--mitigation", "hint")
    assert_refused(found, "--mitigation hint: it rewrites the text, expected --prompt beside it, found token ids")


def test_one_that_does_not_act_is_refused(run, directory: str) -> None:
    asked = ("path-sum", "--prompt", PROMPT, "--mitigation", "sliding-window:window=99", "--model", directory)
    assert_refused(
        run(*asked), "expected a mitigation that changes this prompt, found that sliding-window:window=99 does not"
    )


def test_an_unknown_mitigation_is_refused_before_the_model_is_loaded(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostools.models.load_model", lambda *_, **__: pytest.fail("loaded the model"))
    for command in ("collapse", "attention-variation"):
        assert_refused(run(command, "--mitigation", "separatr"), "separator")
