"""Of a sweep: every model under every mitigation, with the verdicts and headlines of a report's first screen, by its rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ostools.measure import Collapse
from ostools.measure.answers.evaluate import Evaluation
from ostools.reporting.first.headlines import headlines
from ostools.reporting.first.verdicts import verdicts
from ostools.reporting.page.section import Part
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sweep.cells import groups, provenance_of, rows_where
from ostools.results import Frame
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.measurements.collapse import COLLAPSE
from ostools.runs.measurements.evaluate import EVALUATION
from ostools.runs.reading import MADE_BY, Reading

MOST = 16
"""So many conditions are compared on the first screen; the sections have all."""
_ALIKE = {EVALUATION: ("dtype", "options", *MADE_BY), COLLAPSE: ("options", *MADE_BY)}
"""What results that are told together share, beside model and mitigation."""


def condition_parts(found: Reading) -> list[Part]:
    """A part for each model and mitigation of which answers or distances are stored; none where that is only one."""
    rows = {one.name: found.rows(one.name) for one in _ALIKE}
    pairs = [pair for table in rows.values() for pair, _ in groups(table, "model", "mitigation")]
    conditions = list(dict.fromkeys(pairs))
    if len(conditions) < 2:
        return []
    parts = [_condition(found, rows, *condition) for condition in conditions[:MOST]]
    if len(conditions) > MOST:
        left = f"Compared here are {MOST} of {len(conditions)} models under mitigations. The sections below have all."
        parts.append(Part(notes=[left]))
    return parts


def _condition(found: Reading, rows: dict[str, Frame], model: str, mitigation: str) -> Part:
    """The verdicts of what was measured, and a headline for each."""
    title = f"{model}, {'no mitigation' if mitigation == 'none' else mitigation}"
    here = {
        name: rows_where(table, ("model", "mitigation"), (model, mitigation)) if len(table) else table
        for name, table in rows.items()
    }
    strip, first = [], []
    try:
        for results, words in _results(found, here):
            part = Measurements(results[0].provenance, "", ())
            if isinstance(results[0], Evaluation):
                question, part.evaluations = "Wrong answers", results
            else:
                question, part.collapses = "Collapse", results
            strip += [
                replace(verdict, name=f"{verdict.name}{words}")
                for verdict in verdicts(part)
                if verdict.name == question
            ]
            first += [replace(line, link=f"{line.link}{words}") for line in headlines(part)]
    except UNREADABLE as error:
        why = f"This could not be read from what is stored: {type(error).__name__}: {error}"
        return Part(title=title, findings=[why])
    return Part(title=title, strip=strip, first=first)


def _results(found: Reading, here: dict[str, Frame]) -> Iterator[tuple[list[Any], str]]:
    """Answers of each dtype and options, then distances of each options; of cells that were made alike.

    The words name what they do not share with the others.
    """
    for measurement, names in _ALIKE.items():
        rows = here[measurement.name]
        by = ("model", "task", "mitigation", *(["dtype"] if "dtype" in names else []))
        for key, _ in groups(rows, *names):
            of_tasks = groups(rows_where(rows, names, key), "task")
            results = [measurement.read(part, provenance_of(found, part, *by)) for _, part in of_tasks]
            # Without float64 nothing is said of a collapse.
            exact = [one for one in results if not isinstance(one, Collapse) or not one.reference.empty]
            if exact:
                yield exact, _words(rows, names, key)


def _words(rows: Frame, names: tuple[str, ...], key: tuple[str, ...]) -> str:
    """What tells these rows from the others of their condition; empty where all are made alike."""
    words = []
    for name, value in zip(names, key, strict=True):
        if rows[name].nunique() > 1:
            differing = _differing(rows[name].unique(), value) if name == "options" else f"{name} {value[:12]}"
            words.append(differing)
    return f" ({', '.join(words)})" if words else ""


def _differing(every: Iterable[Any], value: str) -> str:
    """The options of these rows that others do not have."""
    try:
        others, own = [json.loads(str(one)) for one in every], json.loads(value)
        differing = [name for name in own if any(other.get(name) != own[name] for other in others)]
        return ", ".join(f"{name} {own[name]}" for name in differing)
    except (ValueError, AttributeError):  # not as a sweep writes them
        return value
