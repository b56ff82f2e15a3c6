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
    every = [{"run": run_section(of_model), **sections_of(of_model)} for of_model in measured]
    screens = [first_screen(*pair) for pair in zip(measured, every, strict=True)]
    last = [reading_section(), again_section(command)]
    model: Any = measured[0].provenance.model
    if len(measured) == 1:
        title = "The embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
        size = f"{model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
        first = Section("findings", "Findings", "Findings", "", screens)
        return render_sections(
            title, _LEAD.format("this model", size), [first, *every[0].values(), *last]
        )
    names = [theme.title(title_of(of_model.provenance.model), 60) for of_model in measured]
    if names[0] == names[1]:
        names = [f"{names[0]} (the first)", f"{names[1]} (the second)"]
    by_question = [
        _of_model(every[place][section], f"-{place + 1}", name)
        for section in ("run", *SECTIONS)
        for place, name in enumerate(names)
        if section in every[place]
    ]
    # The first screens side by side, their charts below.
    suffixed = [replace(screen, suffix=f"-{place}") for place, screen in enumerate(screens, 1)]
    columns = [
        replace(screen, title=name, overview=())
        for screen, name in zip(suffixed, names, strict=True)
    ]
    charts = [Part(overview=screen.overview, suffix=screen.suffix) for screen in suffixed]
    parts = [Part(columns=columns), Part(columns=charts)]
    first = Section("findings", "Findings", "Findings", "", parts)
    return render_sections(
        " and ".join(names), _LEAD.format("two models", _TWO), [first, *by_question, *last]
    )


def _of_model(section: Section, suffix: str, name: str) -> Section:
    """The section under the model's name, with anchors that no other model has."""
    parts = [
        replace(part, suffix=suffix)
        if part.view is None
        else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    title, nav = f"{section.title}: {name}", f"{section.nav}: {name}"
    return Section(f"{section.name}{suffix}", title, nav, section.lead, parts)


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
    decided = [field.section for field in fields if field.state in (FOUND, OVER_SQUASHING)]
    lines = [line for section in sections.values() for line in section.headlines]
    leading = [line for name in (LEAD, *decided) for line in lines if line.section == name][:1]
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
    tried = {*measured.provenance.parameters.get("sections", ())} - by_name
    fields = [section.verdict(measured) for section in SECTIONS.values() if section.question[0]]
    return [
        replace(field, rule=f"{field.rule} `ostools report --sections {field.section}` tests it")
        if field.state == UNTESTED and field.section not in tried
        else field
        for field in fields
    ]


def overview(measured: Measurements) -> list[Figure]:
    """Small charts of what was measured: collapse with its noise, sensitivity by position, right
    answers.
    """
    figures: list[tuple[str, Any, str, str]] = []
    curves, answers = measured.casts or measured.collapses, measured.evaluations
    cases, nearest = by_first_hidden(curves), nearest_to_noise(curves)
    if nearest is not None:
        result, dtype = nearest[0], str(nearest[1]["dtype"])
        why = "Of all prompts and precisions the one that comes nearest to the noise."
        if cases[0][2].ranges:
            task, dtype, _ = cases[0]
            result = next(result for result in curves if task_of(result) == task)
            why = "Of all ranges that are hidden the one that begins first."
        caption = f"Distance of the pair and noise, {task_of(result)}"
        figures.append(("collapse", distance_chart(result, dtype, *SMALL), caption, why))
    if measured.position is not None:
        chart = position_layers(measured.position, *SMALL)
        words = " ".join(contrast_words(measured.position))
        figures.append(("position", chart, "Sensitivity by position in natural text", words))
    if answers:
        words = "; ".join(f"{task_of(one)}: {answer_counts(one)[0]} right" for one in answers)
        caption = "Right answers by length (dotted: the best constant answer)"
        figures.append(("evaluate", right_chart(answers, *SMALL), caption, f"{words}."))
    return [
        Figure(f"overview-{name}", chart, caption, f"{caption}. {words}")
        for name, chart, caption, words in figures
    ]
