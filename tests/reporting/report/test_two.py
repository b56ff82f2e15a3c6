"""The report of two models: each model's numbers are those it has alone, and what cannot be
compared is not.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.reporting.report import rendering
from ostools.reporting.report.rendering import first_screen, render_report, sections_of
from ostools.reporting.report.report import measure_two, report
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


def made(name: str, tokens: tuple[str, ...] = ("a", "b"), **found: Any) -> Measurements:
    answers = made_evaluation([{"length": 2, "correct": True}, {"length": 8}])
    given: Any = {"collapses": [PAIRS], "sensitivity": NORMS, "evaluations": [answers]}
    return Measurements(provenance(name), "text", tokens, **(given | found))


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
def test_a_path_is_not_the_name_of_a_model() -> None:
    """Neither in the page's title nor in a headline; the command alone has it."""
    folder = "/home/someone/models/my-model"
    one, two = (
        render_report([made(folder)], "ostools report"),
        render_report((made(folder), made("b")), "ostools report"),
    )
    assert "<h1>my-model</h1>" in one
    assert "<title>my-model</title>" in one
    assert "<h1>my-model and b</h1>" in two
    assert folder not in one + two


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


@pytest.mark.parametrize(
    ("names", "words"),
    [(["a"], "found 1"), ([], "found 0"), (["a", "b", "c"], "more"), (["a", "a"], "found a twice")],
)
def test_two_models_that_differ_are_expected(names: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        measure_two(
            (Model() for _ in names),
            lambda model, place: Measurements(provenance(names[place]), "text", ()),
        )


def test_no_model_is_held_when_the_next_is_asked_for() -> None:
    seen: list[Any] = []

    def models() -> Iterator[TransformerBridge]:
        for _ in range(2):
            assert all(one() is None for one in seen)
            model = Model()
            seen.append(weakref.ref(model))
            yield model
            del model

    measure_two(models(), lambda model, place: Measurements(provenance("ab"[place]), "text", ()))
    assert len(seen) == 2


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
            "--chat: expected one --model",
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


@pytest.mark.usefixtures("no_model")
def test_a_dry_run_forecasts_both(run: Run) -> None:
    code, out, err = run("report", "--model", "embedded", "--model", "embedded-short", "--dry-run")
    assert (code, out) == (0, "")
    assert len(re.findall(r"^forecast: ", err, re.MULTILINE)) == 2


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
