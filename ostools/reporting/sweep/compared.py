"""Of a sweep: every model under every mitigation, with the verdicts and headlines of a report's first screen, by its rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from ostools.measure import Collapse
from ostools.measure.answers.behaviour import Behaviour
from ostools.reporting.first.headlines import headlines
from ostools.reporting.first.verdicts import verdicts
from ostools.reporting.page.section import Finding, Part
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sweep.parts import groups, provenance_of
from ostools.results import Frame
from ostools.runs.measurements.behaviour import BEHAVIOUR
from ostools.runs.measurements.collapse import COLLAPSE
from ostools.runs.stored.reading import MADE_BY, Reading
from ostools.runs.stored.table import UNREADABLE

MOST = 16
"""So many conditions are compared on the first screen; the sections have all."""


def compared(found: Reading) -> list[Part]:
    """A part for each model and mitigation of which answers or distances are stored; none where that is only one."""
    rows = {one.name: found.rows(one.name) for one in (BEHAVIOUR, COLLAPSE)}
    pairs = [pair for table in rows.values() if len(table) for pair, _ in groups(table, "model", "mitigation")]
    conditions = list(dict.fromkeys(pairs))
    if len(conditions) < 2:
        return []
    parts = [_condition(found, rows, model, mitigation) for model, mitigation in conditions[:MOST]]
    if len(conditions) > MOST:
        left = f"Compared here are {MOST} of {len(conditions)} models under mitigations. The sections below have all."
        parts.append(Part(notes=[left]))
    return parts


def _condition(found: Reading, rows: dict[str, Frame], model: str, mitigation: str) -> Part:
    """The verdicts of what was measured, and a headline for each."""
    under = "no mitigation" if mitigation == "none" else mitigation
    title = f"{model}, {under}"
    here = {name: _of(table, model, mitigation) for name, table in rows.items()}
    try:
        said, strip = [], []
        for behaviours, collapses, words in _results(found, here):
            source = (behaviours or collapses)[0].provenance
            one = Measurements(source, "", (), collapses=collapses, behaviours=behaviours)
            told = {"Collapse"} if collapses else {"Wrong answers"}
            strip += [
                replace(verdict, name=f"{verdict.name}{words}") for verdict in verdicts(one) if verdict.name in told
            ]
            said += [Finding(line.verdict, line.text, line.section, f"{line.link}{words}") for line in headlines(one)]
    except UNREADABLE as error:
        return Part(
            title=title, findings=[f"This could not be read from what is stored: {type(error).__name__}: {error}"]
        )
    return Part(title=title, strip=strip, first=said)


def _of(table: Frame, model: str, mitigation: str) -> Frame:
    if not len(table):
        return table
    return table[(table["model"] == model) & (table["mitigation"] == mitigation)].reset_index(drop=True)


def _results(found: Reading, here: dict[str, Frame]) -> Iterator[tuple[list[Behaviour], list[Collapse], str]]:
    """Answers of each dtype and options, then distances of each options; of cells that were made alike.

    The words name what they do not share with the others.
    """
    rows = here[BEHAVIOUR.name]
    for key, _ in groups(rows, "dtype", "options", *MADE_BY):
        alike = _where(rows, ("dtype", "options", *MADE_BY), key)
        made = [
            BEHAVIOUR.read(part, provenance_of(found, part, "model", "task", "mitigation", "dtype"))
            for _, part in groups(alike, "task")
        ]
        yield made, [], _words(rows, ("dtype", "options", *MADE_BY), key)
    rows = here[COLLAPSE.name]
    for key, _ in groups(rows, "options", *MADE_BY):
        alike = _where(rows, ("options", *MADE_BY), key)
        read = [
            COLLAPSE.read(part, provenance_of(found, part, "model", "task", "mitigation"))
            for _, part in groups(alike, "task")
        ]
        exact = [one for one in read if not one.reference.empty]  # without float64 nothing is said of a collapse
        if exact:
            yield [], exact, _words(rows, ("options", *MADE_BY), key)


def _where(rows: Frame, names: tuple[str, ...], key: tuple[str, ...]) -> Frame:
    same = pd.Series(True, index=rows.index)
    for name, value in zip(names, key, strict=True):
        same &= rows[name].astype(str) == value
    return rows[same].reset_index(drop=True)


def _words(rows: Frame, names: tuple[str, ...], key: tuple[str, ...]) -> str:
    """What tells these rows from the others of their condition; empty where all are made alike."""
    told = []
    for name, value in zip(names, key, strict=True):
        if rows[name].nunique() > 1:
            told.append(_differing(rows[name].unique(), value) if name == "options" else f"{name} {value[:12]}")
    return f" ({', '.join(told)})" if told else ""


def _differing(every: Iterable[Any], value: str) -> str:
    """The options of these rows that others do not have."""
    try:
        others, own = [json.loads(str(one)) for one in every], json.loads(value)
        return ", ".join(f"{name} {said}" for name, said in own.items() if any(o.get(name) != said for o in others))
    except (ValueError, AttributeError):  # not as a sweep writes them
        return value
