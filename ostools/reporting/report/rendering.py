"""From the measurements of one model to a page.

The first section has a strip of verdicts, headlines with their figures, and small charts. The first
headline says whether answers are wrong where the last token still tells n from n + 1, and how the
model was asked. Without it, or where it is not decided, the first headline is the first, in the
report's order, that found something. No headline is picked after looking: the derivative is the
first of the profile, and every prompt counts for collapse. What was not tested, or not decided, is
said to be so.
"""

from collections.abc import Mapping

from ostools.ground import title_of
from ostools.models.families import EMBEDDED
from ostools.reporting.charts.answers import right_chart
from ostools.reporting.charts.collapse import distance_chart
from ostools.reporting.charts.profile import position_layers
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.collapse import by_first_hidden, nearest_to_noise, pair_verdict
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import (
    DETECTED,
    NOT_DETECTED,
    OPEN,
    OVER_SQUASHING,
    UNTESTED,
    Part,
    Section,
    render_sections,
)
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme
from ostools.results import Chart

LEAD = "failure-stage"
"""The section whose headline stands first, where it is decided."""
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
    """Verdicts, headlines and small charts; each verdict leads to its section, where that is
    present.

    What was decided stands before what was not; of that the headline of `LEAD` first, then what was
    found.
    """
    records = {name: record for name, record in SECTIONS.items() if record.question[0]}
    strip = {name: record.verdict(measured, name in sections) for name, record in records.items()}

    def place(section: str) -> tuple[bool, bool, bool]:
        state = strip[section].state if section in strip else NOT_DETECTED
        is_positive = state in (DETECTED, OVER_SQUASHING)
        return state in (OPEN, UNTESTED), section != LEAD, not is_positive

    lines = [line for section in sections.values() for line in section.headlines]
    charts = overview(measured)
    return Part(
        strip=list(strip.values()),
        headlines=sorted(lines, key=lambda line: place(line.section)),
        overview=[charts[name] for name in sorted(charts, key=place)],
    )


def overview(measured: Measurements) -> dict[str, Figure]:
    """Small charts of what was measured, by section: collapse with its noise, of the prompt and
    precision that hides the pair first or comes nearest to it; sensitivity by position; right
    answers.
    """
    figures: dict[str, Figure] = {}

    def add(section: str, chart: Chart, caption: str, words: str) -> None:
        alt_text = f"{caption}. {words}"
        figures[section] = Figure(f"overview-{section}", chart, caption, alt_text)

    curves, answers = measured.of("collapse"), measured.of("evaluate")
    if (nearest := nearest_to_noise(curves)) is not None:
        task, dtype, verdict = by_first_hidden(curves)[0]
        if not any(verdict.hidden):
            task, dtype = task_of(nearest[0]), str(nearest[1]["dtype"])
        (result,) = (result for result in curves if task_of(result) == task)
        chart = distance_chart(result, dtype, *SMALL)
        add("collapse", chart, f"Distance of the pair and noise, {task}", pair_verdict(curves))
    for result in measured.of("position"):
        words, chart = " ".join(contrast_words(result)), position_layers(result, *SMALL)
        add("position", chart, "Sensitivity by position in natural text", words)
    if answers:
        right = (f"{task_of(result)}: {answer_counts(result)[0]} right" for result in answers)
        caption = "Right answers by length (dotted: the best constant answer)"
        add("evaluate", right_chart(answers, *SMALL), caption, "; ".join(right))
    return figures
