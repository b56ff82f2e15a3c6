"""The whole report on tiny models: every section whose data exist, nothing from outside, nothing half-written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ostools.errors import InputError
from ostools.models import encode
from ostools.reporting import report
from ostools.reporting.report import measure
from ostools.reporting.sections import _values, render_report
from tests.checkpoints import tiny_model
from tests.reporting.made import HOSTILE, made_sensitivity
from tests.reporting.test_page import Parsed, assert_nothing_gets_out_or_in

LENGTHS = range(1, 13)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a tiny Gemma with a hostile prompt."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    prompt = "".join(HOSTILE[:6]) + " 1110?"
    return report(tiny_model("gemma"), prompt=prompt, out=path, lengths=LENGTHS)


def sections(text: str) -> list[str]:
    return [
        attributes["id"] or "" for tag, attributes in Parsed(text).elements if tag == "section" and "id" in attributes
    ]


def test_every_section_is_there(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert sections(text) == ["summary", "run", "collapse", "sensitivity", "looks", "caveats", "again"]


def test_it_can_ask_the_network_for_nothing_and_runs_only_its_own_scripts(written: Path) -> None:
    found = assert_nothing_gets_out_or_in(written.read_text(encoding="utf-8"), scripts=3)
    # Four collapse curves, the profile, the heat map.
    assert len(found.data) == 6


def test_the_prompt_is_shown_as_it_is(written: Path) -> None:
    shown = Parsed(written.read_text(encoding="utf-8")).text
    for text in HOSTILE[:3]:
        assert text in shown


def test_the_library_is_there_once(written: Path) -> None:
    libraries = [script for script in Parsed(written.read_text(encoding="utf-8")).executed if len(script) > 500_000]
    assert len(libraries) == 2  # Vega's and circuitsvis'
    assert written.stat().st_size < 4e6


def test_every_figure_has_words_for_those_who_do_not_see_it(written: Path) -> None:
    found = Parsed(written.read_text(encoding="utf-8"))
    figures = [attributes for tag, attributes in found.elements if attributes.get("role") == "img"]
    assert len(figures) == 6
    for attributes in figures:
        assert len(attributes["aria-label"] or "") > 80
        assert any(character.isdigit() for character in attributes["aria-label"] or "")
    assert {"header", "main", "nav", "footer"} <= {tag for tag, _ in found.elements}
    assert ("html", {"lang": "en"}) in found.elements
    ids = found.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(found.attributes("aria-labelledby")) <= set(ids)


def test_provenance_and_command_are_there(written: Path) -> None:
    shown = Parsed(written.read_text(encoding="utf-8")).text
    for words in ("tiny-gemma-0", "GemmaForCausalLM", "float32 on cpu", "eager", "torch 2.", "ostools report --model"):
        assert words in shown


def test_what_cannot_be_measured_is_left_out_and_said(tmp_path: Path) -> None:
    model = tiny_model("gemma", context=40)
    prompt = encode(model, "1110")
    found = measure(model, prompt, list(LENGTHS))
    assert found.collapses == []
    text = render_report(found, "ostools report")
    assert "collapse" not in sections(text)
    assert sum("40 tokens" in reason for reason in found.skipped) == 4
    assert all(reason.split(":")[0] in Parsed(text).text for reason in found.skipped)


def test_a_model_without_numbers_still_says_why(tmp_path: Path) -> None:
    model = tiny_model("gemma")
    prompt = encode(model, "1110")
    with torch.no_grad():
        model.blocks[0].mlp.gate.weight.fill_(float("nan"))
    found = measure(model, prompt, list(LENGTHS))
    text = render_report(found, "ostools report")
    assert "Nothing could be measured" in Parsed(text).text
    assert len(found.skipped) >= 6


def test_float16_that_overflows_costs_only_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules["ostools.reporting.report"]
    real = module.collapse

    def overflowing(model: Any, name: str, *, dtypes: tuple[str, ...], **rest: Any) -> Any:
        if "float16" in dtypes:
            raise InputError("y in float16 is not finite at length 3")
        return real(model, name, dtypes=dtypes, **rest)

    monkeypatch.setattr(module, "collapse", overflowing)
    model = tiny_model("gemma")
    found = measure(model, encode(model, "1110"), list(LENGTHS))
    assert len(found.collapses) == 4
    assert set(found.collapses[0].frame["dtype"]) == {"float32", "bfloat16"}
    assert any("in float16" in reason for reason in found.skipped)


@pytest.mark.parametrize("name", ["missing/report.html", "report.pdf"])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    def never(*arguments: Any) -> Any:
        raise AssertionError("measured before the path was checked")

    monkeypatch.setattr(sys.modules["ostools.reporting.report"], "measure", never)
    with pytest.raises(InputError, match="--out"):
        report(tiny_model("gemma"), out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_that_cannot_be_encoded_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 256 tokens"):
        report(tiny_model("gemma"), prompt="1" * 300, out=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_progress_only_grows_and_ends(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    model = tiny_model("gemma")
    measure(model, encode(model, "1110"), list(LENGTHS), lambda done, total: told.append((done, total)))
    done = [step for step, _ in told]
    assert done == sorted(done)
    assert told[-1][0] == told[-1][1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1600])
def test_a_browser_draws_every_chart_and_asks_for_nothing(written: Path, width: int) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900})
        requests, complaints, alerts = [], [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        tab.goto(written.as_uri())
        tab.wait_for_function("document.querySelectorAll('figure[data-drawn=yes]').length === 6")
        tab.wait_for_selector("#heads canvas, #heads img")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert requests == [written.as_uri()]
    assert complaints == []
    assert alerts == []
    assert wide <= width


def test_a_report_out_of_nothing_is_refused(tmp_path: Path) -> None:
    """A model whose numbers are not finite: no page that looks like a report is left behind."""
    model = tiny_model("llama")
    model.blocks[0].mlp.out.weight[0, 0] = float("nan")
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match=r"nothing could be measured.*not finite"):
        report(model, prompt="11110", out=out, lengths=[1, 2])
    assert not out.exists()


def test_the_table_of_norms_says_whether_they_are_measured() -> None:
    exact = made_sensitivity({"full": [1.0, 2.0]})
    assert _values(exact).columns == ["position", "token", "measured, full"]
    estimated = _values(replace(exact, frame=exact.frame.assign(method="estimate")))
    assert estimated.columns == ["position", "token", "estimated, full"]
    assert "Frobenius" in estimated.caption
    assert [row[-1] for row in estimated.rows] == ["2", "4"]
