"""The sections of a sweep's page: a block for each stored result, its chart, sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.measure import Collapse, Sensitivity
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sections.answers import EVALUATE, evaluation_block
from ostools.reporting.sections.blocks import block, in_detail
from ostools.reporting.sections.collapse import COLLAPSE, collapse_block
from ostools.reporting.sections.probes import FAILURE_STAGE
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
    "was not trained on. Beside it stand the same probes with shuffled labels and on the same architecture with random weights."
)
_READ = (
    "A representation is moved so that the probe there says the next answer. By how much does the output's answer move?"
)
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes."
)
_LONGEST = "Drawn is the longest prompt of each condition, with its least seed."
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that stands beside it. The "
    f"paper's forms are not bounds. {_LONGEST}"
)


def _result_block(cells: Cells, result: Any, name: str) -> Part:
    return block(result, name, cells.title, result.findings(), has_words=True, more=[in_detail(result)])


@dataclass(frozen=True)
class Look:
    """How the results of a measurement are shown; the fields say it of one that `LOOKS` does not know.

    by: the columns that tell results apart, beside model and task. show: the block of a result. cells_of_table: cells in a
    table of all results, by header. longest: the longest prompts alone have a block.
    """

    title: str
    lead: str = ""
    by: tuple[str, ...] = ("dtype", "mitigation", "seed")
    show: Callable[[Cells, Any, str], Part] = _result_block
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
    name, nav = measurement.name, measurement.name.replace("-", " ").capitalize()
    look = LOOKS.get(name) or Look(nav)
    results = list(cells_of(sweep, name, look.by))
    parts, rows = [], []
    for cells in results:
        has_block = len(parts) < MOST_BLOCKS and (not look.longest or cells.is_longest)
        part, row = _part_and_row(measurement, look, cells, f"{name}-{len(parts)}", has_block)
        parts += [] if part is None else [part]
        rows += [] if row is None else [row]
    notes = [f"Drawn are {len(parts)} of {len(results)} results."] if len(parts) < len(results) else []
    columns = ["model", "task", *look.by, "options", *look.cells_of_table]
    tables = [Table(f"{nav}: every result", columns, rows)] if look.cells_of_table and rows else []
    if tables or notes:
        parts.insert(0, Part(tables=tables, notes=notes))
    if parts:
        yield Section(name, look.title, nav, look.lead, parts)


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


def _profile(cells: Cells, result: Sensitivity, name: str) -> Part:
    require_finite(cells.rows, [f"{known_norm(cells.rows['method'])}_norm"])
    return sensitivity_block(result, None, name)


def _hidden(result: Collapse) -> str:
    """The lengths at which the pair is hidden at y, by dtype."""
    if result.reference.empty:
        return "not known"
    return "; ".join(f"{dtype}: {verdict.where}" for dtype, verdict in verdicts_at_y(result).items())


_ANSWER_CELLS: dict[str, Callable[[Any], str]] = {
    "right": lambda result: " of ".join(str(int(result.summary[name].sum())) for name in ("right", "asked")),
    "answers it changed nothing of": lambda result: str(int(frame_of(result)["status"].eq("inactive").sum())),
}
LOOKS: dict[str, Look] = {
    "evaluate": Look(
        EVALUATE.title,
        EVALUATE.lead,
        ("mitigation", "dtype"),
        lambda cells, result, name: evaluation_block(result, name),
        _ANSWER_CELLS,
    ),
    "failure-stage": Look(FAILURE_STAGE.title, FAILURE_STAGE.lead, ("seed",)),
    "probe": Look("What do probes decode?", _DECODED, ("mitigation", "seed")),
    "probe-intervention": Look("Is it read?", _READ, ("mitigation", "seed")),
    "collapse": Look(
        COLLAPSE.title,
        COLLAPSE.lead,
        ("mitigation",),
        lambda cells, result, name: collapse_block(result, name),
        {"the pair at y is hidden from n (–: no range)": _hidden},
    ),
    "sensitivity": Look(
        "Sensitivity (Section 5)",
        f"{_PROFILES} {_LONGEST}",
        ("dtype", "mitigation", "seed", "length"),
        _profile,
        longest=True,
    ),
    "bounds": Look("Bounds and forms (Theorem 5.1)", _PATHS, ("dtype", "mitigation"), bounds_part),
}
"""In the order of the page."""
