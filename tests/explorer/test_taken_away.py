"""The copied code and the copied command give what the page shows, in every view and with everything that can be chosen."""

from __future__ import annotations

import io
import json
import math
import shlex
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from starlette.testclient import TestClient
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.explorer.answer import answer
from ostools.explorer.app import application
from ostools.explorer.question import Question, Subject
from ostools.explorer.recipe import RecipeResult
from ostools.explorer.runs import Runs
from ostools.explorer.views import VIEWS
from ostools.models import load_model

PROMPT, OTHER = "The 11 of 11", "The 12 12 of 11"
SHORT: dict[str, Any] = {"longest": 8, "dtypes": ["bfloat16"]}
HINT, WINDOW = ({"beside": "mitigation", "other": other} for other in ("hint", "sliding-window:window=3"))
SECOND = {"beside": "prompt", "other": OTHER}
QUICK: list[tuple[str, dict[str, Any]]] = [("attention", {"layer": 1, "head": 2, **HINT})]
SLOW: list[tuple[str, dict[str, Any]]] = [
    *((name, SHORT if name == "collapse" else {}) for name in VIEWS if name not in ("frozen", "full", "frozen-norm")),
    ("frozen", {"layer": 2}),
    ("full", {"logit": "1"}),
    ("full", WINDOW),
    ("sketch-frozen", SECOND),
    ("attention", {"layer": 2}),
    ("attention", {"token": 4, **SECOND}),
    ("attribution", SECOND),
    ("collapse", {**SHORT, **WINDOW}),
    ("collapse", {**SHORT, "item": " and"}),
]
MODELS = [
    ("sketch-full", "embedded-short", {"beside": "model", "dtype": "bfloat16"}),
    ("attention", "embedded", {"beside": "model"}),  # of as many heads
]


@pytest.fixture(scope="module")
def subject(embedded: TransformerBridge) -> Subject:
    return Subject(embedded)


@pytest.fixture(scope="module")
def page(subject: Subject) -> Iterator[TestClient]:
    yield from serving(subject)


def serving(subject: Subject) -> Iterator[TestClient]:
    runs = Runs(subject)
    yield TestClient(application(runs, "", "127.0.0.1", None), base_url="http://127.0.0.1:8765")
    runs.close()


def ask(page: TestClient, view: str, **more: Any) -> dict[str, Any]:
    found = page.post("/run", json={"view": view, "prompt": PROMPT, "sure": True, **more})
    assert found.status_code == 200, found.text
    return found.json()


@cache
def loaded(name: str, **options: Any) -> TransformerBridge:
    """A model as the copied code loads it, once: none is shared with the page."""
    return load_model(name, **options)


def copied(shown: dict[str, Any]) -> tuple[dict[str, Any], RecipeResult]:
    """What running the copied code leaves behind."""
    known: dict[str, Any] = {}
    exec(shown["code"], known)
    if "first" not in known:
        return known, RecipeResult((known["result"],))
    return known, RecipeResult((known["first"], known["second"]), known.get("result"))


