"""The report on a sweep: its cells, what failed, and sections on the stored numbers, in one HTML
file.

Nothing is measured and no model is loaded. Cost: one read of the directory of `ostools sweep run`,
and a few charts for every task and model.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd

from ostools.ground import InputError, runs
from ostools.reporting.page.section import (
    Headline,
    Part,
    Section,
    Table,
    block,
    frame_table,
    reason_of,
    render_sections,
)
from ostools.reporting.sections.about import (
    again_section,
    origin_terms,
    reading_section,
    versions_of,
)
from ostools.reporting.sections.answers import EVALUATE
from ostools.reporting.sections.collapse import COLLAPSE
from ostools.reporting.style.theme import inert
from ostools.reporting.style.theme import title as shown_title
from ostools.results import Frame, checked_output, write_atomically
from ostools.sweep.cells import MEASUREMENTS, Measurement
from ostools.sweep.reading import STATES, SweepReading, distinct, provenance_of, read, result_of
from ostools.sweep.store import MADE_BY, UNREADABLE

MOST_LISTED = 50
"""The most failures, and missing cells, that are listed."""
MOST_BLOCKS = 24
"""The most results of a measurement that are drawn."""
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
    the longest prompts alone.
    """

    title: str
    lead: str = ""
    by: tuple[str, ...] = ("dtype", "mitigation", "seed")


LOOKS: dict[str, Look] = {
    "evaluate": Look(EVALUATE.title, EVALUATE.lead, ("mitigation", "dtype")),
    "collapse": Look(COLLAPSE.title, COLLAPSE.lead, ("mitigation",)),
    "influence-by-distance": Look("Influence by distance", _LONGEST, _OF_PROMPT),
    "token-homogenization": Look("How alike the tokens of a prompt are", _LONGEST, _OF_PROMPT),
    "sensitivity": Look("Sensitivity (Section 5)", f"{_PROFILES} {_LONGEST}", _OF_PROMPT),
    "bounds": Look("Bounds and forms (Theorem 5.1)", _PATHS, _OF_PROMPT),
}
"""In the order of the page."""


def sweep_report(directory: str | Path, out: str | Path, say: Callable[[str], None]) -> Path:
    """Write a self-contained HTML report on the sweep in `directory`, finished or not.

    say: called with a line for every file that is not as it was written; the report says so as
    well. Raises `InputError` for a directory without a sweep or with an empty one, and for a path
    that cannot be written.
    """
    target = checked_output(out, (".html",), option="out")
    broken: list[str] = []
    sweep = read(directory, say=broken.append)
    for line in broken:
        say(line)
    if not sweep.cells:
        raise InputError(
            f"{directory}: expected the directory of a sweep, found one in which nothing was asked"
        )
    measured = [
        section_of(sweep, MEASUREMENTS[name])
        for name in dict.fromkeys([*LOOKS, *MEASUREMENTS])
        if name in sweep.tables
    ]
    lead = (
        f"{_count(sweep)}. Read from what a sweep stored; nothing was measured for this page. The "
        "quantities are those of “Transformers need glasses!” (arXiv 2406.04267)."
    )
    again = again_section(
        shlex.join(["ostools", "report", "--run", str(directory), "--out", str(out)])
    )
    sections = [_state(sweep, broken, measured), _origin(sweep), *measured]
    title = f"Sweep in {shown_title(sweep.directory.name or str(sweep.directory))}"
    html = render_sections(title, lead, [*sections, reading_section(), again])
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def _count(sweep: SweepReading) -> str:
    counts = {state: len(sweep.of(state)) for state in STATES}
    total = len(sweep.cells)
    if counts["measured"] == total:
        return f"Complete: all {total} cells are measured"
    return (
        f"PARTIAL: {counts['measured']} of {total} cells are measured, {counts['failed']} failed, "
        f"{counts['missing']} are still to be measured"
    )


def _state(sweep: SweepReading, broken: Sequence[str], sections: Sequence[Section]) -> Section:
    """How many cells are measured, the findings, the cells, what failed and what is missing."""
    first_sentences = [
        Headline(f"{part.title}:", part.findings[0], section.name, section.nav)
        for section in sections
        for part in [part for part in section.parts if part.findings][:1]
    ]
    lines = [Headline(f"{_count(sweep)}.", "", "", ""), *first_sentences]
    failures = [[str(cell.keyed_cell.cell), cell.failure] for cell in sweep.of("failed")]
    failed = Table(f"Cells that failed: {len(failures)}", ["cell", "error"], failures[:MOST_LISTED])
    missing = [str(cell.keyed_cell.cell) for cell in sweep.of("missing")]
    parts = [Part(headlines=lines, tables=[_cells(sweep)])]
    if failures:
        again = "`ostools sweep run` with --retry-failed tries them again."
        parts.append(Part("Failed, and why", tables=[failed], notes=[again]))
    if missing:
        how = (
            "The same `ostools sweep run` command measures them. What stands below is of the cells "
            "that are there."
        )
        which = Part(f"{len(missing)} cells", items=missing[:MOST_LISTED])
        parts.append(Part("Still to be measured", findings=[how], more=[which]))
    if broken:
        parts.append(Part("Left out: files that are not as they were written", items=broken))
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _cells(sweep: SweepReading) -> Table:
    """A row for each measurement, task and model: what was asked, and how many cells are there."""
    states = [(cell.keyed_cell.cell, cell.state) for cell in sweep.cells]
    rows = [{**cell.columns, "lengths": cell.lengths, "state": state} for cell, state in states]
    groups = pd.DataFrame(rows).groupby(["measurement", "task", "model"], sort=False)
    values = groups[["dtype", "mitigation", "seed"]]
    table = values.agg(lambda column: ", ".join(map(str, column.unique())))
    table["lengths"] = groups["lengths"].agg(lambda column: runs(sorted({*chain(*column)})))
    counts: Frame = groups["state"].value_counts().unstack(fill_value=0)
    table = table.join(counts.reindex(columns=list(STATES), fill_value=0))
    return frame_table("Cells, by what was asked", table.reset_index())


