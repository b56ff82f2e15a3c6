"""The copied code and the copied command give what the page shows, in every view and with everything that can be chosen."""

from __future__ import annotations

import json
import math
import shlex
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
from ostools.explorer.recipe import Found
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
    ("full", {"towards": "1"}),
    ("full", WINDOW),
    ("predicted-frozen", SECOND),
    ("flow", {"layer": 3}),
    ("attention", {"layer": 2}),
    ("attention", {"token": 4, **SECOND}),
    ("contributions", SECOND),
    ("flow", {"layer": 1, **WINDOW}),
    ("chain", SECOND),
    ("collapse", {**SHORT, **HINT}),
    ("collapse", {**SHORT, "item": " and"}),
]
MODELS = [
    ("predicted-full", "embedded-short", {"beside": "model", "dtype": "bfloat16"}),
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


def copied(shown: dict[str, Any]) -> tuple[dict[str, Any], Found]:
    """What running the copied code leaves behind."""
    known: dict[str, Any] = {}
    exec(shown["code"], known)
    if "first" not in known:
        return known, Found((known["result"],))
    return known, Found((known["first"], known["second"]), known.get("result"))


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
    [("frozen", {"layer": 2}), ("contributions", {"towards": "0"}), ("collapse", SHORT), ("predicted-full", {})],
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
        assert [row["noise"] for row in at_y if row["dtype"] == "bfloat16"] == dtype["noise"]
        return
    column = {"sensitivity": "frobenius_norm", "contributions": "contribution", "path_sum": "value"}
    values = [row[column[VIEWS[view].function]] for row in rows if row.get("part") != "biases"]
    assert values == [one["value"] for one in shown["tokens"]]


@pytest.mark.slow
def test_a_comparison_has_no_command_and_differences_only_where_tokens_correspond(page: TestClient) -> None:
    shown = ask(page, "full", **SECOND)
    assert shown["command"] == ""
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
    ends: Any = result.collapse_lengths()
    assert shown["lengths"] == list(range(1, 25))
    for one in shown["dtypes"]:
        rows = frame[(frame["dtype"] == one["dtype"]) & (frame["site"] == "y")]
        rows = rows[(rows["per"] == "vector") & (rows["norm"] == "l2")].sort_values("length")
        assert one["noise"] == rows["noise"].tolist()
        assert one["hidden"] == ((rows["float64_distance"] < rows["noise"]) | (rows["mean"] == 0)).tolist()
        end = ends[(ends["dtype"] == one["dtype"]) & (ends["site"] == "y")].iloc[0]
        assert (one["status"], one["from"] is None) == (
            end["status"],
            bool(ends.isna().loc[end.name, "collapse_length"]),
        )