@pytest.mark.parametrize(
    ("view", "more"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)], ids=str
)
def test_the_copied_code_gives_what_is_shown(
    page: TestClient, subject: Subject, monkeypatch: pytest.MonkeyPatch, view: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr("ostools.models.load_model", loaded)
    assert_copied(page, subject, view, more)


@pytest.mark.slow
@pytest.mark.parametrize(("view", "other", "more"), MODELS, ids=str)
def test_of_two_models_too(
    embedded, monkeypatch: pytest.MonkeyPatch, view: str, other: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr("ostools.models.load_model", loaded)
    subject = Subject(embedded, load_model(other, device="cpu"))
    for page in serving(subject):
        assert_copied(page, subject, view, more)


def assert_copied(page: TestClient, subject: Subject, view: str, more: dict[str, Any]) -> None:
    shown = ask(page, view, **more)
    known, found = copied(shown)
    again = answer(Question.of({"view": view, "prompt": PROMPT, **more}, subject), found)
    assert json.loads(json.dumps(again)) == shown
    assert [json.loads(one["chart"]) is not None for one in shown["charts"]] == [True] * len(found.results)
    sides = [side for side in (shown["tokens"], shown["second"]) if side is not None]
    if "values" in known:
        values = known["values"] if len(sides) == 2 else (known["values"],)
        for side, own in zip(sides, values, strict=True):
            assert [one["value"] for one in side] == [float(value) for value in own]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "more"),
    [("frozen", {"layer": 2}), ("attribution", {"logit": "0"}), ("collapse", SHORT), ("sketch-full", {})],
    ids=str,
)
def test_the_copied_command_gives_what_is_shown(page: TestClient, run, view: str, more: dict[str, Any]) -> None:
    shown = ask(page, view, **more)
    program, *words = shlex.split(shown["command"])
    code, out, _ = run(*words)
    assert (program, code) == ("ostools", 0)
    rows = json.loads(out)["rows"]
    if view == "collapse":
        at_y = [row for row in rows if (row["site"], row["per"], row["norm"]) == ("y", "vector", "l2")]
        (dtype,) = shown["lengths"][0]["dtypes"]
        assert [row["pair_noise"] for row in at_y if row["dtype"] == "bfloat16"] == dtype["noise"]
        return
    column = {"sensitivity": "frobenius_norm", "attribution": "contribution"}
    values = [row[column[VIEWS[view].function]] for row in rows if row.get("part") != "biases"]
    assert values == [one["value"] for one in shown["tokens"]]


COLUMNS = {
    "sensitivity": "frobenius_norm", "attribution": "contribution", "attention": "difference", "collapse": "noise",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "more"),
    [
        ("frozen", {"layer": 1, **WINDOW}),
        ("sketch-full", SECOND),
        ("attention", SECOND),
        ("collapse", {**SHORT, **WINDOW}),
        ("attention", {"beside": "model"}),
        ("attribution", {"beside": "model", "logit": "1"}),
    ],
    ids=str,
)
def test_the_copied_commands_give_what_two_sides_show(
    embedded, monkeypatch: pytest.MonkeyPatch, run, view: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr("ostools.models.load_model", loaded)
    other = "embedded" if view == "attention" else "embedded-short"  # of as many heads
    for page in serving(Subject(embedded, load_model(other, device="cpu"))):
        shown = ask(page, view, **more)
    _, found = copied(shown)
    lines = shown["command"].split("\n")
    for line, result in zip(lines, found.sides if len(lines) > 1 else [found.compared], strict=True):
        program, *words = shlex.split(line)
        code, out, error = run(*words)
        assert (program, code) == ("ostools", 0), error
        column = COLUMNS[VIEWS[view].function]
        assert [row[column] for row in json.loads(out)["rows"]] == result.frame[column].tolist()


@pytest.mark.slow
def test_a_comparison_has_differences_only_where_tokens_correspond(page: TestClient) -> None:
    shown = ask(page, "full", **SECOND)
    first, second = shown["tokens"], shown["second"]
    for one in first:
        if one["partner"] is None:
            assert one["against"] == []
            continue
        other = second[one["partner"]]
        assert (other["token"], other["partner"], other["against"]) == (one["token"], one["position"], one["against"])
        ratio = next(number["value"] for number in one["against"] if number["name"].startswith("Frobenius"))
        assert ratio == pytest.approx(other["value"] / one["value"], rel=1e-12)
    assert [one["token"] for one in first if one["partner"] is None] == ["1"]
    assert sum(one["partner"] is None for one in second) == len(second) - len(first) + 1


@pytest.mark.slow
def test_two_sides_of_which_no_function_speaks_are_held_together_token_by_token(page: TestClient, embedded) -> None:
    pairs = {one["position"]: one["partner"] for one in ask(page, "frozen", **SECOND)["tokens"]}
    parts = [ost.attribution(embedded, text, logit="1").of_tokens["contribution"] for text in (PROMPT, OTHER)]
    shown = ask(page, "attribution", logit="1", **SECOND)
    assert {one["position"]: one["partner"] for one in shown["tokens"]} == pairs
    assert [chart["side"] for chart in shown["charts"]] == [0, 1]
    for one in shown["tokens"]:
        expected = [] if one["partner"] is None else [parts[1][one["partner"]] - parts[0][one["position"]]]
        assert [number["value"] for number in one["against"]] == expected


def test_parts_of_the_logits_of_two_tokens_have_no_difference(page: TestClient) -> None:
    text = "Once upon a"
    shown = ask(page, "attribution", beside="prompt", other=text)
    names = [side[0]["numbers"][0]["name"] for side in (shown["tokens"], shown["second"])]
    assert names[0] != names[1]
    assert [one["against"] for one in shown["tokens"]] == [[]] * len(shown["tokens"])
    assert "two different tokens" in " ".join(shown["notes"])


@pytest.mark.slow
def test_two_sides_are_saved_as_two_files(page: TestClient) -> None:
    asked = {"view": "attribution", "prompt": PROMPT, "logit": "1", "ending": "csv", **SECOND}
    saved = page.post("/save", json=asked)
    assert saved.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(saved.content)) as archive:
        assert archive.namelist() == ["first.csv", "second.csv"]
        alone = page.post("/save", json={**asked, "prompt": OTHER, "beside": ""}).content
        assert archive.read("second.csv") == alone
    assert page.post("/save", json=asked).content == saved.content