def _origin(sweep: SweepReading) -> Section:
    """Models, versions and options; where cells do not share them, that is said."""
    origin = sweep.provenance
    names = dict.fromkeys(str(model.get("name")) for model in origin["models"])
    terms = [
        ("measured", " to ".join(dict.fromkeys(origin["time"])) or "nothing yet"),
        *(("versions", versions_of(versions)) for versions in origin["versions"]),
        *(
            (
                str(options["measurement"]),
                ", ".join(f"{name} {value}" for name, value in options.items()),
            )
            for options in origin["measurements"]
        ),
        *(("active edits", "; ".join(map(str, edits))) for edits in origin["edits"]),
        ("code", ", ".join(map(str, origin["code"]))),
    ]
    mixed = [
        f"These cells were measured with {len(origin[name])} {words}: numbers may differ for that "
        "alone."
        for name, words in (("versions", "sets of versions"), ("code", "versions of the code"))
        if len(origin[name]) > 1
    ]
    parts = [
        *(_model(sweep, name) for name in names),
        Part("All cells", terms=terms, findings=mixed),
    ]
    return Section("origin", "Where the numbers come from", "Origin", "", parts)


def _model(sweep: SweepReading, name: str) -> Part:
    """What every load of a model shares, its dtypes with their weights, and whether there are
    several checkpoints.
    """
    sources = [
        cell.source
        for cell in sweep.cells
        if cell.source is not None and str(cell.source["model"].get("name")) == name
    ]
    checkpoints = distinct(source["checkpoint"] for source in sources)
    models = pd.DataFrame([source["model"] for source in sources], columns=["dtype", "weight_hash"])
    # Of the weights as cast: another hash in every dtype.
    hashes = models.astype(str).groupby("dtype", sort=False)["weight_hash"].unique()
    terms = [
        *origin_terms(provenance_of(sources[:1])),
        ("checkpoint (sha256 of its files)", ", ".join(filter(None, checkpoints))),
        (
            "weights (XXH3) by dtype",
            "; ".join(f"{dtype} {', '.join(values)}" for dtype, values in hashes.items()),
        ),
    ]
    count = max(len(checkpoints), *map(len, hashes))
    differ = (
        f"These cells are of {count} different checkpoints under one name: do not compare them."
    )
    return Part(name, terms=terms, findings=[differ] * (count > 1))


# --- the measurements


def section_of(sweep: SweepReading, measurement: Measurement) -> Section:
    """The section of a measurement: a table of what each of its results says first, and a block for
    each that is drawn.
    """
    name, nav = measurement.name, measurement.name.replace("-", " ").capitalize()
    look, table = LOOKS.get(name) or Look(nav), sweep.tables[measurement.name]
    columns = ["model", "task", *look.by, "options"]
    # Rows of two weights under one name are never one result.
    groups = [rows for _, rows in table.groupby([*columns, *MADE_BY], sort=False)]
    parts: list[Part] = []
    finding_rows: list[list[str]] = []
    block_count = 0
    for rows in _longest(groups, columns) if "length" in look.by else groups:
        title = _title(rows, table, columns)
        try:
            result = result_of(sweep, measurement, rows)
            if result.provenance.is_inactive:
                rows = rows.assign(mitigation=rows["mitigation"] + " (inactive)")
                title = _title(rows, table, columns)
            finding_rows.append([*map(str, rows[columns].iloc[0]), *result.findings()[:1]])
            if block_count < MOST_BLOCKS:
                parts.append(block(result, f"{name}-{block_count}", title, title=title))
                block_count += 1
        except UNREADABLE as error:
            why = f"This could not be drawn from what is stored: {reason_of(error)}"
            parts.append(Part(title=title, findings=[why]))
    every = Table(f"{nav}: every result", [*columns, "finding"], finding_rows)
    note = f"Drawn are {block_count} of {len(groups)} results."
    return Section(name, look.title, nav, look.lead, [Part(tables=[every], notes=[note]), *parts])


def _longest(groups: list[Frame], columns: list[str]) -> list[Frame]:
    """Of each condition the rows of its longest prompt, with the least seed of those."""
    names = [name for name in (*columns, *MADE_BY) if name not in ("length", "seed")]
    longest: dict[tuple[str, ...], Frame] = {}
    for rows in sorted(groups, key=lambda rows: (-rows["length"].iloc[0], rows["seed"].iloc[0])):
        longest.setdefault(tuple(map(str, rows[names].iloc[0])), rows)
    return list(longest.values())


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
