"""From measurements to a page: of one model, or of two side by side.

The first section has a strip of verdicts, headlines with their figures, and small charts. The first headline says whether
answers are wrong where the last token still tells n from n + 1, and how the model was asked. Without it the first headline is
the first, in the report's order, that found something. No headline is picked after looking: the derivative is the first of the
profile, and every prompt counts for collapse. What was not tested, or not decided, is said to be so.

A page of two goes by question, the first model's section before the second's. Every section and
chart keeps its model's name and its own scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.ground.words import title_of
from ostools.measure import Collapse
from ostools.models.families import EMBEDDED
from ostools.reporting.charts.answers import right_chart
from ostools.reporting.charts.collapse import distance_chart
from ostools.reporting.charts.effects.position import position_layers
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.collapse import cases, nearest_to_noise
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import FOUND, UNTESTED, Headline, Part, Section, StripField, render_sections
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme

LEAD = "failure-stage"
"""The section whose headline stands first."""
SMALL = 265, 104
"""Width and height of a chart of the first section."""
WITHOUT_VIEW = "The interactive view of heads stands in the report of one model: a page holds one such view."
_LEAD = (
    "Representational collapse and over-squashing, measured on {} and held against “Transformers need glasses!” "
    "(arXiv 2406.04267). {}"
)


def _sections(measured: Measurements) -> dict[str, Section]:
    """The sections whose data exist, by name."""
    sections = {name: record.section(measured) for name, record in SECTIONS.items()}
    return {name: section for name, section in sections.items() if section is not None}


def render_report(measured: Measurements, command: str) -> str:
    """The page of one model."""
    model: Any = measured.provenance.model
    title = "The embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
    size = f"{model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
    sections = _sections(measured)
    first = findings_section(measured, list(sections))
    last = reading_section(), again_section(command, measured.prompt)
    page = [first, run_section(measured), *sections.values(), *last]
    return render_sections(title, _LEAD.format("this model", size), page)


def render_two(pair: tuple[Measurements, Measurements], command: str) -> str:
    """The page of two models."""
    names = [theme.title(title_of(measured.provenance.model), 60) for measured in pair]
    if names[0] == names[1]:
        names = [f"{names[0]} (the first)", f"{names[1]} (the second)"]
    sections = [_sections(measured) for measured in pair]
    runs = [_of_model(run_section(measured), place, names[place]) for place, measured in enumerate(pair)]
    summaries = [
        _anchored(findings_section(measured, list(present)).parts[0], place)
        for place, (measured, present) in enumerate(zip(pair, sections, strict=True))
    ]
    columns = [replace(part, title=name, overview=()) for part, name in zip(summaries, names, strict=True)]
    charts = [Part(overview=part.overview) for part in summaries]
    first = Section("findings", "Findings", "Findings", "", [Part(columns=columns), Part(columns=charts)])
    by_question = [
        _of_model(sections[place][name], place, names[place])
        for name in SECTIONS
        for place in range(2)
        if name in sections[place]
    ]
    page = [first, *runs, *by_question, reading_section(), again_section(command, pair[0].prompt)]
    note = (
        "Each number is of the model that its section names. The distances and norms of two models do not share a unit."
    )
    return render_sections(f"{names[0]} and {names[1]}", _LEAD.format("two models", note), page)


def _of_model(section: Section, place: int, name: str) -> Section:
    """The section under the model's name, with anchors that no other model has."""
    parts = [
        _anchored(part, place) if part.view is None else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    title, nav = f"{section.title}: {name}", f"{section.nav}: {name}"
    return Section(f"{section.name}-{place + 1}", title, nav, section.lead, parts)


def _anchored(part: Part, place: int) -> Part:
    suffix = f"-{place + 1}"
    return replace(
        part,
        overview=[replace(figure, name=f"{figure.name}{suffix}") for figure in part.overview],
        figure=part.figure and replace(part.figure, name=f"{part.figure.name}{suffix}"),
        strip=_linked(part.strip, suffix),
        headlines=_linked(part.headlines, suffix),
    )


def _linked(lines: Sequence[Any], suffix: str) -> list[Any]:
    return [replace(line, section=f"{line.section}{suffix}" if line.section else "") for line in lines]


# --- the first section


def findings_section(measured: Measurements, present: Sequence[str]) -> Section:
    """The first section; each verdict and headline leads to its section, where that is `present`."""

    def linked(item: Any) -> Any:
        return item if item.section in present else replace(item, section="")

    lines: list[Headline] = [linked(line) for line in headlines(measured)]
    fields: list[StripField] = [linked(field) for field in verdicts(measured)]
    missing = _missing(measured)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    lead = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != lead)
    part = Part(strip=fields if lines else (), headlines=lines, findings=missing, overview=charts)
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(measured: Measurements) -> list[str]:
    """Questions without an answer because something was refused, with the first reason."""
    sentences = []
    for name in measured.provenance.parameters.get("sections", ()):
        reasons = [omission.reason for omission in measured.left_out if omission.section == name]
        section = SECTIONS[name]
        if not reasons or section.verdict is None:
            continue
        field, has_headline = section.verdict(measured), any(section.headlines(measured))
        if field.state == UNTESTED or not has_headline:
            question = field.name if has_headline else section.nav
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(f"There is no finding on {question.lower()}. The reason: {reasons[0]}{more}.")
    return sentences


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with its command."""
    tried = {*measured.provenance.parameters.get("sections", ())} - {
        omission.section for omission in measured.left_out if "--section" in omission.reason
    }
    fields = [section.verdict(measured) for section in SECTIONS.values() if section.verdict is not None]
    return [
        replace(field, rule=f"{field.rule} `ostools report --section {field.section}` tests it")
        if field.state == UNTESTED and field.section not in tried
        else field
        for field in fields
    ]


def headlines(measured: Measurements) -> list[Headline]:
    """A headline for each question whose data exist, in the report's order; that of `LEAD`, else the first that found
    something, leads."""
    builders = dict.fromkeys(section.headlines for section in SECTIONS.values())
    lines = [line for builder in builders for line in builder(measured)]
    decided_sections = [field.section for field in verdicts(measured) if field.state == FOUND]
    leading = [line for line in lines if line.section == LEAD] or [
        line for line in lines if line.section in decided_sections
    ]
    lead = next(iter(leading), None)
    return sorted(lines, key=lambda line: line is not lead)


# --- small charts: collapse with its noise, sensitivity by position, right answers


def overview(measured: Measurements) -> list[Figure]:
    """The charts whose data exist."""
    figures = []
    if leading := _leading(measured.casts or measured.collapses):
        result, dtype, why = leading
        caption = f"Distance of the pair and noise, {task_of(result)}"
        figures.append(Figure("overview-collapse", distance_chart(result, dtype, *SMALL), caption, f"{caption}. {why}"))
    if measured.position is not None:
        caption, words = "Sensitivity by position in natural text", " ".join(contrast_words(measured.position))
        chart = position_layers(measured.position, *SMALL)
        figures.append(Figure("overview-position", chart, caption, f"{caption}. {words}"))
    if measured.evaluations:
        caption = "Right answers by length"
        words = "; ".join(f"{task_of(result)}: {answer_counts(result)[0]} right" for result in measured.evaluations)
        chart = right_chart(measured.evaluations, *SMALL)
        figures.append(
            Figure("overview-evaluate", chart, f"{caption} (dotted: one answer to all)", f"{caption}. {words}.")
        )
    return figures


def _leading(results: list[Collapse]) -> tuple[Collapse, str, str] | None:
    """The prompt and precision of the first headline, and why it is that one."""
    hidden = [case for case in cases(results) if case.verdict.ranges]
    if hidden:
        result = next(result for result in results if task_of(result) == hidden[0].task)
        return result, hidden[0].dtype, "Of all ranges that are hidden the one that begins first."
    nearest = nearest_to_noise(results)
    why = "Of all prompts and precisions the one that comes nearest to the noise."
    return None if nearest is None else (nearest[0], nearest[1]["dtype"], why)
