"""From the measurements of one model to a page.

The first section has a strip of verdicts, headlines with their figures, and small charts. The first
headline says whether answers are wrong where the last token still tells n from n + 1, and how the
model was asked. Without it the first headline is the first, in the report's order, that found
something. No headline is picked after looking: the derivative is the first of the profile, and
every prompt counts for collapse. What was not tested, or not decided, is said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ostools.ground.words import title_of
from ostools.models.families import EMBEDDED
from ostools.reporting.charts.answers import right_chart
from ostools.reporting.charts.collapse import distance_chart
from ostools.reporting.charts.effects.position import position_layers
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.collapse import by_first_hidden, nearest_to_noise
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Figure, stored_at
from ostools.reporting.page.section import (
    DETECTED,
    OVER_SQUASHING,
    UNTESTED,
    Part,
    Section,
    StripField,
    render_sections,
)
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme
from ostools.results import Chart

LEAD = "failure-stage"
"""The section whose headline stands first."""
SMALL = 265, 104
"""Width and height of a chart of the first section."""
_LEAD = (
    "Representational collapse and over-squashing, measured on this model and held against "
    "“Transformers need glasses!” (arXiv 2406.04267). "
)


def render_report(measured: Measurements, command: str) -> str:
    """The page of one model."""
    model = measured.provenance.model
    sections = {"run": run_section(measured), **sections_of(measured)}
    title = "The embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
    size = f"{model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
    screen = [first_screen(measured, sections)]
    first = Section("findings", "Findings", "Findings", "", screen)
    pages = [first, *sections.values(), reading_section(), again_section(command)]
    return render_sections(title, _LEAD + size, pages)


def sections_of(measured: Measurements) -> dict[str, Section]:
    """The sections whose data exist, by name."""
    sections = {name: record.section(measured) for name, record in SECTIONS.items()}
    return {name: section for name, section in sections.items() if section is not None}


# --- the first screen


def first_screen(measured: Measurements, sections: Mapping[str, Section]) -> Part:
    """Verdicts, headlines, small charts, and what has no finding; each leads to its section, where
    that is present.

    The headline of `LEAD` stands first, else the first of a section that found something.
    """
    fields = verdicts(measured)
    sections_with_findings = [
        field.section for field in fields if field.state in (DETECTED, OVER_SQUASHING)
    ]
    lines = [line for section in sections.values() for line in section.headlines]
    leading = [
        line for name in (LEAD, *sections_with_findings) for line in lines if line.section == name
    ][:1]
    lines = sorted(lines, key=lambda line: line not in leading)
    missing = _missing(measured, sections)
    if not lines and not missing:
        missing = [
            "What was asked for has no headline of its own. Its findings stand in its section."
        ]
    first_chart = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != first_chart)
    strip = [field if field.section in sections else replace(field, section="") for field in fields]
    return Part(strip=strip if lines else (), headlines=lines, findings=missing, overview=charts)


def _missing(measured: Measurements, sections: Mapping[str, Section]) -> list[str]:
    """Questions without an answer because something was refused, with the first reason."""
    reasons: dict[str, str] = {}
    for omission in measured.left_out:
        reasons.setdefault(omission.section, omission.reason)
    return [
        f"There is no finding on {SECTIONS[name].nav.lower()}. The reason: {reasons[name]}."
        for name in measured.provenance.parameters.get("sections", ())
        if name in reasons and name not in sections
    ]


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with
    its command.
    """
    by_name = {name for name, reason in measured.left_out if "--sections" in reason}
    measured_names = {*measured.provenance.parameters.get("sections", ())} - by_name
    fields = [section.verdict(measured) for section in SECTIONS.values() if section.question[0]]
    command = f"ostools report --model {stored_at(measured.provenance.model)} --sections"
    return [
        replace(field, rule=f"{field.rule} `{command} {field.section}` tests it")
        if field.state == UNTESTED and field.section not in measured_names
        else field
        for field in fields
    ]


def overview(measured: Measurements) -> list[Figure]:
    """Small charts of what was measured: collapse with its noise, sensitivity by position, right
    answers.
    """
    figures: list[tuple[str, Chart, str, str]] = []
    curves, answers = measured.casts or measured.collapses, measured.evaluations
    if (nearest := nearest_to_noise(curves)) is not None:
        task, dtype = task_of(nearest[0]), str(nearest[1]["dtype"])
        why = "Of all prompts and precisions the one that comes nearest to the noise."
        if (first := by_first_hidden(curves)[0])[2].ranges:
            task, dtype, why = (
                *first[:2],
                "Of all ranges that are hidden the one that begins first.",
            )
        (result,) = (result for result in curves if task_of(result) == task)
        caption = f"Distance of the pair and noise, {task}"
        figures.append(("collapse", distance_chart(result, dtype, *SMALL), caption, why))
    if measured.position is not None:
        chart = position_layers(measured.position, *SMALL)
        words = " ".join(contrast_words(measured.position))
        figures.append(("position", chart, "Sensitivity by position in natural text", words))
    if answers:
        words = "; ".join(
            f"{task_of(result)}: {answer_counts(result)[0]} right" for result in answers
        )
        caption = "Right answers by length (dotted: the best constant answer)"
        figures.append(("evaluate", right_chart(answers, *SMALL), caption, f"{words}."))
    return [
        Figure(f"overview-{name}", chart, caption, f"{caption}. {words}")
        for name, chart, caption, words in figures
    ]
