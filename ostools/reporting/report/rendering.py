"""From measurements to a page: of one model, or of two side by side.

The first section has a strip of verdicts, headlines with their figures, and small charts. The first
headline says whether answers are wrong where the last token still tells n from n + 1, and how the
model was asked. Without it the first headline is the first, in the report's order, that found
something. No headline is picked after looking: the derivative is the first of the profile, and
every prompt counts for collapse. What was not tested, or not decided, is said to be so.

A page of two goes by question, the first model's section before the second's. Every section and
chart keeps its model's name and its own scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ostools.ground.words import title_of
from ostools.measure import Collapse
from ostools.models.families import EMBEDDED
from ostools.reporting.charts.answers import right_chart
from ostools.reporting.charts.collapse import distance_chart
from ostools.reporting.charts.effects.position import position_layers
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.collapse import by_first_hidden, nearest_to_noise
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import (
    FOUND,
    OVER_SQUASHING,
    UNTESTED,
    Headline,
    Part,
    Section,
    StripField,
    render_sections,
)
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme

LEAD = "failure-stage"
"""The section whose headline stands first."""
SMALL = 265, 104
"""Width and height of a chart of the first section."""
WITHOUT_VIEW = (
    "The interactive view of heads stands in the report of one model: a page holds one such view."
)
_LEAD = (
    "Representational collapse and over-squashing, measured on {} and held against “Transformers need glasses!” "
    "(arXiv 2406.04267). {}"
)
_TWO = "Each number is of the model that its section names. The distances and norms of two models do not share a unit."


def render_report(measured: Sequence[Measurements], command: str) -> str:
    """The page of one model, or of two."""
    sections = [sections_of(of_model) for of_model in measured]
    screens = [first_screen(*pair) for pair in zip(measured, sections, strict=True)]
    runs = [run_section(of_model) for of_model in measured]
    last = [reading_section(), again_section(command, measured[0].prompt)]
    if len(measured) == 2:
        names = _names(measured)
        by_question = _by_question(names, runs, sections)
        page = [_two_screens(names, screens), *by_question, *last]
        return render_sections(" and ".join(names), _LEAD.format("two models", _TWO), page)
    model: Any = measured[0].provenance.model
    title = "The embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
    size = f"{model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
    first = Section("findings", "Findings", "Findings", "", screens)
    return render_sections(
        title, _LEAD.format("this model", size), [first, *runs, *sections[0].values(), *last]
    )


def _two_screens(names: Sequence[str], screens: Sequence[Part]) -> Section:
    """The first screens of two models side by side, their charts below."""
    suffixed = [replace(screen, suffix=f"-{place}") for place, screen in enumerate(screens, 1)]
    columns = [
        replace(screen, title=name, overview=())
        for screen, name in zip(suffixed, names, strict=True)
    ]
    charts = [Part(overview=screen.overview, suffix=screen.suffix) for screen in suffixed]
    return Section(
        "findings", "Findings", "Findings", "", [Part(columns=columns), Part(columns=charts)]
    )


def _by_question(
    names: Sequence[str], runs: Sequence[Section], sections: Sequence[Mapping[str, Section]]
) -> list[Section]:
    """What was run, then question by question: the first model's section before the second's."""
    by_name = [{"run": run, **present} for run, present in zip(runs, sections, strict=True)]
    return [
        _of_model(by_name[place][section], place, name)
        for section in ("run", *SECTIONS)
        for place, name in enumerate(names)
        if section in by_name[place]
    ]


def sections_of(measured: Measurements) -> dict[str, Section]:
    """The sections whose data exist, by name."""
    sections = {name: record.section(measured) for name, record in SECTIONS.items()}
    return {name: section for name, section in sections.items() if section is not None}


def _names(measured: Sequence[Measurements]) -> list[str]:
    """What the page calls each model; no two alike."""
    names = [theme.title(title_of(of_model.provenance.model), 60) for of_model in measured]
    return (
        names if names[0] != names[1] else [f"{names[0]} (the first)", f"{names[1]} (the second)"]
    )


def _of_model(section: Section, place: int, name: str) -> Section:
    """The section under the model's name, with anchors that no other model has."""
    suffix = f"-{place + 1}"
    parts = [
        replace(part, suffix=suffix)
        if part.view is None
        else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    title, nav = f"{section.title}: {name}", f"{section.nav}: {name}"
    return Section(f"{section.name}{suffix}", title, nav, section.lead, parts)


# --- the first screen


def first_screen(measured: Measurements, sections: Mapping[str, Section]) -> Part:
    """Verdicts, headlines, small charts, and what has no finding; each leads to its section, where
    that is present.
    """
    fields = verdicts(measured)
    lines = headlines(
        sections, [field.section for field in fields if field.state in (FOUND, OVER_SQUASHING)]
    )
    missing = _missing(measured, sections)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = [
            "What was asked for has no headline of its own. Its findings stand in its section."
        ]
    lead = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != lead)
    linked = [
        field if field.section in sections else replace(field, section="") for field in fields
    ]
    return Part(strip=linked if lines else (), headlines=lines, findings=missing, overview=charts)


