"""The sections of a sweep's page: a block for each stored result, its chart, sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ostools.measure.swept import TEXT_TASK
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.page.section import Part, Section, Table, block, reason_of
from ostools.reporting.sections.answers import EVALUATE, FAILURE_STAGE
from ostools.reporting.sections.collapse import COLLAPSE
from ostools.reporting.sweep.cells import Cells, cells_of
from ostools.results import frame_of
from ostools.sweep.cell_file import UNREADABLE
from ostools.sweep.measurements import MEASUREMENTS, Measurement
from ostools.sweep.reading import SweepReading

MOST_BLOCKS = 24
"""The most results of a measurement that are drawn."""
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is tested on sequences that it "
    "was not trained on. Beside it stand the same probes with shuffled labels and on the same architecture with random weights."
)
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes."
)
_LONGEST = "Drawn is the longest prompt of each condition, with its least seed."
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that `ost.sensitivity` "
    f"measures: `ost.compare` holds one against the other. The paper's forms are not bounds. {_LONGEST}"
)
_PATCHED = (
    "Activations of a clean run put into a corrupt one, and the other way: the share of the gap between the two runs that goes "
    f"with each part. {_LONGEST}"
)
_OF_PROMPT = ("dtype", "mitigation", "seed", "length")


@dataclass(frozen=True)
class Look:
    """How the results of a measurement are shown; the fields say it of one that `LOOKS` does not
    know.

    by: the columns that tell results apart, beside model and task. cells_of_table: cells in a table
    of all results, by header. longest: the longest prompts alone have a block.
    """

    title: str
    lead: str = ""
    by: tuple[str, ...] = ("dtype", "mitigation", "seed")
    cells_of_table: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    longest: bool = False


def sections_of(sweep: SweepReading) -> Iterator[Section]:
    """A section for each measurement that has rows; where those cannot be shown, the reason."""
    for name in dict.fromkeys([*LOOKS, *MEASUREMENTS]):
        try:
            yield from section_of(sweep, MEASUREMENTS[name])
        except UNREADABLE as error:
            why = f"This could not be shown from what is stored: {type(error).__name__}: {error}"
            yield Section(name, name, name, "", [Part(title=name, findings=[why])])


def section_of(sweep: SweepReading, measurement: Measurement) -> Iterator[Section]:
    """The section of a measurement; none where nothing was measured. Stored rows that cannot make a
    result give the reason.
    """
    name, nav = measurement.name, measurement.name.replace("-", " ").capitalize()
    look = LOOKS.get(name) or Look(nav)
    columns = ["model", "task", *look.by, "options"]
    results = list(cells_of(sweep, name, look.by))
    parts: list[Part] = []
    rows: list[list[str]] = []
    for cells in results:
        has_block = len(parts) < MOST_BLOCKS and (not look.longest or cells.is_longest)
        if has_block or look.cells_of_table:
            part, values = _shown(cells, measurement, look, f"{name}-{len(parts)}")
            rows += [[*map(cells.value, columns), *values]] if values is not None else []
            parts += [part] if has_block or values is None else []
    tables = [Table(f"{nav}: every result", [*columns, *look.cells_of_table], rows)]
    drawn = f"Drawn are {len(parts)} of {len(results)} results."
    notes = [drawn] if len(parts) < len(results) else []
    first = Part(tables=tables if look.cells_of_table and rows else [], notes=notes)
    if parts:
        parts = [first, *parts] if first.tables or first.notes else parts
        yield Section(name, look.title, nav, look.lead, parts)


def _shown(
    cells: Cells, measurement: Measurement, look: Look, name: str
) -> tuple[Part, list[str] | None]:
    """The block of a result and its cells of the table; of rows that cannot make one the reason,
    and None.
    """
    try:
        has_texts = "text" in cells.rows and cells.value("task") == TEXT_TASK
        read = (measurement.swept.of_texts if has_texts else None) or measurement.swept.read
        result = read(cells.rows, cells.provenance)
        values = [cell(result) for cell in look.cells_of_table.values()]
        return block(result, name, cells.title, title=cells.title), values
    except UNREADABLE as error:
        why = f"This could not be drawn from what is stored: {reason_of(error)}"
        return Part(title=cells.title, findings=[why]), None


LOOKS: dict[str, Look] = {
    "evaluate": Look(
        EVALUATE.title,
        EVALUATE.lead,
        ("mitigation", "dtype"),
        {
            "right": lambda result: (
                f"{int(result.summary['right'].sum())} of {int(result.summary['asked'].sum())}"
            ),
            "answers it changed nothing of": lambda result: str(
                int(frame_of(result)["status"].eq("inactive").sum())
            ),
        },
    ),
    "failure-stage": Look(FAILURE_STAGE.title, FAILURE_STAGE.lead, ("seed",)),
    "probe": Look("What do probes decode?", _DECODED, ("mitigation", "seed")),
    "collapse": Look(
        COLLAPSE.title,
        COLLAPSE.lead,
        ("mitigation",),
        {
            "the pair at y is hidden from n (–: no range)": lambda result: "; ".join(
                f"{dtype}: {verdict.where}" for dtype, verdict in verdicts_at_y(result).items()
            )
        },
    ),
    "influence-by-distance": Look("Influence by distance", by=_OF_PROMPT),
    "token-homogenization": Look("How alike the tokens of a prompt are", by=_OF_PROMPT),
    "sensitivity": Look(
        "Sensitivity (Section 5)", f"{_PROFILES} {_LONGEST}", _OF_PROMPT, longest=True
    ),
    "bounds": Look("Bounds and forms (Theorem 5.1)", _PATHS, _OF_PROMPT, longest=True),
    "patch": Look("What carries the answer?", _PATCHED, _OF_PROMPT, longest=True),
}
"""In the order of the page."""
