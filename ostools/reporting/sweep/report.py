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
from ostools.reporting.page.section import (
    Finding,
    More,
    Part,
    Section,
    Table,
    render_sections,
    spelled,
    table_from,
)
from ostools.reporting.page.shell import quoted
from ostools.reporting.sections.about import again_section, reading_section, versions_of
from ostools.reporting.style import theme
from ostools.reporting.sweep.conditions import condition_parts
from ostools.reporting.sweep.sections import SECTIONS as SECTIONS
from ostools.results import checked_output, write_atomically
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.reading import STATES, AskedCell, Reading, distinct, read

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
    built = [section for name in SECTIONS if (section := _section(name, found)) is not None]
    of_files = [spelled(section) for section in (_state(found, broken, built), _origin(found), *built)]
    lead = (
        f"{_counted(found)}. Read from what a sweep stored; nothing was measured for this page. The quantities are those of "
        "“Transformers need glasses!” (arXiv 2406.04267)."
    )
    title = f"Sweep in {theme.title(found.directory.name or str(found.directory))}"
    again = again_section(" ".join(map(quoted, command)))
    return render_sections(title, lead, [*of_files, reading_section(), again])


def _section(measurement: str, found: Reading) -> Section | None:
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
    parts = [Part(first=first), *condition_parts(found), Part(tables=[_asked(found)]), *_failed(found)]
    if missing := found.of("missing"):
        names = [
            f"{cell.keyed_cell.cell} ({len(cell.missing)} of {len(cell.keyed_cell.cell.lengths)} lengths)"
            for cell in missing
        ]
        rest = [f"and {len(names) - TOLD} more"] if len(names) > TOLD else []
        said = ["The same `ostools sweep run` command measures them. What stands below is of the cells that are there."]
        more = [More("Which", findings=[*names[:TOLD], *rest])]
        parts.append(Part(title="Still to be measured", findings=said, more=more))
    if broken:
        parts.append(Part(title="Left out: files that are not as they were written", items=list(broken[:TOLD])))
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _failed(found: Reading) -> list[Part]:
    """The failures one by one, and the most frequent of many; none where nothing failed."""
    records = [record for cell in found.cells for record in cell.failures]
    if not records:
        return []
    columns: dict[str, Any] = {
        "cell": lambda row: row["cell"],
        "lengths": lambda row: ", ".join(map(str, row["lengths"])),
        "error": lambda row: row["error"],
    }
    rest = "" if len(records) <= TOLD else f", the first {TOLD} of {len(records)}"
    table = table_from(f"Lengths that failed{rest}", map(vars, records[:TOLD]), columns)
    errors = Counter(record.error for record in records).most_common(5) if rest else []
    kinds = [f"{count} times: {error}" for error, count in errors]
    note = "`ostools sweep run` with --retry-failed tries them again."
    return [Part(title="Failed, and why", tables=[table], items=kinds, notes=[note])]


def _headlines(built: Sequence[Section]) -> list[Finding]:
    """The first sentence of each section's first part that has one."""
    lines = []
    for section in built:
        parts = [part for part in section.parts if part.findings]
        if parts:
            more = f" ({len(parts) - 1} more below)" if len(parts) > 1 else ""
            text = f"{parts[0].findings[0]}{more}"
            lines.append(Finding(f"{parts[0].title}:", text, section.name, section.nav))
    return lines


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
    rest += [("versions", versions_of(versions)) for versions in told["versions"]]
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
