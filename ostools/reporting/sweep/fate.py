"""Of a sweep's cells: where answers are lost, what probes decode, and what of it the output reads."""

from __future__ import annotations

from typing import Any

from ostools.ground.words import runs
from ostools.measure import Decodable, Readout
from ostools.reporting.charts.answers.fate import decodable_chart, fate_chart, readout_chart
from ostools.reporting.findings.fate import decodable_findings, fate_findings, readout_findings
from ostools.reporting.look.theme import inert
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part
from ostools.reporting.sections.fate import LEAD, places_table, verdicts_table
from ostools.reporting.sweep.parts import CellsSection, Here, provenance_of
from ostools.runs.measurements.fate import DECODABLE, FATE, READOUT

_OF_ONE = ("mitigation", "seed")
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is tested on sequences that it "
    "was not trained on. Other sequences of the same lengths, lengths between and longer ones are three tests. Beside them "
    "stand the same probes with shuffled labels and, where it was asked for, on the same architecture with random weights."
)
_READ = (
    "A representation is moved so that the probe there says the next answer. By how much does the answer of the output move? A "
    "number is of all lengths of a cell together."
)


def _fates(here: Here) -> Part:
    result = FATE.read(here.rows, provenance_of(here.found, here.rows, "model", "task", "seed"))
    said = fate_findings(result)
    caption = f"Where answers to {here.task} are lost{here.made}"
    return Part(
        title=_title(here, "seed"),
        figure=Figure(here.name, fate_chart(result), caption, f"{caption}. {said[0]}", told=True),
        findings=said,
        more=[More("Length by length", tables=[verdicts_table(result)])],
    )


def _decoded(here: Here) -> Part:
    result: Decodable = DECODABLE.read(here.rows, provenance_of(here.found, here.rows, "model", "task", *_OF_ONE))
    caption = f"What linear probes decode of {here.task}{here.made}"
    more = [More("Place by place", tables=[places_table(result)])]
    return _part(here, decodable_chart(result), decodable_findings(result), caption, more)


def _readings(here: Here) -> Part:
    result: Readout = READOUT.read(here.rows, provenance_of(here.found, here.rows, "model", "task", *_OF_ONE))
    lengths = runs([*map(int, here.one("over_lengths").split(", "))])
    caption = f"Whether the output reads the answer to {here.task}, lengths {lengths}{here.made}"
    return _part(here, readout_chart(result), readout_findings(result), caption, [])


def _part(here: Here, chart: Any, said: list[str], caption: str, more: list[More]) -> Part:
    figure = Figure(here.name, chart, caption, f"{caption}. {said[0]}", told=True)
    return Part(title=_title(here, *_OF_ONE), figure=figure, findings=said, more=more)


def _title(here: Here, *names: str) -> str:
    """With the values of these columns, where there are several."""
    several = [f"{name} {inert(here.one(name))}" for name in names if here.every[name].nunique() > 1]
    return ", ".join([here.title, *several])


SECTIONS = (
    CellsSection(FATE, "fate", "Where is the answer lost?", "Where it is lost", LEAD, "fates", _fates, ("seed",)),
    CellsSection(
        DECODABLE, "decodable", "What do probes decode?", "Decoded", _DECODED, "decodables", _decoded, _OF_ONE
    ),
    CellsSection(READOUT, "readout", "Is it read?", "Read out", _READ, "readouts", _readings, _OF_ONE),
)
