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
from ostools.reporting.first.screen import findings_section
from ostools.reporting.page.section import Part, Section, render_sections
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.style import theme

Both = tuple[Measurements, Measurements]
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


def names_of(both: Both) -> tuple[str, str]:
    """The models' names as the page shows them; where those are alike, with which is meant."""
    one, other = (theme.title(title_of(found.provenance.model), 60) for found in both)
    return (one, other) if one != other else (f"{one} (the first)", f"{other} (the second)")


def render_two(both: Both, command: str) -> str:
    """The whole page: each section of one model, with those of the other beside it by question."""
    names = names_of(both)
    models = [(place, found, name) for place, (found, name) in enumerate(zip(both, names, strict=True), 1)]
    built = [_sections(found, place, name) for place, found, name in models]
    shown = [one[name] for name in SECTIONS for one in built if name in one]
    screens = [
        _placed(findings_section(found, [*one]).parts[0], place)
        for (place, found, _), one in zip(models, built, strict=True)
    ]
    columns = [replace(part, title=name, small=()) for part, name in zip(screens, names, strict=True)]
    charts = [Part(small=part.small) for part in screens]
    first = Section("findings", "Findings", "Findings", "", [Part(columns=columns), Part(columns=charts)])
    runs = [_of(run_section(found), place, name) for place, found, name in models]
    sections = [first, *runs, *shown, reading_section(), again_section(command, both[0].prompt)]
    lead = (
        "Representational collapse and over-squashing, measured on two models and held against “Transformers need "
        "glasses!” (arXiv 2406.04267). Each number is of the model that its section names. The distances and norms of two "
        "models do not share a unit."
    )
    return render_sections(f"Over-squashing and collapse in {names[0]} and {names[1]}", lead, sections)


def _sections(found: Measurements, place: int, name: str) -> dict[str, Section]:
    """Those whose data exist."""
    made = {key: build(found) for key, build in SECTIONS.items()}
    return {key: _of(section, place, name) for key, section in made.items() if section is not None}


def _of(section: Section, place: int, name: str) -> Section:
    """The section under the model's name, with anchors of its own."""
    parts = [
        _placed(part, place) if part.view is None else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    return Section(f"{section.name}-{place}", f"{section.title}: {name}", f"{section.nav}: {name}", section.lead, parts)


def _placed(part: Part, place: int) -> Part:
    """The part with figures and links of its own model."""
    return replace(
        part,
        small=[replace(figure, name=f"{figure.name}-{place}") for figure in part.small],
        figure=part.figure and replace(part.figure, name=f"{part.figure.name}-{place}"),
        strip=_led(part.strip, place),
        first=_led(part.first, place),
    )


def _led(lines: Sequence[Any], place: int) -> list[Any]:
    return [replace(one, section=f"{one.section}-{place}" if one.section else "") for one in lines]
