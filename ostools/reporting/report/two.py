"""The report of two models: each measured as it is alone, one after the other, then both on one page.

Sections go by question, the first model's before the second's: who compares two models reads one question of both before the
next. Every section and chart keeps its model's name and its own scale.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.ground.words import title_of
from ostools.reporting.first.two import Both, Names, first_screen
from ostools.reporting.look import theme
from ostools.reporting.page.page import render
from ostools.reporting.page.section import Finding, Part, Section, Verdict
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.measurements import Measurements

EXPECTED = "report: expected two models in `models`"
WITHOUT_VIEW = "The interactive view of heads stands in the report of one model: a page holds one such view."


def measure_two(
    models: Iterable[TransformerBridge], measured: Callable[[TransformerBridge, Sequence[Measurements]], Measurements]
) -> Both:
    """What is measured on each: `measured(model, before)`, with what was measured on the models before it. No model is held
    when the next is asked for."""
    found: list[Measurements] = []
    for model in models:  # without `enumerate`, which holds what it gave last
        if len(found) == 2:
            raise InputError(f"{EXPECTED}, found more: write a report of each pair")
        if not isinstance(model, TransformerBridge):
            raise InputError(f"{EXPECTED}, loaded by load_model; found {type(model).__name__}")
        found.append(measured(model, found))
        del model
        gc.collect()  # a model is in circles: without this it stays beside the next
    if len(found) != 2:
        raise InputError(f"{EXPECTED}, found {len(found)}: one model alone is report(model)")
    one, other = found
    if _same(one.provenance.model, other.provenance.model):
        raise InputError(f"{EXPECTED} that differ, found {one.provenance.model['name']} twice")
    return one, other


def _same(one: Any, other: Any) -> bool:
    return (one["weight_hash"], one["dtype"]) == (other["weight_hash"], other["dtype"])


def names_of(both: Both) -> Names:
    """The models' names as the page shows them; where those are alike, with which is meant."""
    one, other = (theme.title(title_of(found.provenance.model), 60) for found in both)
    return (one, other) if one != other else (f"{one} (the first)", f"{other} (the second)")


def render_two(both: Both, command: str) -> str:
    """The whole page."""
    names = names_of(both)
    models = [(place, found, name) for place, (found, name) in enumerate(zip(both, names, strict=True), 1)]
    built = [_sections(found, place, name) for place, found, name in models]
    first = first_screen(both, names, ([*built[0]], [*built[1]]))
    columns = [_linked(part, place) for place, part in enumerate(first.parts[0].columns, 1)]
    first = replace(first, parts=[Part(columns=columns), *first.parts[1:]])
    runs = [_of(run_section(found), place, name) for place, found, name in models]
    shown = [one[name] for name in SECTIONS for one in built if name in one]
    values = {
        "title": f"Over-squashing and collapse in {names[0]} and {names[1]}",
        "lead": (
            "Representational collapse and over-squashing, measured on two models and held against “Transformers need "
            "glasses!” (arXiv 2406.04267). Each number is of the model that its section names."
        ),
        "sections": [first, *runs, *shown, reading_section(), again_section(command, both[0].prompt)],
    }
    return render("report.html.j2", values)


def _sections(found: Measurements, place: int, name: str) -> dict[str, Section]:
    """Those whose data exist."""
    made = {key: build(found) for key, build in SECTIONS.items()}
    return {key: _of(section, place, name) for key, section in made.items() if section is not None}


def _of(section: Section, place: int, name: str) -> Section:
    """The section under the model's name, with anchors of its own."""
    parts = [
        _own(part, place) if part.view is None else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    return Section(f"{section.name}-{place}", f"{section.title}: {name}", f"{section.nav}: {name}", section.lead, parts)


def _own(part: Part, place: int) -> Part:
    figures = [replace(one, name=f"{one.name}-{place}") for one in part.small]
    figure = None if part.figure is None else replace(part.figure, name=f"{part.figure.name}-{place}")
    return replace(part, small=figures, figure=figure)


def _linked(part: Part, place: int) -> Part:
    """Verdicts and headlines lead to the sections of their model."""
    return replace(part, strip=_led(part.strip, place), first=_led(part.first, place))


def _led(lines: Sequence[Any], place: int) -> list[Verdict | Finding]:
    return [replace(one, section=f"{one.section}-{place}" if one.section else "") for one in lines]
