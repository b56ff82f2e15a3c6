"""The sections of a sweep's page: a block for each stored result. A measurement that `LOOKS` does not know has its chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.ground.words import runs
from ostools.measure import Collapse, Sensitivity
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sections.answers import EVALUATE, evaluation_block
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.collapse import COLLAPSE, collapse_block
from ostools.reporting.sections.probes import (
    FAILURE_STAGE,
    failure_stage_block,
    intervention_block,
    probe_block,
)
from ostools.reporting.sections.records import ReportSection
from ostools.reporting.sections.sensitivity import sensitivity_block
from ostools.reporting.sweep.bounds import bounds_part
from ostools.reporting.sweep.cells import Cells, cells_of, require_finite
from ostools.results import frame_of
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.measurements import MEASUREMENTS, Measurement
from ostools.runs.reading import Reading

MOST_BLOCKS = 24
"""The most results of a measurement that are drawn."""
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is tested on sequences that it "
    "was not trained on. Other sequences of the same lengths, lengths between and longer ones are three tests. Beside them "
    "stand the same probes with shuffled labels and, where it was asked for, on the same architecture with random weights."
)
_READ = (
    "A representation is moved so that the probe there says the next answer. By how much does the answer of the output move? A "
    "number is of all lengths of a cell together."
)
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes. Drawn is the longest prompt of "
    "each condition, with its least seed."
)
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that stands beside it. The "
    "paper's forms are not bounds. Drawn is the longest prompt of each condition."
)


@dataclass(frozen=True)
class Look:
    """How the results of a measurement are shown.

    show: the block of a result. by: the columns that tell results apart, beside model and task.
    cells_of_table: cells in a table of all results, by header. longest: the longest prompts alone have a block.
    """

    title: str
    nav: str
    lead: str
    show: Callable[[Cells, Any, str], Part]
    by: tuple[str, ...]
    cells_of_table: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    longest: bool = False


def sections_of(sweep: Reading) -> Iterator[Section]:
    """A section for each measurement that has rows; where those cannot be shown, the reason."""
    for name in dict.fromkeys([*LOOKS, *MEASUREMENTS]):
        try:
            yield from section_of(sweep, MEASUREMENTS[name])
        except UNREADABLE as error:
            why = f"This could not be shown from what is stored: {type(error).__name__}: {error}"
            yield Section(name, name, name, "", [Part(title=name, findings=[why])])


def section_of(sweep: Reading, measurement: Measurement) -> Iterator[Section]:
    """The section of a measurement; none where nothing was measured."""
    name, title = measurement.name, measurement.name.replace("-", " ").capitalize()
    look = LOOKS.get(name) or Look(title, title, "", _chart, ("dtype", "mitigation", "seed"))
    results = list(cells_of(sweep, name, look.by))
    parts, rows = [], []
    for cells in results:
        has_block = len(parts) < MOST_BLOCKS and (not look.longest or cells.is_longest)
        part, row = _part_and_row(measurement, look, cells, f"{name}-{len(parts)}", has_block)
        parts += [] if part is None else [part]
        rows += [] if row is None else [row]
    notes = [f"Drawn are {len(parts)} of {len(results)} results."] if len(parts) < len(results) else []
    columns = ["model", "task", *look.by, "options", *look.cells_of_table]
    tables = [Table(f"{look.nav}: every result", columns, rows)] if look.cells_of_table and rows else []
    if tables or notes:
        parts.insert(0, Part(tables=tables, notes=notes))
    if parts:
        yield Section(name, look.title, look.nav, look.lead, parts)


def _part_and_row(
    measurement: Measurement, look: Look, cells: Cells, name: str, has_block: bool
) -> tuple[Part | None, list[str] | None]:
    """The block and table row of a result; where the stored rows cannot make it, the reason."""
    row = None
    try:
        if not has_block and not look.cells_of_table:
            return None, None
        result = measurement.swept.read(cells.rows, cells.provenance)
        row = [cells.value(column) for column in ("model", "task", *look.by, "options")]
        row += [cell(result) for cell in look.cells_of_table.values()]
        if not has_block:
            return None, row
        part = look.show(cells, result, name)
    except UNREADABLE as error:
        why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Part(title=cells.title, findings=[f"This could not be drawn from what is stored: {why}"]), row
    figure = part.figure and replace(part.figure, caption=f"{part.figure.caption}{cells.made_by}")
    return replace(part, title=cells.title, figure=figure), row


def _chart(cells: Cells, result: Any, name: str) -> Part:
    return block(result, name, cells.title, [])


def _intervention(cells: Cells, result: Any, name: str) -> Part:
    lengths = runs([*map(int, cells.value("over_lengths").split(", "))])
    return intervention_block(result, name, notes=[f"Over the lengths {lengths}."])


def _profile(cells: Cells, result: Sensitivity, name: str) -> Part:
    require_finite(cells.rows, [f"{known_norm(cells.rows['method'])}_norm"])
    return sensitivity_block(result, None, name)


def _hidden(result: Collapse) -> str:
    """The lengths at which the pair is hidden at y, by dtype."""
    if result.reference.empty:
        return "not known"
    return "; ".join(f"{dtype}: {verdict.where}" for dtype, verdict in verdicts_at_y(result).items())


def _only(show: Callable[..., Part]) -> Callable[[Cells, Any, str], Part]:
    return lambda cells, result, name: show(result, name)


def _look_of(section: ReportSection, show: Callable[..., Part], by: tuple[str, ...], cells: Any = None) -> Look:
    """The look of a measurement that the report of a model has a section on."""
    return Look(section.title, section.nav, section.lead, _only(show), by, cells or {})


_ANSWER_CELLS: dict[str, Callable[[Any], str]] = {
    "right": lambda result: " of ".join(str(int(result.summary[name].sum())) for name in ("right", "asked")),
    "answers it changed nothing of": lambda result: str(int(frame_of(result)["status"].eq("inactive").sum())),
}
_HIDDEN = {"the pair at y is hidden from n (–: no range)": _hidden}
_OF_DRAWN = ("mitigation", "seed")
_OF_DTYPES = ("dtype", "mitigation")
LOOKS: dict[str, Look] = {
    "evaluate": _look_of(EVALUATE, evaluation_block, _OF_DTYPES[::-1], _ANSWER_CELLS),
    "failure-stage": _look_of(FAILURE_STAGE, failure_stage_block, ("seed",)),
    "probe": Look("What do probes decode?", "Decoded", _DECODED, _only(probe_block), _OF_DRAWN),
    "probe-intervention": Look("Is it read?", "Read out", _READ, _intervention, _OF_DRAWN),
    "collapse": _look_of(COLLAPSE, collapse_block, ("mitigation",), _HIDDEN),
    "sensitivity": Look(
        "Sensitivity (Section 5)",
        "Sensitivity",
        _PROFILES,
        _profile,
        ("dtype", "mitigation", "seed", "length"),
        longest=True,
    ),
    "bounds": Look("Bounds and forms (Theorem 5.1)", "Bounds", _PATHS, bounds_part, _OF_DTYPES),
}
"""In the order of the page."""
