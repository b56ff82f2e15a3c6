"""Models that run elsewhere, from the command line: prompts go out, answers come back, a server is
asked.
"""

import json
from pathlib import Path

import pytest

from ostools import tasks
from ostools.paper import figure_prompts
from tests.cli.asking import assert_refused
from tests.measure.hosted.server import completion, served
from tests.sets import quick

LENGTHS = ("--lengths", "2:3")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def answered(rows: list[dict], path: Path, **more: object) -> Path:
    """Every prompt answered with the right line."""
    path.write_text(
        "".join(json.dumps({"id": row["id"], "text": row["line"]} | more) + "\n" for row in rows)
    )
    return path


def test_prompts_go_out_and_their_answers_are_read(run, no_model: None, tmp_path: Path) -> None:
    code, out, err = run("evaluate", "prompts", "--task", "copy-last", *LENGTHS)
    assert (code, err) == (0, "")
    rows = lines(out)
    assert [(row["task"], row["length"], row["key"]) for row in rows] == [
        ("copy-last", 2, "0"),
        ("copy-last", 3, "0"),
    ]
    assert (
        run("evaluate", "prompts", "--task", "copy-last", *LENGTHS, "--out", "prompts.jsonl")[0]
        == 0
    )
    assert (tmp_path / "prompts.jsonl").read_text() == out
    asked = (
        "evaluate",
        "--task",
        "copy-last",
        *LENGTHS,
        "--answers",
        str(answered(rows[:1], tmp_path / "answers.jsonl")),
        "--model",
        "gemini-1.5-pro",
    )
    out = run(*asked)[1]
    assert "answers 1 of 1 prompts of copy-last right" in out
    assert "1 of 2 prompts have no answer" in out
    found = json.loads(run(*asked, "--json")[1])
    assert found["provenance"]["model"] == {"name": "gemini-1.5-pro"}
    assert [row["correct"] for row in found["rows"]] == [True, None]


@pytest.mark.parametrize("number", quick([2, 3, 4, 6, 7], 2, 3))
def test_a_figures_prompts_and_the_figure_of_their_answers(
    run, no_model: None, tmp_path: Path, number: int
) -> None:
    """One panel may be asked alone."""
    asked = LENGTHS if number == 2 else (*LENGTHS, "--seeds", "0")
    rows = lines(run("evaluate", "prompts", "--figure", str(number), *asked)[1])
    assert len(rows) == (12 if number == 2 else 18)
    answers = answered(rows[:-1], tmp_path / "answers.jsonl", model="m")
    code, out, err = run("reproduce", "figure", str(number), *asked, "--answers", str(answers))
    assert (code, err) == (0, "")
    assert "1 prompts without an answer" in " ".join(out.split())
    if number == 3:
        panel = lines(tasks.prompts_jsonl(figure_prompts(3, [2, 3], [0], ["count-word"])))
        answers = answered(panel, tmp_path / "panel.jsonl", model="m")
        options = (*asked, "--panels", "count-word", "--answers", str(answers))
        assert run("reproduce", "figure", "3", *options)[0::2] == (0, "")


def test_a_server_is_asked(
    run, no_model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker")
    known = {row["prompt"]: row["line"] for row in lines(run("evaluate", "prompts", *LENGTHS)[1])}
    with served(lambda prompt: (200, completion(known[prompt]))) as (url, heard):
        asked = (
            "evaluate",
            *LENGTHS,
            "--endpoint",
            url,
            "--model",
            "m",
            "--answers",
            str(tmp_path / "a.jsonl"),
        )
        said = [run(*asked, "--json") for _ in range(2)]
        assert [(code, err) for code, _, err in said] == [(0, "")] * 2
        assert len(heard) == 2
    assert [row["correct"] for row in json.loads(said[1][1])["rows"]] == [True, True]
    assert "sk-marker" not in said[0][1] + said[1][1] + (tmp_path / "a.jsonl").read_text()
    found = run("evaluate", "--lengths", "2:4", *asked[3:])
    assert_refused(found, "expected a chat completion", "the same command goes on")


REFUSED = [
    ("evaluate prompts --figure 2 --seeds 0", "no seeds and no panels"),
    ("evaluate prompts --figure 3 --task copy-last", "--figure 3 has a --task of its own"),
    ("evaluate prompts --figure all --lengths 3", "--figure all has a --lengths of its own"),
    ("evaluate prompts --mitigation sliding-window:window=3", "only rewrites prompts"),
    ("evaluate --endpoint http://localhost:1/v1", "--answers FILE"),
    ("evaluate --endpoint http://localhost:1/v1 --answers a.jsonl", "--model NAME"),
    ("evaluate --answers a.jsonl", "No such file"),
    ("evaluate --answers a.jsonl --batch-size 1", "--batch-size"),
    ("reproduce figure 2 --answers a.jsonl --device cpu", "--device"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line for line, _ in REFUSED])
def test_refusals(run, no_model: None, line: str, words: str) -> None:
    assert_refused(run(*line.split()), words)
