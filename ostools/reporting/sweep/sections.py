"""Sections of a sweep's page: a block for each stored result, its chart, sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ostools.measure.swept import TEXT_TASK
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.page.section import Part, Section, Table, block, reason_of
from ostools.reporting.sections.answers import EVALUATE
from ostools.reporting.sections.collapse import COLLAPSE
from ostools.reporting.style.theme import inert
from ostools.results import Frame, Provenance, Result
from ostools.sweep.measurements import MEASUREMENTS, Measurement
from ostools.sweep.reading import PLACE, SweepReading, provenance_of
from ostools.sweep.store import MADE_BY, UNREADABLE

MOST_BLOCKS = 24
"""The most results of a measurement that are drawn."""
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is "
    "tested on sequences that it was not trained on. Beside it stand the same probes with "
    "shuffled labels and on the same architecture with random weights."
)
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the "
    "derivative ∂y/∂v. “full” is the real derivative; “frozen” holds attention patterns and norm "
    "scales, as the theorem assumes."
)
_LONGEST = "Drawn is the longest prompt of each condition, with its least seed."
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the "
    "derivative that `ost.sensitivity` measures: `ost.compare` holds one against the other. The "
    f"paper's forms are not bounds. {_LONGEST}"
)
_OF_PROMPT = ("dtype", "mitigation", "seed", "length")


@dataclass(frozen=True)
class Look:
    """How the results of a measurement are shown; the fields say it of one that `LOOKS` does not
    know.

    by: the columns that tell results apart, beside model and task; one with a length in them shows
    the longest prompts alone. cells_of_table: cells in a table of all results, by header.
    """

    title: str
    lead: str = ""
    by: tuple[str, ...] = ("dtype", "mitigation", "seed")
    cells_of_table: Mapping[str, Callable[..., str]] = field(default_factory=dict)


def sections_of(sweep: SweepReading) -> Iterator[Section]:
    """A section for each measurement that has rows, in the order of `LOOKS`."""
    for name in dict.fromkeys([*LOOKS, *MEASUREMENTS]):
        if name in sweep.tables:
            yield section_of(sweep, MEASUREMENTS[name])


def section_of(sweep: SweepReading, measurement: Measurement) -> Section:
    """The section of a measurement: a table of its results, and a block for each that is drawn."""
    name, nav = measurement.name, measurement.name.replace("-", " ").capitalize()
    look, table = LOOKS.get(name) or Look(nav), sweep.tables[measurement.name]
    columns = ["model", "task", *look.by, "options"]
    # Rows of two weights under one name are never one result.
    groups = [rows for _, rows in table.groupby([*columns, *MADE_BY], sort=False)]
    parts: list[Part] = []
    cells: list[list[str]] = []
    for rows in _longest(groups, columns) if "length" in look.by else groups:
        title = _title(rows, table, columns)
        try:
            result = _result(sweep, measurement, rows)
            values = [cell(result) for cell in look.cells_of_table.values()]
            cells.append([*map(str, rows[columns].iloc[0]), *values])
            if len(parts) < MOST_BLOCKS:
                parts.append(block(result, f"{name}-{len(parts)}", title, title=title))
        except UNREADABLE as error:
            why = f"This could not be drawn from what is stored: {reason_of(error)}"
            parts.append(Part(title=title, findings=[why]))
    every = Table(f"{nav}: every result", [*columns, *look.cells_of_table], cells)
    first = Part(
        tables=[every] if look.cells_of_table else [],
        notes=[f"Drawn are {len(parts)} of {len(groups)} results."],
    )
    return Section(name, look.title, nav, look.lead, [first, *parts])


def _longest(groups: list[Frame], columns: list[str]) -> list[Frame]:
    """Of each condition the rows of its longest prompt, with the least seed of those."""
    names = [name for name in (*columns, *MADE_BY) if name not in ("length", "seed")]
    longest: dict[tuple[str, ...], Frame] = {}
    for rows in sorted(groups, key=lambda rows: (-rows["length"].iloc[0], rows["seed"].iloc[0])):
        longest.setdefault(tuple(map(str, rows[names].iloc[0])), rows)
    return [rows for rows in groups if any(rows is of_longest for of_longest in longest.values())]


def _title(rows: Frame, table: Frame, columns: list[str]) -> str:
    """Task and model, and what tells these rows from others of their measurement; the checkpoint
    and code where the rows of their model have several."""
    values = rows.iloc[0]
    differ = [name for name in columns[2:] if table[name].nunique() > 1]
    words = [f"{name} {inert(str(values[name]))}" for name in differ]
    of_model = table[table["model"] == values["model"]]
    made_by = [name for name in MADE_BY if of_model[name].nunique() > 1]
    words += [f"{name} {values[name][:12] or 'unknown'}" for name in made_by]
    return ", ".join([str(values["task"]), str(values["model"]), *words])


def _result(sweep: SweepReading, measurement: Measurement, rows: Frame) -> Result:
    """The result that stored rows make."""
    # Answers have a column "text" too: the task says what a row is of.
    has_texts = "text" in rows and str(rows["task"].iloc[0]) == TEXT_TASK
    read = (measurement.swept.of_texts if has_texts else None) or measurement.swept.read
    own_rows = rows.drop(columns=PLACE).reset_index(drop=True)
    return read(own_rows, _provenance(sweep, rows))


def _provenance(sweep: SweepReading, rows: Frame) -> Provenance:
    """The provenance of the first of these rows' cells; the most of what they differ by in passes
    of their own.
    """
    sources = [source for place in rows[PLACE].unique() if (source := sweep.cells[place].source)]
    most: dict[str, float] = {}
    for source in sources:
        for name, value in source["parameters"].get("difference_at_probed_lengths", {}).items():
            most[name] = max(value, most.get(name, 0.0))
    return provenance_of(sources[0], **({"difference_at_probed_lengths": most} if most else {}))


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
                int(result.frame["status"].eq("inactive").sum())
            ),
        },
    ),
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
    "influence-by-distance": Look("Influence by distance", _LONGEST, _OF_PROMPT),
    "token-homogenization": Look("How alike the tokens of a prompt are", _LONGEST, _OF_PROMPT),
    "sensitivity": Look("Sensitivity (Section 5)", f"{_PROFILES} {_LONGEST}", _OF_PROMPT),
    "bounds": Look("Bounds and forms (Theorem 5.1)", _PATHS, _OF_PROMPT),
}
"""In the order of the page."""
