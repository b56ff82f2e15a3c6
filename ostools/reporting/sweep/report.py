"""The report on a sweep: its cells, what failed, and sections on the stored numbers, in one HTML file.

Nothing is measured and no model is loaded. Cost: one read of the directory of `ostools sweep run`, and
a few charts for every task and model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError
from ostools.measure import Collapse
from ostools.measure.answers.evaluate import Evaluation
from ostools.reporting.page.section import (
    Headline,
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
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme
from ostools.reporting.summary.summary import headlines, verdicts
from ostools.reporting.sweep.cells import groups, provenance_of, rows_where
from ostools.reporting.sweep.sections import sections_of
from ostools.results import Frame, checked_output, write_atomically
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.reading import MADE_BY, STATES, AskedCell, Reading, distinct, read

MOST_LISTED = 50
"""The most failures, and missing cells, that are listed."""
MOST_CONDITIONS = 16
"""The most models under mitigations that the first section compares."""
_ALIKE = {"evaluate": ("dtype", "options", *MADE_BY), "collapse": ("options", *MADE_BY)}
"""The columns in which results with one headline are alike, beside model and mitigation."""


def sweep_report(directory: str | Path, out: str | Path, say: Callable[[str], None]) -> Path:
    """Write a self-contained HTML report on the sweep in `directory`, finished or not.

    say: called with a line for every file that is not as it was written; the report says so as well.
    Raises `InputError` for a directory without a sweep or with an empty one, and for a path that cannot
    be written.
    """
    target = checked_output(out, (".html",), option="out")
    broken: list[str] = []
    sweep = read(directory, say=lambda text: (broken.append(text), say(text))[0])
    if not sweep.cells:
        raise InputError(f"{directory}: expected the directory of a sweep, found one in which nothing was asked")
    html = render_run(sweep, broken, ["ostools", "report", "--run", str(directory), "--out", str(out)])
    return write_atomically(target, lambda part: part.write_text(html, encoding="utf-8"))


def render_run(sweep: Reading, broken: Sequence[str], command: Sequence[str]) -> str:
    """The page of a sweep."""
    measured = list(sections_of(sweep))
    sections = [spelled(section) for section in (_state(sweep, broken, measured), _origin(sweep), *measured)]
    lead = (
        f"{_count(sweep)}. Read from what a sweep stored; nothing was measured for this page. The quantities are those of "
        "“Transformers need glasses!” (arXiv 2406.04267)."
    )
    title = f"Sweep in {theme.title(sweep.directory.name or str(sweep.directory))}"
    again = again_section(" ".join(map(quoted, command)))
    return render_sections(title, lead, [*sections, reading_section(), again])


def _count(sweep: Reading) -> str:
    total, counts = len(sweep.cells), {state: len(sweep.of(state)) for state in STATES}
    if counts["measured"] == total:
        return f"Complete: all {total} cells are measured"
    words = {"failed": "failed", "missing": "are still to be measured"}
    text = f"PARTIAL: {counts['measured']} of {total} cells are measured"
    text += "".join(f", {counts[state]} {verb}" for state, verb in words.items() if counts[state])
    partly = sum(bool(cell.failures) for cell in sweep.of("missing"))
    return text + (f" ({partly} of them failed at other lengths)" if partly else "")


def _state(sweep: Reading, broken: Sequence[str], sections: Sequence[Section]) -> Section:
    """How many cells are measured, the findings, the cells, what failed and what is missing."""
    lines = [Headline(f"{_count(sweep)}.", "", "", ""), *_headlines(sections)]
    parts = [Part(headlines=lines), *_condition_parts(sweep), Part(tables=[_cells(sweep)]), *_failed(sweep)]
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
        parts.append(Part(title="Left out: files that are not as they were written", items=list(broken[:MOST_LISTED])))
    return Section("findings", "What was asked, and what is there", "Cells", "", parts)


def _failed(sweep: Reading) -> list[Part]:
    """The failures, and the most frequent errors of many; empty where nothing failed."""
    records = [record for cell in sweep.cells for record in cell.failures]
    if not records:
        return []
    columns: dict[str, Any] = {
        "cell": lambda row: row["cell"],
        "lengths": lambda row: ", ".join(map(str, row["lengths"])),
        "error": lambda row: row["error"],
    }
    listed = "" if len(records) <= MOST_LISTED else f", the first {MOST_LISTED} of {len(records)}"
    table = table_from(f"Lengths that failed{listed}", map(vars, records[:MOST_LISTED]), columns)
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


def _cells(sweep: Reading) -> Table:
    """A row for each measurement, task and model."""
    grouped: dict[tuple[str, str, str], list[AskedCell]] = {}
    for cell in sweep.cells:
        key = cell.keyed_cell.cell
        grouped.setdefault((key.measurement, key.task, key.model), []).append(cell)
    rows = []
    for key, cells in grouped.items():
        values = {
            name: ", ".join(dict.fromkeys(str(cell.keyed_cell.cell.columns[name]) for cell in cells))
            for name in ("dtype", "mitigation", "seed")
        }
        lengths = sorted({length for cell in cells for length in cell.keyed_cell.cell.lengths})
        states = Counter(cell.state for cell in cells)
        span = f"{len(lengths)} from {lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
        rows.append([*key, *values.values(), span, *(str(states[state]) for state in STATES)])
    columns = ["measurement", "task", "model", "dtypes", "mitigations", "seeds", "lengths"]
    return Table("Cells, by what was asked", [*columns, *STATES], rows)


def _origin(sweep: Reading) -> Section:
    """Models, versions and options; where cells do not share them, that is said."""
    origin = sweep.provenance
    parts = []
    for name in dict.fromkeys(str(model.get("name")) for model in origin["models"]):
        loaded = [model for model in origin["models"] if str(model.get("name")) == name]
        sources = [
            source for cell in sweep.cells for source in cell.sources if str(source["model"].get("name")) == name
        ]
        checkpoints = distinct(source["checkpoint"] for source in sources)
        hashes = {
            dtype: distinct(model.get("weight_hash") for model in loaded if str(model.get("dtype")) == dtype)
            for dtype in dict.fromkeys(str(model.get("dtype")) for model in loaded)
        }  # of the weights as cast: another in every dtype
        count = max(len(checkpoints), *map(len, hashes.values()))
        differ = [f"These cells are of {count} different checkpoints under one name: do not compare them."]
        parts.append(Part(title=name, terms=_model(loaded, checkpoints, hashes), findings=differ if count > 1 else []))
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
    parts.append(Part(title="All cells", terms=terms, findings=mixed))
    return Section("origin", "Where the numbers come from", "Origin", "", parts)


def _model(
    loaded: Sequence[Any], checkpoints: Sequence[str], hashes: Mapping[str, Sequence[Any]]
) -> list[tuple[str, str]]:
    """Terms that every load of a model shares, and its dtypes and devices."""
    model = loaded[0]
    size = model.get("n_parameters")
    parameters = f", {size:,} parameters" if isinstance(size, int) else ""
    return [
        ("revision", str(model.get("revision") or "none (not from a hub)")),
        ("checkpoint (sha256 of its files)", ", ".join(name or "unknown" for name in checkpoints)),
        (
            "weights (sha256) by dtype",
            "; ".join(f"{dtype} {', '.join(map(str, values))}" for dtype, values in hashes.items()),
        ),
        ("architecture", f"{model.get('architecture')}{parameters}"),
        ("dtypes, device", f"{', '.join(hashes)} on {model.get('device')}"),
    ]


# --- models and mitigations beside each other


def _condition_parts(sweep: Reading) -> list[Part]:
    """The verdicts and headlines of every model under every mitigation; empty for one condition."""
    rows = {measurement: sweep.rows(measurement) for measurement in _ALIKE}
    pairs = [pair for table in rows.values() for pair, _ in groups(table, "model", "mitigation")]
    conditions = list(dict.fromkeys(pairs))
    if len(conditions) < 2:
        return []
    parts = [_condition(sweep, rows, *condition) for condition in conditions[:MOST_CONDITIONS]]
    if len(conditions) > MOST_CONDITIONS:
        text = f"Compared here are {MOST_CONDITIONS} of {len(conditions)} models under mitigations."
        parts.append(Part(notes=[f"{text} The sections below have all."]))
    return parts


def _condition(sweep: Reading, rows: dict[str, Frame], model: str, mitigation: str) -> Part:
    title = f"{model}, {'no mitigation' if mitigation == 'none' else mitigation}"
    condition_rows = {
        name: rows_where(table, ("model", "mitigation"), (model, mitigation)) if len(table) else table
        for name, table in rows.items()
    }
    strip, lines = [], []
    try:
        for results, words in _results(sweep, condition_rows):
            measured = Measurements(results[0].provenance, "", ())
            if isinstance(results[0], Evaluation):
                name, measured.evaluations = "Wrong answers", results
            else:
                name, measured.collapses = "Collapse", results
            fields = [field for field in verdicts(measured) if field.name == name]
            strip += [replace(field, name=f"{field.name}{words}") for field in fields]
            lines += [replace(line, link=f"{line.link}{words}") for line in headlines(measured)]
    except UNREADABLE as error:
        why = f"This could not be read from what is stored: {type(error).__name__}: {error}"
        return Part(title=title, findings=[why])
    return Part(title=title, strip=strip, headlines=lines)


def _results(sweep: Reading, rows: dict[str, Frame]) -> Iterator[tuple[list[Any], str]]:
    """Results that were made alike, with the words that tell them from the others of their condition."""
    for measurement, names in _ALIKE.items():
        table, read_back = rows[measurement], MEASUREMENTS[measurement].swept.read
        by = ("model", "task", "mitigation", *(["dtype"] if "dtype" in names else []))
        for key, _ in groups(table, *names):
            task_rows = [group for _, group in groups(rows_where(table, names, key), "task")]
            results: list[Any] = [read_back(group, provenance_of(sweep, group, *by)) for group in task_rows]
            # Without float64 nothing is said of a collapse.
            exact = [item for item in results if not isinstance(item, Collapse) or not item.reference.empty]
            if exact:
                yield exact, _differing_words(table, names, key)


def _differing_words(rows: Frame, names: tuple[str, ...], key: tuple[str, ...]) -> str:
    """The values of these columns that others of the condition do not have; empty where all are alike."""
    words = []
    for name, value in zip(names, key, strict=True):
        if rows[name].nunique() > 1:
            is_options = name == "options"
            words.append(_differing_options(rows[name].unique(), value) if is_options else f"{name} {value[:12]}")
    return f" ({', '.join(words)})" if words else ""


def _differing_options(all_options: Iterable[Any], value: str) -> str:
    try:
        tables, options = [json.loads(str(text)) for text in all_options], json.loads(value)
        names = [name for name in options if any(table.get(name) != options[name] for table in tables)]
        return ", ".join(f"{name} {options[name]}" for name in names)
    except (ValueError, AttributeError):  # not as a sweep writes them
        return value