def test_beside_an_inactive_mitigation_the_prompt_stands_alone(page: TestClient) -> None:
    wide = ask(page, "frozen", beside="mitigation", other="sliding-window:window=300")
    alone = ask(page, "frozen")
    (note,) = wide["notes"]
    assert note.startswith("The mitigation is inactive, so the prompt is shown alone. ")
    assert {**wide, "notes": []} == alone


def test_a_mitigation_that_changes_nothing_is_called_inactive(page: TestClient) -> None:
    wide = ask(page, "attention", beside="mitigation", other="sliding-window:window=300")
    narrow = ask(page, "attention", **WINDOW)
    assert ["inactive" in " ".join(shown["notes"]) for shown in (wide, narrow)] == [True, False]
    assert {number["value"] for one in wide["tokens"] for number in one["against"]} == {0.0}


def test_the_grid_has_every_head_and_the_strip_the_one_that_was_chosen(page: TestClient, embedded) -> None:
    last = ost.attention(embedded, PROMPT).last
    shown = ask(page, "attention", layer=3, head=1, token=4)
    assert shown["heads"]["weights"] == last[..., 4].tolist()
    assert [one["value"] for one in shown["tokens"]] == last[3, 1].tolist()
    mean = [one["value"] for one in ask(page, "attention", layer=-1, head=1)["tokens"]]
    assert mean == pytest.approx([math.fsum(column) / len(column) for column in last[:, 1].T.tolist()], rel=1e-6)


@pytest.mark.slow
def test_the_lengths_are_those_of_the_collapse(page: TestClient, embedded: TransformerBridge) -> None:
    asked = {"longest": 24, "dtypes": ["float32", "bfloat16"]}
    (shown,) = ask(page, "collapse", **asked)["lengths"]
    result = ost.collapse(embedded, prompt=PROMPT, lengths=range(1, 25), dtypes=tuple(asked["dtypes"]))
    frame: Any = result.frame
    ends: Any = result.verdicts()
    assert shown["lengths"] == list(range(1, 25))
    for one in shown["dtypes"]:
        rows = frame[(frame["dtype"] == one["dtype"]) & (frame["site"] == "y")]
        rows = rows[(rows["per"] == "vector") & (rows["norm"] == "l2")].sort_values("length")
        assert one["noise"] == rows["pair_noise"].tolist()
        assert one["hidden"] == ((rows["float64_distance"] < rows["pair_noise"]) | (rows["mean"] == 0)).tolist()
        end = ends[(ends["dtype"] == one["dtype"]) & (ends["site"] == "y")].iloc[0]
        assert (one["status"], one["from"] is None) == (
            end["status"],
            bool(ends.isna().loc[end.name, "first"]),
        )
