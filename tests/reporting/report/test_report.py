"""The whole report on tiny models: every section whose data exist and no other, nothing from
outside, nothing half-written.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ostools as ost
from ostools.models.shape import Shape
from ostools.reporting.report.rendering import render_report
from ostools.reporting.report.report import lengths_text, measure, only_by_name, report
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.extent import NOT_QUICK, extent_of
from ostools.reporting.sections.records import Measurements
from tests.checkpoints import tiny_model, trained
from tests.reporting.page.test_page import Parsed, assert_nothing_gets_out_or_in
from tests.reporting.reports import JUDGED, LENGTHS, hostile_report

pytestmark = pytest.mark.slow  # each report measures everything that it shows
CURVES, PROFILES, ASKED = (
    sys.modules[f"ostools.reporting.sections.{name}"]
    for name in ("collapse", "sensitivity", "extent")
)
MEASURED = [
    "collapse",
    "precision",
    "position",
    "sensitivity",
    "layers",
    "attention",
    "failure-stage",
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_report(tmp_path_factory)


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
        return measure(model, ost.encode(model, "1110"), list(LENGTHS), MEASURED)


def sections(page: Parsed) -> list[str]:
    return [
        attributes["id"] or ""
        for tag, attributes in page.elements
        if tag == "section" and "id" in attributes
    ]


def present(found: Measurements) -> list[str]:
    """The sections whose data are there."""
    return [name for name, record in SECTIONS.items() if record.section(found) is not None]


def test_nothing_is_left_out_of_it(text: str) -> None:
    assert not re.search(r'class="note">[^<]*could not be drawn', text)


def test_every_section_is_there_in_order(page: Parsed) -> None:
    """A random model answers nothing that can be read: its texts are shown, and what helps is left
    out.
    """
    *before, stage = MEASURED
    assert sections(page) == ["findings", "run", *before, "evaluate", stage, "reading", "again"]


def test_it_can_ask_the_network_for_nothing_and_runs_only_its_own_scripts(text: str) -> None:
    found = assert_nothing_gets_out_or_in(text, scripts=3)
    # On the first screen the pair, the position and the answers. Four collapse curves, the
    # precisions, the position, the profile, its shape, the layers, the heat map of attention, the
    # answers, the fates, the probes.
    assert len(found.data) == 16


# --- sections by name


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_made_of_what_it_needs_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes answers, of a model that answers."""
    model = trained("embedded") if name in ("evaluate", "mitigations") else tiny_model("gemma")
    monkeypatch.setattr(ASKED, "FAILURE_STAGE_LENGTHS", JUDGED)
    chosen = measure(model, ost.encode(model, "1110"), list(LENGTHS), [name])
    assert present(chosen) == [name]
    assert (chosen.provenance.parameters["sections"], chosen.left_out) == ([name], [])


def test_what_is_measured_unasked_goes_by_size() -> None:
    """Sizes of Gemma 7B, whose sensitivity of every layer would take hours on a CPU, and none on a
    GPU.
    """
    large = replace(
        Shape.of(tiny_model("gemma")),
        n_layers=28,
        d_model=3072,
        n_heads=16,
        n_key_value_heads=16,
        d_head=256,
        d_mlp=24576,
    )
    dear = {"precision", "sensitivity", "failure-stage", "mitigations"}
    assert set(only_by_name(large, 64)) == dear
    assert set(only_by_name(large, 512)) == {*dear, "layers"}
    assert set(only_by_name(replace(large, device="cuda"), 512)) == set()


def test_a_quick_report_measures_less_and_says_so(tmp_path: Path) -> None:
    """Less of each kind, and the sections that it leaves out; one of them is there by its name."""
    model = tiny_model("gemma")
    text = report(model, quick=True, prompt="1110", out=tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    for name in NOT_QUICK:
        assert f"{name}: a quick report leaves it out" in text
    assert "This report is a quick one" in text
    assert "--quick" in text
    assert "Sensitivity by position over rotated passages." in text
    assert "beside the same architecture before training" not in text
    named = measure(
        model,
        ost.encode(model, "1110"),
        extent_of(Shape.of(model), quick=True).lengths(12),
        ["precision"],
        quick=True,
    )
    assert (present(named), named.left_out) == (["precision"], [])


def test_what_cannot_be_measured_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    for sections, said in (
        (["colapse"], "unknown section 'colapse': did you mean 'collapse'"),
        ([], "section: expected at least one, found none"),
        (None, "at most 256 tokens"),
    ):
        with pytest.raises(ost.InputError, match=said):
            report(
                tiny_model("gemma"), prompt="1" * 300, sections=sections, out=tmp_path / "r.html"
            )
    assert list(tmp_path.iterdir()) == []


def test_lengths_are_written_as_the_command_line_reads_them() -> None:
    from ostools.ground.arguments import parse_lengths

    for lengths in ([1, 2, 3, 8, 16, 17], [5], list(range(1, 257)), [1, 3, 5]):
        assert parse_lengths(lengths_text(lengths)) == lengths


# --- what is left out


def test_a_prompt_that_does_not_fit_leaves_its_curves_out() -> None:
    model = tiny_model("gemma", context=40)
    found = measure(model, ost.encode(model, "1110"), list(LENGTHS), ["collapse", "sensitivity"])
    assert (found.of("collapse"), present(found)) == ([], ["sensitivity"])
    assert sum("40 tokens" in why and name == "collapse" for name, why in found.left_out) == 4
    shown = Parsed(render_report(found, "ostools report")).text
    assert all(why.replace("`", "") in " ".join(shown.split()) for _, why in found.left_out)


def test_a_report_out_of_nothing_is_refused(tmp_path: Path) -> None:
    """A model whose numbers are not finite: no page that looks like a report is left behind."""
    model = tiny_model("llama", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("nan")
    out = tmp_path / "report.html"
    with pytest.raises(ost.InputError, match=r"nothing could be measured.*not finite"):
        report(model, prompt="11110", out=out, lengths=[1, 2], sections=["collapse", "sensitivity"])
    assert not out.exists()
