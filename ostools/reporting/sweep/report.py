"""The report on a sweep: what was asked, what is there, and what the stored numbers say, in one HTML file.

Nothing is measured and no model is loaded: all of it comes out of the directory of `ostools sweep run`. Cost: one read of it,
and the drawing of a few charts for every task and model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError
from ostools.reporting.look import theme
from ostools.reporting.page.page import render
from ostools.reporting.page.section import Finding, More, Part, Section, Table, spelled
from ostools.reporting.page.shell import quoted
from ostools.reporting.sections.about import reading_section
from ostools.reporting.sweep import behaviour, collapse, fate, path_sum, sensitivity
from ostools.reporting.sweep.compared import compared
from ostools.reporting.sweep.parts import CellsSection
from ostools.results import checked_output, write_atomically
from ostools.runs.stored.reading import STATES, AskedCell, Reading, distinct, read
from ostools.runs.stored.table import UNREADABLE

SECTIONS: dict[str, CellsSection] = {
    one.measurement.name: one
    for one in (behaviour.SECTION, *fate.SECTIONS, collapse.SECTION, sensitivity.SECTION, path_sum.SECTION)
}
"""The section of each measurement, in the order of the report."""
TOLD = 50
"""How many failures, and cells that are missing, are told one by one."""


def sweep_report(directory: str | Path, out: str | Path, say: Callable[[str], None]) -> Path:
    """Write a self-contained HTML report on the sweep in `directory`, finished or not.

    `say` is told of every file that is not as it was written; the report says so as well. Raises `InputError` for a directory
    without a sweep, for one in which nothing was asked, and for a path that cannot be written.
    """
    target = checked_output(out, (".html",), option="out")
    broken: list[str] = []
    found = read(directory, say=lambda text: (broken.append(text), say(text))[0])
    if not found.cells:
        raise InputError(f"{directory}: expected the directory of a sweep, found one in which nothing was asked")
    html = render_run(found, broken, ["ostools", "report", "--run", str(directory), "--out", str(out)])
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def render_run(found: Reading, broken: Sequence[str], command: Sequence[str]) -> str:
    """The whole page."""
    built = [section for section in (_built(name, found) for name in SECTIONS) if section is not None]
    again = Section("again", "Run it again", "Run it again", "", [Part(code=" ".join(map(quoted, command)))])
    of_files = [spelled(section) for section in (_state(found, broken, built), _origin(found), *built)]
    sections = [*of_files, reading_section(), again]
    lead = (
        f"{_counted(found)}. Read from what a sweep stored; nothing was measured for this page. The quantities are those of "
        "“Transformers need glasses!” (arXiv 2406.04267)."
    )
    title = f"Sweep in {theme.title(found.directory.name or str(found.directory))}"
    return render("report.html.j2", {"title": title, "lead": lead, "sections": sections})


def _built(measurement: str, found: Reading) -> Section | None:
    """The section of a measurement; where what is stored cannot be shown, that and why."""
    try:
        return SECTIONS[measurement].of(found)
    except UNREADABLE as error:
        why = f"This could not be shown from what is stored: {type(error).__name__}: {error}"
        return Section(measurement, measurement, measurement, "", [Part(title=measurement, findings=[why])])


def _counted(found: Reading) -> str:
    counts = {state: len(found.of(state)) for state in STATES}
    if counts["measured"] == len(found.cells):
        return f"Complete: all {len(found.cells)} cells are measured"
    said = f"PARTIAL: {counts['measured']} of {len(found.cells)} cells are measured"
    said += "".join(f", {counts[state]} {words}" for state, words in _STATES.items() if counts[state])
    partly = sum(bool(cell.failures) for cell in found.of("missing"))
    return said + (f" ({partly} of them failed at other lengths)" if partly else "")


_STATES = {"failed": "failed", "missing": "are still to be measured"}


def _state(found: Reading, broken: Sequence[str], built: Sequence[Section]) -> Section:
    """What was asked and what is there, first of all; then what failed and what is missing."""
    first = [Finding(f"{_counted(found)}.", "", "", ""), *_headlines(built)]
    parts = [Part(first=first), *compared(found), Part(tables=[_asked(found)])]
    if failed := [cell for cell in found.cells if cell.failures]:
        records = [record for cell in failed for record in cell.failures]
        errors = Counter(record.error for record in records)
        rows = [[record.cell, ", ".join(map(str, record.lengths)), record.error] for record in records[:TOLD]]
        kinds = [f"{count} times: {error}" for error, count in errors.most_common(5) if len(records) > TOLD]
        more = "" if len(records) <= TOLD else f", the first {TOLD} of {len(records)}"
        parts.append(
            Part(
                title="Failed, and why",
                tables=[Table(f"Lengths that failed{more}", ["cell", "lengths", "error"], rows)],
                items=kinds,
                notes=["`ostools sweep run` with --retry-failed tries them again."],
            )
        )
    if missing := found.of("missing"):
        names = [
            f"{cell.keyed_cell.cell} ({len(cell.missing)} of {len(cell.keyed_cell.cell.lengths)} lengths)"
            for cell in missing
        ]
        rest = [f"and {len(names) - TOLD} more"] if len(names) > TOLD else []
        said = ["The same `ostools sweep run` command measures them. What stands below is of the cells that are there."]
        parts.append(
            Part(title="Still to be measured", findings=said, more=[More("Which", findings=[*names[:TOLD], *rest])])
        )
    if broken:
        parts.append(Part(title="Left out: files that are not as they were written", items=list(broken[:TOLD])))
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _headlines(built: Sequence[Section]) -> list[Finding]:
    """The first sentence of each section's first part that has one."""
    said = []
    for section in built:
        part = next((part for part in section.parts if part.findings), None)
        if part is not None:
            more = f" ({len(section.parts) - 1} more below)" if len(section.parts) > 1 else ""
            said.append(Finding(f"{part.title}:", f"{part.findings[0]}{more}", section.name, section.nav))
    return said


