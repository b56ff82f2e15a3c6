"""Sensitivity by position in natural text, with the tokens' identity taken out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ostools.experiments import position_effect
from ostools.ground.words import number
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.unloaded import Unloaded
from ostools.reporting.findings.effects import FALLS_BEHIND, contrast_words, position_headline
from ostools.reporting.page.section import FOUND, NOT_FOUND, UNTESTED, Headline, More, Part, table_from
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.extent import PASSAGE_TOKENS, PASSAGES
from ostools.reporting.sections.records import Measurements, Plan, ReportSection, Run, Step, Verdict

LEAD = (
    "Over-squashing says that the last token hears some places of a prompt less than others. In one prompt, place and content "
    "are confounded. Here natural passages are rotated by thirds, so that every token stands once at the start, once in the "
    "middle and once at the end: what is left is the place alone."
)


def _measure(run: Run) -> None:
    # By a sketch: its error is small beside the intervals over hundreds of tokens.
    extent = run.plan.extent
    sizes: Any = {"passages": PASSAGES, "tokens": PASSAGE_TOKENS}
    sizes |= {"cotangents": extent.cotangents, "untrained": extent.untrained}
    run.measured.position = run.measure(
        "position", 20, lambda part: position_effect(run.model, method="sketch", progress=part, **sizes)
    )


def _memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    """Of the longest passage, beside the copy of the model with random weights where there is one."""
    options: dict[str, Any] = {"method": "sketch", "cotangents": plan.extent.cotangents}
    copy_bytes = model.copy_bytes if plan.extent.untrained else 0
    yield sensitivity_memory(model, PASSAGE_TOKENS + 2, linearisations="full", **options) + copy_bytes


def _state(measured: Measurements) -> str:
    """Decided on natural text whose tokens are rotated: one prompt confounds place and content."""
    if measured.position is None:
        return UNTESTED
    return FOUND if measured.position.verdict in FALLS_BEHIND else NOT_FOUND


def _headlines(measured: Measurements) -> list[Headline | None]:
    return [] if measured.position is None else [position_headline(measured.position)]


def _parts(measured: Measurements) -> list[Part]:
    effect = measured.position
    if effect is None:
        return []
    headline = position_headline(effect)
    caption = "Sensitivity by position over rotated passages"
    if effect.provenance.parameters["untrained"]:
        caption += ", beside the same architecture before training"
    columns: dict[str, Any] = {
        "of": "source",
        "passages": "passages",
        "first third over the middle": lambda row: _times(row, "start"),
        "last third over the middle": lambda row: _times(row, "end"),
        "shape": "shape",
    }
    title = "How many times the middle third's norm, with 95% intervals over passages"
    table = table_from(title, effect.contrasts.to_dict("records"), columns)
    sentences, aloud = [f"{headline.verdict} {headline.text}"], " ".join(contrast_words(effect))
    more = [More("The contrasts in numbers", tables=[table])]
    return [block(effect, "position-chart", caption, sentences, aloud=aloud, more=more)]


def _times(row: Any, end: str) -> str:
    value, low, high = (number(10.0 ** float(row[f"{end}{suffix}"])) for suffix in ("", "_low", "_high"))
    return f"{value} [{low}, {high}], p = {number(float(row[f'{end}_p']))}"


POSITION = ReportSection(
    "position",
    "Sensitivity by position",
    "Position",
    LEAD,
    Step(20, _measure, _memory),
    _parts,
    {"Position": _headlines},
    Verdict("Over-squashing", "is the middle of a text weaker than its end?", _state),
)