def _missing(measured: Measurements, sections: Mapping[str, Section]) -> list[str]:
    """Questions without an answer because something was refused, with the first reason."""
    sentences = []
    for name in measured.provenance.parameters.get("sections", ()):
        reasons = [omission.reason for omission in measured.left_out if omission.section == name]
        has_answer = (
            sections[name].headlines or SECTIONS[name].verdict is None
            if name in sections
            else False
        )
        if reasons and not has_answer:
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(
                f"There is no finding on {SECTIONS[name].nav.lower()}. The reason: {reasons[0]}{more}."
            )
    return sentences


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with
    its command.
    """
    measured_names = {*measured.provenance.parameters.get("sections", ())} - {
        omission.section for omission in measured.left_out if "--sections" in omission.reason
    }
    fields = [
        section.verdict(measured) for section in SECTIONS.values() if section.verdict is not None
    ]
    return [
        replace(field, rule=f"{field.rule} `ostools report --sections {field.section}` tests it")
        if field.state == UNTESTED and field.section not in measured_names
        else field
        for field in fields
    ]


def headlines(sections: Mapping[str, Section], decided: Sequence[str]) -> list[Headline]:
    """The headlines of the sections in the report's order; that of `LEAD` first, else the first of
    a `decided` section.
    """
    lines = [line for section in sections.values() for line in section.headlines]
    leading = [line for line in lines if line.section == LEAD] + [
        line for line in lines if line.section in decided
    ]
    return sorted(lines, key=lambda line: line not in leading[:1])


# --- small charts: collapse with its noise, sensitivity by position, right answers


def overview(measured: Measurements) -> list[Figure]:
    """The charts whose data exist."""
    figures = []
    if leading := _leading(measured.casts or measured.collapses):
        result, dtype, why = leading
        caption = f"Distance of the pair and noise, {task_of(result)}"
        figures.append(
            Figure(
                "overview-collapse",
                distance_chart(result, dtype, *SMALL),
                caption,
                f"{caption}. {why}",
            )
        )
    if measured.position is not None:
        caption, words = (
            "Sensitivity by position in natural text",
            " ".join(contrast_words(measured.position)),
        )
        chart = position_layers(measured.position, *SMALL)
        figures.append(Figure("overview-position", chart, caption, f"{caption}. {words}"))
    if measured.evaluations:
        caption = "Right answers by length (dotted: the best constant answer)"
        words = "; ".join(
            f"{task_of(result)}: {answer_counts(result)[0]} right"
            for result in measured.evaluations
        )
        chart = right_chart(measured.evaluations, *SMALL)
        figures.append(Figure("overview-evaluate", chart, caption, f"{caption}. {words}."))
    return figures


def _leading(results: list[Collapse]) -> tuple[Collapse, str, str] | None:
    """The prompt and precision of the first headline, and why it is that one."""
    hidden = [case for case in by_first_hidden(results) if case[2].ranges]
    if hidden:
        task, dtype, _ = hidden[0]
        result = next(result for result in results if task_of(result) == task)
        return result, dtype, "Of all ranges that are hidden the one that begins first."
    nearest = nearest_to_noise(results)
    why = "Of all prompts and precisions the one that comes nearest to the noise."
    return None if nearest is None else (nearest[0], nearest[1]["dtype"], why)
