"""Of a sweep's cells: where answers are lost."""

from __future__ import annotations

from ostools.reporting.charts.answers.fate import fate_chart
from ostools.reporting.findings.fate import fate_findings
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part
from ostools.reporting.sections.fate import LEAD, verdicts_table
from ostools.reporting.sweep.parts import CellsSection, Here, provenance_of
from ostools.runs.measurements.fate import FATE


def _fates(here: Here) -> Part:
    result = FATE.read(here.rows, provenance_of(here.found, here.rows, "model", "task", "seed"))
    several = here.every["seed"].nunique() > 1
    title = f"{here.title}, seed {here.one('seed')}" if several else here.title
    said = fate_findings(result)
    caption = f"Where answers to {here.task} are lost{here.made}"
    return Part(
        title=title,
        figure=Figure(here.name, fate_chart(result), caption, f"{caption}. {said[0]}"),
        findings=said,
        more=[More("Length by length", tables=[verdicts_table(result)])],
    )


SECTION = CellsSection(FATE, "fate", "Where is the answer lost?", "Where it is lost", LEAD, "fates", _fates, ("seed",))
