"""The report of two models: each model's numbers are those it has alone, and what cannot be
compared is not.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.reporting.report import rendering
from ostools.reporting.report.rendering import first_screen, render_report, sections_of
from ostools.reporting.report.report import report
from ostools.reporting.sections.records import Measurements
from ostools.results import Provenance
from tests.checkpoints import tiny_model
from tests.cli.asking import assert_refused
from tests.reporting.made import (
    HOSTILE,
    PROVENANCE,
    made_collapse,
    made_evaluation,
    made_sensitivity,
)
from tests.reporting.page.test_page import Parsed

Run = Callable[..., tuple[int, str, str]]


def provenance(name: str) -> Provenance:
    model: Any = PROVENANCE.model
    shape = ("n_parameters", "n_layers", "d_model", "n_heads", "n_key_value_heads", "d_vocab")
    described = {
        "revision": None,
        "architecture": "made",
        "device": "cpu",
        "attention_implementation": "eager",
    }
    names = {"name": name, "weight_hash": f"hash of {name.rpartition('/')[2]}"}
    return replace(PROVENANCE, model={**model, **dict.fromkeys(shape, 1), **described, **names})


NORMS = made_sensitivity({"full": (1.0, 2.0, 6.0)})
PAIRS = made_collapse(lambda n: 1 / n, lengths=range(1, 9), noise={"bfloat16": 0.2})


def made(name: str, **found: Any) -> Measurements:
    answers = made_evaluation([{"length": 2, "correct": True}, {"length": 8}])
    given: Any = {"collapses": [PAIRS], "sensitivity": NORMS, "evaluations": [answers]}
    return Measurements(provenance(name), "text", **(given | found))


def test_each_column_is_what_the_report_of_that_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[Any] = []
    monkeypatch.setattr(
        rendering, "render_sections", lambda title, lead, sections: pages.append(sections) or ""
    )
    both = made("one"), made("two", evaluations=[])
    render_report(both, "ostools report")
    columns, charts = (part.columns for part in pages[0][0].parts)
    for place, (found, column, small) in enumerate(zip(both, columns, charts, strict=True), 1):
        alone = first_screen(found, sections_of(found))
        assert column.title == found.provenance.model["name"]
        assert (column.headlines, column.strip, column.findings) == (
            alone.headlines,
            alone.strip,
            alone.findings,
        )
        assert (column.suffix, small.suffix) == (f"-{place}", f"-{place}")
        assert [chart.name for chart in small.overview] == [chart.name for chart in alone.overview]


@pytest.mark.slow
def test_hostile_names_stay_text_and_every_anchor_is_there_once() -> None:
    page = Parsed(render_report((made(HOSTILE[0]), made(HOSTILE[1])), "ostools report"))
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.attributes("href") if link and link.startswith("#")} <= set(
        ids
    )


class Model(TransformerBridge):
    def __init__(self) -> None:
        pass


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that a report measures, in place of its measurements."""
    seen: list[Any] = []

    def measuring(model: Model, *given: Any) -> Measurements:
        assert all(one() is None for one in seen), "a model is held when the next is asked for"
        seen.append(weakref.ref(model))
        return made("ab"[len(seen) - 1])

    monkeypatch.setattr(sys.modules["ostools.reporting.report.report"], "_measured", measuring)
    return seen


@pytest.mark.parametrize(("count", "words"), [(1, "found 1"), (0, "found 0"), (3, "found more")])
def test_two_models_are_expected(
    measured: list[Any], count: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        report(models=(Model() for _ in range(count)), out=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_model_is_held_when_the_next_is_asked_for(measured: list[Any], tmp_path: Path) -> None:
    report(models=(Model() for _ in range(2)), out=tmp_path / "r.html")
    assert len(measured) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "a", "--model", "b", "--model", "c"), "found a, b, c"),
        (("--model", "embedded", "--model", "embedded"), "found embedded, embedded"),
        (("--model", "embedded", "--model", "embedded-short", "--run", "."), "leave out --model"),
        (
            ("--model", "embedded", "--model", "embedded-short", "--ids", "1,2"),
            "expected one --model, found two",
        ),
        (
            ("--model", "embedded", "--model", "embedded-short", "--prompt", "1", "--chat"),
            "expected one --model, found two",
        ),
        (("--model", "embedded", "--model", "nowhere/at-all-"), "nowhere"),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_the_command_refuses_in_one_line(
    run: Run, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    assert_refused(run("report", *arguments), words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_page_of_two_models(tmp_path: Path) -> None:
    models = (tiny_model(name) for name in ("gemma", "llama"))
    path = report(
        models=models,
        prompt="1110",
        out=tmp_path / "r.html",
        sections=["collapse"],
        lengths=range(1, 9),
    )
    page = Parsed(path.read_text(encoding="utf-8"))
    names = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    assert names == ["findings", "run-1", "run-2", "collapse-1", "collapse-2", "reading", "again"]
