"""The report on a sweep: its cells, what failed, and sections on the stored numbers, in one HTML
file.

Nothing is measured and no model is loaded. Cost: one read of the directory of `ostools sweep run`,
and a few charts for every task and model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError
from ostools.ground.words import runs
from ostools.reporting.page.section import (
    Headline,
    More,
    Part,
    Section,
    Table,
    render_sections,
    spelled,
)
from ostools.reporting.page.shell import quoted
from ostools.reporting.sections.about import (
    again_section,
    origin_terms,
    reading_section,
    versions_of,
)
from ostools.reporting.style import theme
from ostools.reporting.sweep.sections import sections_of
from ostools.results import Provenance, checked_output, write_atomically
from ostools.sweep.reading import STATES, AskedCell, SweepReading, distinct, read

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
    sweep = read(directory, say=lambda text: (broken.append(text), say(text))[0])
    if not sweep.cells:
        raise InputError(
            f"{directory}: expected the directory of a sweep, found one in which nothing was asked"
        )
    html = render_run(
        sweep, broken, ["ostools", "report", "--run", str(directory), "--out", str(out)]
    )
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def render_run(sweep: SweepReading, broken: Sequence[str], command: Sequence[str]) -> str:
    """The page of a sweep."""
    measured = list(sections_of(sweep))
    sections = [
        spelled(section) for section in (_state(sweep, broken, measured), _origin(sweep), *measured)
    ]
    lead = (
        f"{_count(sweep)}. Read from what a sweep stored; nothing was measured for this page. The quantities are those of "
        "“Transformers need glasses!” (arXiv 2406.04267)."
    )
    title = f"Sweep in {theme.title(sweep.directory.name or str(sweep.directory))}"
    again = again_section(" ".join(map(quoted, command)))
    return render_sections(title, lead, [*sections, reading_section(), again])


def _count(sweep: SweepReading) -> str:
    total, counts = len(sweep.cells), {state: len(sweep.of(state)) for state in STATES}
    if counts["measured"] == total:
        return f"Complete: all {total} cells are measured"
    words = {"failed": "failed", "missing": "are still to be measured"}
    text = f"PARTIAL: {counts['measured']} of {total} cells are measured"
    text += "".join(f", {counts[state]} {verb}" for state, verb in words.items() if counts[state])
    partly = sum(bool(cell.failures) for cell in sweep.of("missing"))
    return text + (f" ({partly} of them failed at other lengths)" if partly else "")


def _state(sweep: SweepReading, broken: Sequence[str], sections: Sequence[Section]) -> Section:
    """How many cells are measured, the findings, the cells, what failed and what is missing."""
    lines = [Headline(f"{_count(sweep)}.", "", "", ""), *_headlines(sections)]
    parts = [Part(headlines=lines), Part(tables=[_cells(sweep)]), *_failed(sweep)]
    if missing := sweep.of("missing"):
        names = [
            f"{cell.keyed_cell.cell} ({len(cell.missing)} of {len(cell.keyed_cell.cell.lengths)} lengths)"
            for cell in missing
        ]
        further = [f"and {len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
        how = "The same `ostools sweep run` command measures them. What stands below is of the cells that are there."
        more = [More("Which", findings=[*names[:MOST_LISTED], *further])]
        parts.append(Part(title="Still to be measured", findings=[how], more=more))
    if broken:
        parts.append(
            Part(
                title="Left out: files that are not as they were written",
                items=list(broken[:MOST_LISTED]),
            )
        )
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _failed(sweep: SweepReading) -> list[Part]:
    """The failures, and the most frequent errors of many; empty where nothing failed."""
    records = [record for cell in sweep.cells for record in cell.failures]
    if not records:
        return []
    listed = "" if len(records) <= MOST_LISTED else f", the first {MOST_LISTED} of {len(records)}"
    rows = [
        [record.cell, ", ".join(map(str, record.lengths)), record.error]
        for record in records[:MOST_LISTED]
    ]
    table = Table(f"Lengths that failed{listed}", ["cell", "lengths", "error"], rows)
    errors = Counter(record.error for record in records).most_common(5) if listed else []
    kinds = [f"{count} times: {error}" for error, count in errors]
    note = "`ostools sweep run` with --retry-failed tries them again."
    return [Part(title="Failed, and why", tables=[table], items=kinds, notes=[note])]


def _headlines(sections: Sequence[Section]) -> list[Headline]:
    """The first sentence of each section."""
    lines = []
    for section in sections:
        parts = [part for part in section.parts if part.findings]
        if parts:
            more = f" ({len(parts) - 1} more below)" if len(parts) > 1 else ""
            text = f"{parts[0].findings[0]}{more}"
            lines.append(Headline(f"{parts[0].title}:", text, section.name, section.nav))
    return lines


def _cells(sweep: SweepReading) -> Table:
    """A row for each measurement, task and model."""
    grouped: dict[tuple[str, str, str], list[AskedCell]] = {}
    for cell in sweep.cells:
        key = cell.keyed_cell.cell
        grouped.setdefault((key.measurement, key.task, key.model), []).append(cell)
    rows = []
    for key, cells in grouped.items():
        sweep_cells = [cell.keyed_cell.cell for cell in cells]
        values = [
            dict.fromkeys(str(getattr(cell, name)) for cell in sweep_cells)
            for name in ("dtype", "mitigation", "seed")
        ]
        lengths, states = (
            sorted({*chain(*(cell.lengths for cell in sweep_cells))}),
            Counter(cell.state for cell in cells),
        )
        rows.append(
            [
                *key,
                *map(", ".join, values),
                runs(lengths),
                *(str(states[state]) for state in STATES),
            ]
        )
    columns = ["measurement", "task", "model", "dtypes", "mitigations", "seeds", "lengths"]
    return Table("Cells, by what was asked", [*columns, *STATES], rows)


def _origin(sweep: SweepReading) -> Section:
    """Models, versions and options; where cells do not share them, that is said."""
    origin = sweep.provenance
    parts = [
        _model(sweep, name)
        for name in dict.fromkeys(str(model.get("name")) for model in origin["models"])
    ]
    terms = [("measured", " to ".join(dict.fromkeys(origin["time"])) or "nothing yet")]
    terms += [("versions", versions_of(versions)) for versions in origin["versions"]]
    for options in origin["measurements"]:
        words = [f"{name} {value}" for name, value in options.items() if name != "measurement"]
        terms.append((str(options["measurement"]), ", ".join(words) or "no options"))
    terms += [("active edits", "; ".join(map(str, edits))) for edits in origin["edits"]]
    if origin["code"]:
        terms.append(("code (sha256 of what decides numbers)", ", ".join(map(str, origin["code"]))))
    mixed = [
        f"These cells were measured with {len(origin[name])} {words}: numbers may differ for that alone."
        for name, words in (("versions", "sets of versions"), ("code", "versions of the code"))
        if len(origin[name]) > 1
    ]
    return Section(
        "origin",
        "Where the numbers come from",
        "Origin",
        "",
        [*parts, Part("All cells", terms=terms, findings=mixed)],
    )


def _model(sweep: SweepReading, name: str) -> Part:
    """What every load of a model shares, its dtypes with their weights, and whether there are
    several checkpoints.
    """
    sources = [
        source
        for cell in sweep.cells
        for source in cell.sources
        if str(source["model"].get("name")) == name
    ]
    checkpoints = distinct(source["checkpoint"] for source in sources)
    hashes: dict[str, list[Any]] = {}  # of the weights as cast: another in every dtype
    for model in distinct(source["model"] for source in sources):
        hashes.setdefault(str(model.get("dtype")), []).append(model.get("weight_hash"))
    by_dtype = "; ".join(
        f"{dtype} {', '.join(map(str, distinct(values)))}" for dtype, values in hashes.items()
    )
    first = sources[0]
    shared = origin_terms(Provenance(first["model"], {}, None, first["versions"]))
    terms = [
        *(term for term in shared if term[0] in ("revision", "architecture")),
        (
            "checkpoint (sha256 of its files)",
            ", ".join(checkpoint or "unknown" for checkpoint in checkpoints),
        ),
        ("weights (sha256) by dtype", by_dtype),
        ("dtypes, device", f"{', '.join(hashes)} on {first['model'].get('device')}"),
    ]
    count = max(len(checkpoints), *(len(distinct(values)) for values in hashes.values()))
    differ = [
        f"These cells are of {count} different checkpoints under one name: do not compare them."
    ]
    return Part(name, terms=terms, findings=differ if count > 1 else [])
