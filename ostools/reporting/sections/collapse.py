"""Representational collapse: a chart for each of Figure 5's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostools import tasks
from ostools.measure import Collapse
from ostools.reporting.charts.collapse.curves import collapse_chart
from ostools.reporting.findings.collapse import collapse_findings
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

QUESTIONS = {
    "figure-5a": "ones after a counting question",
    "figure-5b": "random digits and a one, against two ones (one draw of digits, seed 0), after a counting question",
    "figure-5c": "ones after a copying question",
    "figure-5d": "ones with a comma after every third, after a copying question",
}
LEAD = (
    "A sequence and the same sequence with its last token repeated once: how far apart are the two representations of the last "
    "token, y? Where it is below the rounding noise of the difference, the dtype hides which of the two sequences it read."
)


def collapse_section(found: Measurements) -> Section | None:
    """Where there is a curve."""
    if not found.collapses:
        return None
    model: Any = found.provenance.model
    parts = [_part(result, model.get("trained_lengths")) for result in found.collapses]
    return Section("collapse", "Representational collapse (Theorem 4.2, Figure 5)", "Collapse", LEAD, parts)


def _part(result: Collapse, trained: Mapping[str, int] | None) -> Part:
    name = str(frame_of(result)["task"].iloc[0])
    said = collapse_findings(result, trained)
    caption = "L2 distance of the two y against the number of items, one panel per dtype"
    route = result.provenance.parameters
    more = More(
        "Dtype by dtype, and the verdict at every site",
        findings=said[1:],
        tables=[_verdicts(result, name)],
        notes=[f"Computed by {route['route']}: {route['route_reason']}."] if route.get("route") else (),
    )
    return Part(
        title=f"{name}: {QUESTIONS.get(name, 'a prompt and one more item')}",
        quote=f"{tasks.task(name, tasks.CollapseTask).example}…" if name in tasks.COLLAPSE_TASKS else "",
        figure=Figure(name, collapse_chart(result, ("y",)), caption, f"{caption}. {said[0]}"),
        findings=said[:1],
        more=[more],
    )


def _verdicts(result: Collapse, name: str) -> Table:
    """The verdict at every site and dtype."""
    table: Frame = result.verdicts()
    shown = ["pair", "seed", "dtype", "site", "status"]
    rows = [[str(row[column]) for column in shown] for row in table.to_dict(orient="records")]
    return Table(f"Where the pair is hidden, {name}", ["pair", "seed", "dtype", "site", "hidden"], rows)
