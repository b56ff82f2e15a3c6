"""The report on a sweep: its cells, what failed, and sections on the stored numbers, in one HTML
file.

Nothing is measured and no model is loaded. Cost: one read of the directory of `ostools sweep run`,
and a few charts for every task and model.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd

from ostools.ground import InputError
from ostools.ground.words import runs
from ostools.reporting.page.section import (
    Headline,
    Part,
    Section,
    Table,
    frame_table,
    render_sections,
)
from ostools.reporting.sections.about import (
    again_section,
    origin_terms,
    reading_section,
    versions_of,
)
from ostools.reporting.style import theme
from ostools.reporting.sweep.sections import sections_of
from ostools.results import checked_output, write_atomically
from ostools.sweep.reading import STATES, SweepReading, distinct, provenance_of, read

MOST_LISTED = 50
"""The most failures, and missing cells, that are listed."""


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
    measured = list(sections_of(sweep))
    lead = (
        f"{_count(sweep)}. Read from what a sweep stored; nothing was measured for this page. The "
        "quantities are those of “Transformers need glasses!” (arXiv 2406.04267)."
    )
    again = again_section(
        shlex.join(["ostools", "report", "--run", str(directory), "--out", str(out)])
    )
    sections = [_state(sweep, broken, measured), _origin(sweep), *measured]
    title = f"Sweep in {theme.title(sweep.directory.name or str(sweep.directory))}"
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
    lines = [Headline(f"{_count(sweep)}.", "", "", "")]
    lines += [
        Headline(f"{part.title}:", part.findings[0], section.name, section.nav)
        for section in sections  # the first sentence of each
        for part in [part for part in section.parts if part.findings][:1]
    ]
    failures = [cell.failure for cell in sweep.of("failed") if cell.failure is not None]
    rows = [[failure.cell, failure.error] for failure in failures[:MOST_LISTED]]
    failed = Table(f"Cells that failed: {len(failures)}", ["cell", "error"], rows)
    again = "`ostools sweep run` with --retry-failed tries them again."
    missing = [str(cell.keyed_cell.cell) for cell in sweep.of("missing")]
    how = (
        "The same `ostools sweep run` command measures them. What stands below is of the cells "
        "that are there."
    )
    which = Part(f"{len(missing)} cells", items=missing[:MOST_LISTED])
    parts = [
        Part(headlines=lines, tables=[_cells(sweep)]),
        *([Part("Failed, and why", tables=[failed], notes=[again])] if failures else []),
        *([Part("Still to be measured", findings=[how], more=[which])] if missing else []),
        *(
            [Part("Left out: files that are not as they were written", items=broken)]
            if broken
            else []
        ),
    ]
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _cells(sweep: SweepReading) -> Table:
    """A row for each measurement, task and model: what was asked, and how many cells are there."""
    keys, values = ["measurement", "task", "model"], ["dtype", "mitigation", "seed"]
    rows = []
    for cell in sweep.cells:
        sweep_cell = cell.keyed_cell.cell
        names = {name: str(getattr(sweep_cell, name)) for name in (*keys, *values)}
        rows.append(names | {"lengths": sweep_cell.lengths, "state": cell.state})
    groups = pd.DataFrame(rows).groupby(keys, sort=False)
    table = groups[values].agg(lambda column: ", ".join(column.unique()))
    table["lengths"] = groups["lengths"].agg(lambda column: runs(sorted({*chain(*column)})))
    for state in STATES:
        table[state] = groups["state"].agg(lambda column, state=state: int((column == state).sum()))
    return frame_table("Cells, by what was asked", table.reset_index())


def _origin(sweep: SweepReading) -> Section:
    """Models, versions and options; where cells do not share them, that is said."""
    origin = sweep.provenance
    names = dict.fromkeys(str(model.get("name")) for model in origin["models"])
    terms = [("measured", " to ".join(dict.fromkeys(origin["time"])) or "nothing yet")]
    terms += [("versions", versions_of(versions)) for versions in origin["versions"]]
    terms += [
        (
            str(options["measurement"]),
            ", ".join(f"{name} {value}" for name, value in options.items()),
        )
        for options in origin["measurements"]
    ]
    terms += [("active edits", "; ".join(map(str, edits))) for edits in origin["edits"]]
    terms += [("code", ", ".join(map(str, origin["code"])))]
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
    every = [cell.source for cell in sweep.cells if cell.source is not None]
    sources = [source for source in every if str(source["model"].get("name")) == name]
    checkpoints = distinct(source["checkpoint"] for source in sources)
    models = pd.DataFrame([source["model"] for source in sources], columns=["dtype", "weight_hash"])
    # Of the weights as cast: another hash in every dtype.
    hashes = models.astype(str).groupby("dtype", sort=False)["weight_hash"].unique()
    terms = [
        *origin_terms(provenance_of(sources[0])),
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
