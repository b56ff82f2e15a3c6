"""Of a sweep's cells: how far apart the representations of n and n + 1 items are."""

from __future__ import annotations

from ostools.measure import Collapse
from ostools.reporting.charts.collapse.curves import collapse_chart
from ostools.reporting.charts.collapse.precision import precision_chart
from ostools.reporting.findings.collapse import collapse_findings
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Table
from ostools.reporting.sweep.parts import CellsSection, Here, provenance_of
from ostools.runs.measurements.collapse import COLLAPSE

_DISTANCES = (
    "A sequence and the same with one item more: how far apart are the two representations of the last token, y? A "
    "distance below the rounding noise of the difference is hidden in that dtype."
)


def _collapse(here: Here) -> Part:
    result = COLLAPSE.read(here.rows, provenance_of(here.found, here.rows, "model", "task", "mitigation"))
    mitigation, dtypes = here.one("mitigation"), here.rows["dtype"].unique()
    under = "" if mitigation == "none" else f" under {mitigation}"
    several = len(dtypes) > 4 or any("-" in dtype for dtype in dtypes)
    exact = not result.reference.empty
    chart = precision_chart(result) if several and exact else collapse_chart(result, ("y",))
    caption = f"L2 distance of the two y against the number of items, {here.task}{under}{here.made}"
    if exact:
        said = collapse_findings(result, result.provenance.model.get("trained_lengths"))
    else:
        said = [
            "No verdict can be read from these cells: they were stored without the float64 distance that it is read from."
        ]
    return Part(
        title=f"{here.title}{under}",
        figure=Figure(here.name, chart, caption, f"{caption}. {said[0]}"),
        findings=said[:1],
        tables=[_verdicts(result, here.task)] if exact else [],
        more=[More("Dtype by dtype", findings=said[1:])] if said[1:] else (),
    )


def _verdicts(result: Collapse, task: str) -> Table:
    shown = ["pair", "seed", "dtype", "site", "layer", "status"]
    rows = result.verdicts()[shown].astype(str).to_numpy().tolist()
    return Table(f"Where the pair is hidden, {task}", [*shown[:-1], "hidden"], rows)


SECTION = CellsSection(
    COLLAPSE,
    "collapse",
    "Representational collapse (Theorem 4.2)",
    "Collapse",
    _DISTANCES,
    "collapse",
    _collapse,
    by=["mitigation"],
)
