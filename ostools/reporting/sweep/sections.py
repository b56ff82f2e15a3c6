"""The sections of a sweep's page: a block for each stored result, its chart, sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.measure import Bounds, Collapse, Comparison, Sensitivity
from ostools.measure.profiles.compare import compare
from ostools.reporting.findings.collapse import verdicts_at_y
from ostools.reporting.findings.sensitivity import NORMS
from ostools.reporting.page.section import Part, Section, Table, block, reason_of
from ostools.reporting.sections.answers import EVALUATE, FAILURE_STAGE
from ostools.reporting.sections.collapse import COLLAPSE
from ostools.reporting.sections.sensitivity import sensitivity_block
from ostools.reporting.style.theme import KINDS
from ostools.reporting.sweep.cells import (
    Cells,
    cells_of,
    groups,
    provenance_of,
    require_finite,
    sources_of,
)
from ostools.results import Frame, Provenance, frame_of
from ostools.sweep.cell_file import UNREADABLE
from ostools.sweep.measurements import MEASUREMENTS, Measurement
from ostools.sweep.reading import MADE_BY, SweepReading, distinct

_PROMPT = ("model", "task", "dtype", "mitigation", "seed", "length")
NOT_MEASURED = (
    "Sensitivity was not measured on these prompts: whether the bounds hold, and how loose they "
    "are, is not known here."
)
MOST_BLOCKS = 24
"""The most results of a measurement that are drawn."""
_DECODED = (
    "How often linear probes of the last token say the right answer, at every place. A probe is tested on sequences that it "
    "was not trained on. Beside it stand the same probes with shuffled labels and on the same architecture with random weights."
)
_READ = "A representation is moved so that the probe there says the next answer. By how much does the output's answer move?"
_PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes."
)
_LONGEST = "Drawn is the longest prompt of each condition, with its least seed."
_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that stands beside it. The "
    f"paper's forms are not bounds. {_LONGEST}"
)
_PATCHED = (
    "Activations of a clean run put into a corrupt one, and the other way: the share of the gap between the two runs that goes "
    f"with each part. {_LONGEST}"
)


def _result_block(cells: Cells, result: Any, name: str) -> Part:
    return block(result, name, cells.title)


@dataclass(frozen=True)
class Look:
    """How the results of a measurement are shown; the fields say it of one that `LOOKS` does not
    know.

    by: the columns that tell results apart, beside model and task. show: the block of a result.
    cells_of_table: cells in a table of all results, by header. longest: the longest prompts alone
    have a block.
    """

    title: str
    lead: str = ""
    by: tuple[str, ...] = ("dtype", "mitigation", "seed")
    show: Callable[[Cells, Any, str], Part] = _result_block
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
    results = list(cells_of(sweep, name, look.by))
    parts, rows = _blocks_and_rows(measurement, look, results)
    notes = (
        [f"Drawn are {len(parts)} of {len(results)} results."] if len(parts) < len(results) else []
    )
    columns = ["model", "task", *look.by, "options", *look.cells_of_table]
    tables = [Table(f"{nav}: every result", columns, rows)] if look.cells_of_table and rows else []
    if tables or notes:
        parts.insert(0, Part(tables=tables, notes=notes))
    if parts:
        yield Section(name, look.title, nav, look.lead, parts)


def _blocks_and_rows(
    measurement: Measurement, look: Look, results: Sequence[Cells]
) -> tuple[list[Part], list[list[str]]]:
    """A block of each result that is drawn, and a table row of each that can be read."""
    parts, rows = [], []
    for cells in results:
        has_block = len(parts) < MOST_BLOCKS and (not look.longest or cells.is_longest)
        if not has_block and not look.cells_of_table:
            continue
        try:
            result = measurement.swept.read(cells.rows, cells.provenance)
            values = [cells.value(column) for column in ("model", "task", *look.by, "options")]
            rows.append([*values, *(cell(result) for cell in look.cells_of_table.values())])
            if has_block:
                name = f"{measurement.name}-{len(parts)}"
                parts.append(replace(look.show(cells, result, name), title=cells.title))
        except UNREADABLE as error:
            why = f"This could not be drawn from what is stored: {reason_of(error)}"
            parts.append(Part(title=cells.title, findings=[why]))
    return parts, rows


def _profile(cells: Cells, result: Sensitivity, name: str) -> Part:
    require_finite(cells.rows, [f"{known_norm(cells.rows['method'])}_norm"])
    return sensitivity_block(result, None, name)


def _hidden(result: Collapse) -> str:
    """The lengths at which the pair is hidden at y, by dtype."""
    return "; ".join(
        f"{dtype}: {verdict.where}" for dtype, verdict in verdicts_at_y(result).items()
    )


# --- path sums beside the measured norms, where those are stored


def bounds_part(cells: Cells, result: Bounds, name: str) -> Part:
    """The longest prompt as a chart; a table of the variants beside the norms of every prompt."""
    comparisons, reasons = _comparisons(cells)
    more = f" ({len(reasons) - 1} more)" if len(reasons) > 1 else ""
    notes = [f"Not compared: {reasons[0]}{more}"] if reasons else []
    notes += [NOT_MEASURED] if cells.sweep.rows("sensitivity").empty else []
    tables = (
        [_over_prompts([comparison for *_, comparison in comparisons], cells.value("task"))]
        if comparisons
        else []
    )
    try:
        require_finite(cells.rows, ["value"])
    except InputError as error:
        return Part(tables=tables, notes=[f"{error}. The figure is left out.", *notes])
    length = int(cells.rows["length"].max())
    title = f"longest prompt, {length} items"
    for rows, norms, comparison in comparisons:
        if int(rows["length"].iloc[0]) == length:
            part = sensitivity_block(norms, comparison, name)
            figure = part.figure and replace(part.figure, caption=f"{part.figure.caption}, {title}")
            sentences = [
                _on_all(comparisons),
                *(f"On the {title}: {sentence}" for sentence in part.findings),
            ]
            tables, notes = [*tables, *part.tables], [*part.notes, *notes]
            return replace(part, figure=figure, findings=sentences, tables=tables, notes=notes)
    rows = cells.rows[cells.rows["length"] == length]
    rows = rows[rows["seed"] == rows["seed"].min()].reset_index(drop=True)
    longest = Bounds(rows, _prompt_provenance(cells.sweep, rows))
    return block(
        longest, name, f"Path sums of Theorem 5.1, {title}", [], tables=tables, notes=notes
    )


def _on_all(comparisons: Sequence[tuple[Frame, Sensitivity, Comparison]]) -> str:
    """Number of prompts on which a certified bound fails, or is not decided."""
    tables = [comparison.summary for *_, comparison in comparisons]
    verdicts = [table.loc[table["kind"] == "certified", "holds"] for table in tables]
    if not any(map(len, verdicts)):
        return "No certified bound was computed on these prompts."
    fails = sum(bool((holds.dropna() == False).any()) for holds in verdicts)  # noqa: E712 - NA is neither
    undecided = sum(bool(holds.isna().any()) for holds in verdicts)
    more = f", and one is undecided on {undecided}" if undecided else ""
    words = "CERTIFIED BOUNDS FAIL" if fails else "A certified bound fails"
    return f"{words} on {fails or 'none'} of {len(verdicts)} prompts with measured norms{more}."


def _comparisons(cells: Cells) -> tuple[list[tuple[Frame, Sensitivity, Comparison]], list[str]]:
    """Every prompt that has both path sums and norms, and why others are not compared."""
    norms_of: dict[tuple[str, ...], Frame] = {}
    for key, rows in groups(cells.sweep.rows("sensitivity"), *_PROMPT, *MADE_BY, "options"):
        norms_of.setdefault(key[:-1], rows)  # of several options the first
    prompts = {key[: len(_PROMPT)] for key in norms_of}
    comparisons, reasons = [], []
    for key, rows in groups(cells.rows, *_PROMPT, *MADE_BY):
        if key in norms_of:
            try:
                comparisons.append((rows, *_comparison(cells.sweep, rows, norms_of[key])))
            except UNREADABLE as error:
                reasons.append(str(error))
        elif key[: len(_PROMPT)] in prompts:
            reasons.append(
                "the norms beside the path sum are of another checkpoint, or of other code"
            )
    return comparisons, reasons


def _comparison(sweep: SweepReading, paths: Frame, norms: Frame) -> tuple[Sensitivity, Comparison]:
    """Raises `InputError` where a value is not finite, or the two are not of one prompt and one set
    of weights.
    """
    columns = [norms[f"{name}_norm"] for name in {"frobenius", known_norm(norms["method"])}]
    if not all(np.isfinite(column.astype(float)).all() for column in (paths["value"], *columns)):
        raise InputError("values that are not finite")
    measured = Sensitivity(norms, _prompt_provenance(sweep, norms))
    return measured, compare(measured, Bounds(paths, _prompt_provenance(sweep, paths)))


def _prompt_provenance(sweep: SweepReading, rows: Frame) -> Provenance:
    """The provenance of one prompt's rows, without edits: numbered by process, they would seem to
    differ.

    Raises `InputError` where files of several weights hold that prompt's cell.
    """
    names = _PROMPT[:-1]
    weights = distinct(
        source["model"].get("weight_hash") for source in sources_of(sweep, rows, *names)
    )
    if len(weights) != 1:
        raise InputError(
            f"{rows['measurement'].iloc[0]} of one cell is of {len(weights)} different weights"
        )
    ids = tuple(map(int, rows.drop_duplicates("position")["token_id"]))
    return replace(provenance_of(sweep, rows, *names), token_ids=ids, edits=())


def _over_prompts(comparisons: Sequence[Comparison], task: str) -> Table:
    """A row for each variant: on how many prompts it holds, how loose it is, whether its shape
    predicts.
    """
    summaries = pd.concat([comparison.summary for comparison in comparisons], ignore_index=True)
    rows = []
    for (variant, kind, linearisation, norm), group in groups(
        summaries, "variant", "kind", "linearisation", "norm"
    ):
        holds = _holds(group["holds"]) if kind == "certified" else "no claim"
        medians = (
            group[name].astype(float).median() for name in ("median_log10_looseness", "spearman")
        )
        numbers = ["–" if np.isnan(median) else f"{median:.2f}" for median in medians]
        rows.append([variant, KINDS[kind], f"{linearisation}, {NORMS[norm]}", holds, *numbers])
    columns = [
        "variant",
        "kind",
        "stands beside",
        "holds on",
        "median log10 ratio",
        "median Spearman",
    ]
    return Table(
        f"Against the measured norms, {task}: over prompts (lengths and seeds)", columns, rows
    )


def _holds(column: Any) -> str:
    """Number of prompts; those that an estimate cannot decide are counted apart."""
    decided_holds = column.dropna().astype(bool)
    undecided = len(column) - len(decided_holds)
    return f"{int(decided_holds.sum())} of {len(decided_holds)} prompts" + (
        f", {undecided} undecided" if undecided else ""
    )


# --- what each measurement shows

_ANSWER_CELLS: dict[str, Callable[[Any], str]] = {
    "right": lambda result: " of ".join(
        str(int(result.summary[name].sum())) for name in ("right", "asked")
    ),
    "answers it changed nothing of": lambda result: str(
        int(frame_of(result)["status"].eq("inactive").sum())
    ),
}
LOOKS: dict[str, Look] = {
    "evaluate": Look(
        EVALUATE.title,
        EVALUATE.lead,
        ("mitigation", "dtype"),
        cells_of_table=_ANSWER_CELLS,
    ),
    "failure-stage": Look(FAILURE_STAGE.title, FAILURE_STAGE.lead, ("seed",)),
    "probe": Look("What do probes decode?", _DECODED, ("mitigation", "seed")),
    "probe-intervention": Look("Is it read?", _READ, ("mitigation", "seed")),
    "collapse": Look(
        COLLAPSE.title,
        COLLAPSE.lead,
        ("mitigation",),
        cells_of_table={"the pair at y is hidden from n (–: no range)": _hidden},
    ),
    "influence-by-distance": Look("Influence by distance", by=(*Look.by, "length")),
    "token-homogenization": Look("How alike the tokens of a prompt are", by=(*Look.by, "length")),
    "sensitivity": Look(
        "Sensitivity (Section 5)",
        f"{_PROFILES} {_LONGEST}",
        ("dtype", "mitigation", "seed", "length"),
        _profile,
        longest=True,
    ),
    "bounds": Look("Bounds and forms (Theorem 5.1)", _PATHS, ("dtype", "mitigation"), bounds_part),
    "patch": Look(
        "What carries the answer?",
        _PATCHED,
        ("dtype", "mitigation", "seed", "length"),
        longest=True,
    ),
}
"""In the order of the page."""
