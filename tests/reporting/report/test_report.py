"""The whole report on tiny models: every section whose data exist and no other, nothing from outside, nothing half-written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ostools.ground.errors import InputError
from ostools.ground.pooling import bins_of
from ostools.measure import Collapse, Sensitivity, collapse
from ostools.measure.attention.attention import Attention
from ostools.measure.probes.splits import TESTS
from ostools.models import encode
from ostools.models.shape import Shape
from ostools.reporting.findings.probes import failure_stage_findings
from ostools.reporting.report.extent import FORMATS, NAMES, only_by_name
from ostools.reporting.report.measuring import measure
from ostools.reporting.report.rendering import render_report
from ostools.reporting.report.report import lengths_text, report
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section
from ostools.reporting.sections.measurements import LeftOut, Measurements
from tests.checkpoints import tiny_model, trained
from tests.reporting.made import HOSTILE, made_sensitivity
from tests.reporting.page.test_page import Parsed, assert_nothing_gets_out_or_in

pytestmark = pytest.mark.slow  # each report measures everything that it shows
LENGTHS = range(1, 13)
JUDGED = (4, 5, 6, 7, 8)
"""What fits the context of a tiny model."""
MODULE, ASKED = (sys.modules[f"ostools.reporting.report.{name}"] for name in ("measuring", "extent"))
MEASURED = ["collapse", "precision", "position", "sensitivity", "layers", "attention", "failure-stage"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a tiny Gemma with a hostile prompt."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    prompt = "".join(HOSTILE[:6]) + " 1110?"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ASKED, "FULL", replace(ASKED.FULL, answer_lengths=(4, 6), answer_seeds=(0, 1)))
        patch.setattr(ASKED, "FAILURE_STAGE_LENGTHS", JUDGED)
        return report(tiny_model("gemma"), prompt=prompt, out=path, lengths=LENGTHS)


@pytest.fixture(scope="module")
def text(written: Path) -> str:
    return written.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Parsed:
    return Parsed(text)


@pytest.fixture(scope="module")
def found() -> Measurements:
    """What can be measured on a tiny model without its answers."""
    model = tiny_model("gemma")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ASKED, "FAILURE_STAGE_LENGTHS", JUDGED)
        return measure(model, encode(model, "1110"), list(LENGTHS), MEASURED)


def sections(page: Parsed) -> list[str]:
    return [attributes["id"] or "" for tag, attributes in page.elements if tag == "section" and "id" in attributes]


def present(found: Measurements) -> list[str]:
    """The sections whose data are there."""
    return [name for name, build in SECTIONS.items() if build(found) is not None]


def test_every_section_is_there_in_order(page: Parsed) -> None:
    """A random model answers nothing that can be read: what it answers, and what helps, are left out."""
    assert sections(page) == ["findings", "run", *MEASURED, "reading", "again"]


def test_the_navigation_leads_to_every_section_and_nowhere_else(page: Parsed) -> None:
    links = [link for link in page.attributes("href") if link and link.startswith("#")]
    ids = set(page.attributes("id"))
    assert {link[1:] for link in links} <= ids
    assert {f"#{name}" for name in sections(page)} <= set(links)


def test_it_can_ask_the_network_for_nothing_and_runs_only_its_own_scripts(text: str) -> None:
    found = assert_nothing_gets_out_or_in(text, scripts=3)
    # On the first screen the pair and the position. Four collapse curves, the precisions, the position, the profile, its
    # shape, the layers, the heat map of attention, the fates.
    assert len(found.data) == 13


def test_the_prompt_is_shown_as_it_is(page: Parsed) -> None:
    for hostile in HOSTILE[:3]:
        assert hostile in page.text


def test_every_figure_has_words_for_those_who_do_not_see_it(page: Parsed) -> None:
    figures = [attributes for tag, attributes in page.elements if attributes.get("role") == "img"]
    assert len(figures) == 13
    for attributes in figures:
        assert len(attributes["aria-label"] or "") > 60
        assert any(character.isdigit() for character in attributes["aria-label"] or "")
    assert {"header", "main", "nav", "footer"} <= {tag for tag, _ in page.elements}
    assert ("html", {"lang": "en"}) in page.elements
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(page.attributes("aria-labelledby")) <= set(ids)


# --- sections by name


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("evaluate", "mitigations")])
def test_a_section_is_made_of_what_it_needs_alone(
    found: Measurements, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("gemma")
    monkeypatch.setattr(ASKED, "FAILURE_STAGE_LENGTHS", JUDGED)
    chosen = measure(model, encode(model, "1110"), list(LENGTHS), [name])
    assert present(chosen) == [name]
    assert chosen.provenance.parameters["sections"] == [name]
    assert chosen.left_out == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluate", "mitigations"])
def test_what_takes_answers_is_there_for_a_model_that_answers(name: str) -> None:
    model = trained("embedded")
    chosen = measure(model, encode(model, "1110"), list(LENGTHS), [name])
    assert present(chosen) == [name]
    assert chosen.left_out == []


def test_layers_come_from_the_same_passes_as_the_embeddings(found: Measurements) -> None:
    assert found.layers is not None
    assert found.sensitivity is not None
    assert found.layers.provenance is found.sensitivity.provenance
    assert set(found.sensitivity.frame["layer"]) == {0}
    assert set(found.layers.frame["layer"]) == {0, 1, 2}


def test_the_section_on_failure_stage_says_what_was_asked_and_what_is_in_the_result(found: Measurements) -> None:
    assert found.failure_stage is not None
    section = SECTIONS["failure-stage"](found)
    assert section is not None
    (part,) = section.parts
    shown = part.tables[0].rows
    frame = found.failure_stage.frame
    assert [row[0] for row in shown] == [str(n) for n in JUDGED] == [str(n) for n in frame["length"]]
    assert [row[2] for row in shown] == frame["verdict"].tolist()
    given = found.failure_stage.provenance.parameters
    assert part.notes[0].startswith(f"Asked: {given['prompts']} prompts of {len(given['seeds'])} drawn sequences, ")
    probed = found.failure_stage.probes.frame
    measured = probed[(probed["control"] == "none") & (probed["site"] != "logits")]
    rows = part.more[0].tables[0].rows
    assert len(rows) == len(measured)
    assert list(dict.fromkeys(row[2] for row in rows)) == [test for test in TESTS if test in set(measured["test"])]
    assert [row[1] for row in rows if row[0] == "length alone"] == ["–"] * list(measured["site"]).count("length")
    # The page says all of it below the chart, and the chart's own shorter words nowhere.
    assert part.figure is not None
    assert (part.findings, part.figure.notes) == (failure_stage_findings(found.failure_stage), [])


def test_what_is_measured_unasked_goes_by_size() -> None:
    """Sizes of Gemma 7B, whose sensitivity of every layer would take hours on a CPU, and none on a GPU."""
    sizes = {"n_layers": 28, "d_model": 3072, "n_heads": 16, "n_key_value_heads": 16, "d_head": 256, "d_mlp": 24576}
    large = replace(Shape.of(tiny_model("gemma")), **sizes)
    assert set(only_by_name(large, 64)) == {"sensitivity", "failure-stage"}
    assert set(only_by_name(large, 512)) == {"sensitivity", "layers", "failure-stage"}
    assert set(only_by_name(replace(large, device="cuda"), 512)) == set()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["colapse"], "unknown section 'colapse': did you mean 'collapse'"),
        ([], "at least one section of collapse, precision"),
    ],
)
def test_an_unknown_section_is_refused_with_the_nearest(tmp_path: Path, given: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        report(tiny_model("gemma"), sections=given, out=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_lengths_are_written_as_the_command_line_reads_them() -> None:
    from ostools.ground.whole_numbers import parse_lengths

    for lengths in ([1, 2, 3, 8, 16, 17], [5], list(range(1, 257)), [1, 3, 5]):
        assert parse_lengths(lengths_text(lengths)) == lengths


# --- what is left out


@pytest.mark.parametrize("name", list(SECTIONS))
def test_a_section_without_data_is_absent(found: Measurements, name: str) -> None:
    nothing = Measurements(found.provenance, found.prompt, found.tokens)
    assert SECTIONS[name](nothing) is None
    assert (SECTIONS[name](found) is not None) is (name in MEASURED)


def test_a_prompt_that_does_not_fit_leaves_its_curves_out() -> None:
    model = tiny_model("gemma", context=40)
    found = measure(model, encode(model, "1110"), list(LENGTHS), ["collapse", "sensitivity"])
    assert found.collapses == []
    assert present(found) == ["sensitivity"]
    assert sum("40 tokens" in one.reason and one.section == "collapse" for one in found.left_out) == 4
    shown = Parsed(render_report(found, "ostools report")).text
    assert all(one.reason.replace("`", "") in " ".join(shown.split()) for one in found.left_out)


def test_a_format_that_overflows_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflowing(model: Any, name: str, *, dtypes: tuple[str, ...], **rest: Any) -> Collapse:
        if "float16" in dtypes:
            raise InputError("figure-5c: y in float16 is not finite at length 3")
        return collapse(model, name, dtypes=dtypes, **rest)

    monkeypatch.setattr(MODULE, "collapse", overflowing)
    model = tiny_model("gemma")
    found = measure(model, encode(model, "1110"), list(LENGTHS), ["precision"])
    assert found.precision is not None
    assert list(dict.fromkeys(found.precision.frame["dtype"])) == [name for name in FORMATS if name != "float16"]
    (left,) = found.left_out
    assert left.section == "precision"
    assert "in float16" in left.reason


def test_a_cast_that_is_refused_is_not_retried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*arguments: Any, **options: Any) -> Any:
        raise InputError("y in bfloat16 is not finite at length 3")

    monkeypatch.setattr(MODULE, "collapse", refusing)
    model = tiny_model("gemma")
    found = measure(model, encode(model, "1110"), list(LENGTHS), ["precision"])
    assert found.precision is None
    assert len(found.left_out) == 4


def test_every_layer_too_much_leaves_the_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = MODULE.sensitivity

    def small(model: Any, prompt: Any, *, layers: Any = (0,), **rest: Any) -> Any:
        if layers == "all":
            raise InputError("the forecast does not fit into the memory")
        return real(model, prompt, layers=layers, **rest)

    monkeypatch.setattr(MODULE, "sensitivity", small)
    model = tiny_model("gemma")
    found = measure(model, encode(model, "1110"), list(LENGTHS), ["layers", "sensitivity"])
    assert found.layers is None
    assert found.sensitivity is not None
    assert found.left_out[0] == LeftOut("layers", "the forecast does not fit into the memory")


def test_a_model_without_numbers_still_says_why() -> None:
    model = tiny_model("gemma", fresh=True)
    with torch.no_grad():
        model.blocks[0].mlp.gate.weight.fill_(float("nan"))
    asked = ["collapse", "sensitivity", "attention"]
    found = measure(model, encode(model, "1110"), list(LENGTHS), asked)
    assert found.empty
    assert "Nothing could be measured" in Parsed(render_report(found, "ostools report")).text
    assert {one.section for one in found.left_out} == set(asked)


@pytest.mark.parametrize("name", ["attention", "failure_stage"])
def test_what_has_no_headline_was_measured_all_the_same(found: Measurements, name: str) -> None:
    shown = ("collapses", "casts", "evaluations", "left_out")
    single = (
        "precision",
        "position",
        "sensitivity",
        "layers",
        "profile",
        "comparison",
        "attention",
    )
    single += ("failure_stage",)
    alone = replace(found, **{one: [] for one in shown}, **{one: None for one in single if one != name})
    words = Parsed(render_report(alone, "ostools report")).text
    assert "Nothing could be measured" not in words
    assert "has no headline of its own" in words
    assert ("The prompt of attention" in words) is (name == "attention")
    assert ("The prompt of" in words) is (name == "attention")


def test_a_finding_that_is_missing_says_why(found: Measurements) -> None:
    """What was asked for and refused is named once, with its own reason; what nobody asked for is not missed."""
    reasons = [
        LeftOut("evaluate", "none could be read"),
        LeftOut("mitigations", "none either"),
        LeftOut("collapse", "no"),
    ]
    asked = replace(found.provenance, parameters={"sections": ["evaluate", "mitigations"]})
    shown = Parsed(render_report(replace(found, collapses=[], provenance=asked, left_out=reasons), "ostools")).text
    assert "There is no finding on evaluation. The reason: none could be read." in shown
    assert "There is no finding on mitigations. The reason: none either." in shown
    assert "There is no finding on collapse" not in shown
    assert "There is no finding on sensitivity" not in shown
    assert "The prompt of sensitivity, layers and attention" in shown
    both = replace(found.provenance, parameters={"sections": ["collapse", "precision"]})
    cast = replace(found, collapses=[], casts=[], precision=None, provenance=both, left_out=reasons[2:])
    shown = Parsed(render_report(cast, "ostools")).text
    assert "There is no finding on collapse. The reason: no." in shown


@pytest.mark.parametrize("name", ["missing/report.html", "report.pdf"])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("measured before the path was checked")

    monkeypatch.setattr(sys.modules["ostools.reporting.report.report"], "measure", never)
    with pytest.raises(InputError, match=r"^out "):
        report(tiny_model("gemma"), out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_report_out_of_nothing_is_refused(tmp_path: Path) -> None:
    """A model whose numbers are not finite: no page that looks like a report is left behind."""
    model = tiny_model("llama", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("nan")
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match=r"nothing could be measured.*not finite"):
        report(model, prompt="11110", out=out, lengths=[1, 2], sections=["collapse", "sensitivity"])
    assert not out.exists()


def test_a_prompt_that_cannot_be_encoded_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 256 tokens"):
        report(tiny_model("gemma"), prompt="1" * 300, out=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_with_nul_is_no_command_line() -> None:
    words = "A command line cannot hold the NUL in this prompt"
    (part,) = again_section("ostools report", "a\x00b").parts
    assert words in part.findings[0]
    (part,) = again_section("ostools report", "ab").parts
    assert part.findings == ()


# --- the rest


def test_many_heads_and_layers_stay_small(found: Measurements) -> None:
    """64 layers of 32 heads at 256 tokens: with everything else, some 2 MB, the page stays below 8."""
    layers, heads, pos = 64, 32, 256
    weights = torch.full((layers, heads, pos), 0.1).double().softmax(-1) + torch.linspace(0, 1e-3, pos)
    tokens = pd.DataFrame(
        {"position": range(pos), "token_id": 5, "token": [f"t{i}" for i in range(pos)], "item": pd.NA}
    )
    frame = pd.concat([tokens] * (layers * heads), ignore_index=True).assign(weight=weights.flatten().numpy())
    bins = bins_of(pos, 64)
    squares = torch.linspace(0, 1, layers * heads * len(bins) ** 2).view(layers, heads, len(bins), len(bins))
    attention = Attention(frame, found.provenance, squares, bins)
    tables = [
        made_sensitivity({"full": [1.0 + i for i in range(pos)]}).frame.assign(layer=i) for i in range(layers + 1)
    ]
    deep = Sensitivity(pd.concat(tables, ignore_index=True), found.provenance)
    small = Measurements(found.provenance, "text", found.tokens, layers=deep, attention=attention)
    text = render_report(small, "ostools report")
    assert len(text.encode()) < 6e6
    assert "24 of 65 layers, evenly spread" in Parsed(text).text
    assert "32 heads of 2048" in Parsed(text).text


def test_progress_only_grows_and_ends() -> None:
    told: list[tuple[int, int]] = []
    model = tiny_model("gemma")
    measure(model, encode(model, "1110"), list(LENGTHS), MEASURED, lambda done, total: told.append((done, total)))
    done = [step for step, _ in told]
    assert done == sorted(done)
    assert told[-1][0] == told[-1][1]