def _asked(found: Reading) -> Table:
    """A row a measurement, model and task."""
    grouped: dict[tuple[str, str, str], list[AskedCell]] = {}
    for cell in found.cells:
        one = cell.keyed_cell.cell
        grouped.setdefault((one.measurement, one.task, one.model), []).append(cell)
    rows = []
    for key, cells in grouped.items():
        values = {
            name: ", ".join(dict.fromkeys(str(cell.keyed_cell.cell.columns[name]) for cell in cells))
            for name in ("dtype", "mitigation", "seed")
        }
        lengths = sorted({length for cell in cells for length in cell.keyed_cell.cell.lengths})
        states = Counter(cell.state for cell in cells)
        rows.append([*key, *values.values(), _span(lengths)] + [str(states[state]) for state in STATES])
    columns = ["measurement", "task", "model", "dtypes", "mitigations", "seeds", "lengths"]
    return Table("Cells, by what was asked", [*columns, *STATES], rows)


def _span(lengths: Sequence[int]) -> str:
    return str(lengths[0]) if len(lengths) == 1 else f"{len(lengths)} from {lengths[0]} to {lengths[-1]}"


def _origin(found: Reading) -> Section:
    """Models, versions, options: once where all cells share them, and said where they do not."""
    told = found.provenance
    parts = []
    for name in dict.fromkeys(str(model.get("name")) for model in told["models"]):
        loaded = [model for model in told["models"] if str(model.get("name")) == name]
        sources = [one for cell in found.cells for one in cell.sources if str(one["model"].get("name")) == name]
        checkpoints = distinct(source["checkpoint"] for source in sources)
        hashes = {
            dtype: distinct(model.get("weight_hash") for model in loaded if str(model.get("dtype")) == dtype)
            for dtype in dict.fromkeys(str(model.get("dtype")) for model in loaded)
        }  # of the weights as cast: another in every dtype
        count = max(len(checkpoints), *map(len, hashes.values()))
        differ = [f"These cells are of {count} different checkpoints under one name: do not compare them."]
        parts.append(Part(title=name, terms=_model(loaded, checkpoints, hashes), findings=differ if count > 1 else []))
    rest = [("measured", " to ".join(dict.fromkeys(told["time"])) or "nothing yet")]
    rest += [
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items()))
        for versions in told["versions"]
    ]
    rest += [(str(one["measurement"]), _options(one)) for one in told["measurements"]]
    rest += [("active edits", "; ".join(map(str, edits))) for edits in told["edits"]]
    rest += [("code (sha256 of what decides numbers)", ", ".join(map(str, told["code"])))] if told["code"] else []
    mixed = [
        f"These cells were measured with {len(told[name])} {words}: numbers may differ for that alone."
        for name, words in (("versions", "sets of versions"), ("code", "versions of the code"))
        if len(told[name]) > 1
    ]
    parts.append(Part(title="All cells", terms=rest, findings=mixed))
    return Section("origin", "Where the numbers come from", "Origin", "", parts)


def _model(
    loaded: Sequence[Any], checkpoints: Sequence[str], hashes: Mapping[str, Sequence[Any]]
) -> list[tuple[str, str]]:
    """What every load of a model shares, and its dtypes and devices."""
    one = loaded[0]
    size = one.get("n_parameters")
    parameters = f", {size:,} parameters" if isinstance(size, int) else ""
    return [
        ("revision", str(one.get("revision") or "none (not from a hub)")),
        ("checkpoint (sha256 of its files)", ", ".join(one or "unknown" for one in checkpoints)),
        ("weights (sha256) by dtype", "; ".join(f"{dtype} {', '.join(map(str, f))}" for dtype, f in hashes.items())),
        ("architecture", f"{one.get('architecture')}{parameters}"),
        ("dtypes, device", f"{', '.join(hashes)} on {one.get('device')}"),
    ]


def _options(one: Any) -> str:
    given = [f"{name} {value}" for name, value in one.items() if name != "measurement"]
    return ", ".join(given) or "no options"
