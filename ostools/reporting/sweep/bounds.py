"""The path sums of a sweep's cells, beside the measured norms where those are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.measure import Bounds, Comparison, Sensitivity
from ostools.measure.profiles.compare import compare
from ostools.reporting.findings.sensitivity import NORMS
from ostools.reporting.page.section import Part, Table, table_from
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.sensitivity import sensitivity_block
from ostools.reporting.style.theme import KINDS
from ostools.reporting.sweep.cells import Cells, groups, provenance_of, require_finite, sources_of
from ostools.results import Frame, Provenance
from ostools.runs.cell_file import UNREADABLE
from ostools.runs.reading import MADE_BY, Reading, distinct

_PROMPT = ("model", "task", "dtype", "mitigation", "seed", "length")
NOT_MEASURED = (
    "Sensitivity was not measured on these prompts: whether the bounds hold, and how loose they are, is not known here."
)


def bounds_part(cells: Cells, result: Bounds, name: str) -> Part:
    """The longest prompt as a chart; a table of the variants beside the norms of every prompt."""
    comparisons, reasons = _comparisons(cells)
    more = f" ({len(reasons) - 1} more)" if len(reasons) > 1 else ""
    notes = [f"Not compared: {reasons[0]}{more}"] if reasons else []
    notes += [NOT_MEASURED] if cells.sweep.rows("sensitivity").empty else []
    tables = [_over_prompts([comparison for *_, comparison in comparisons], cells.value("task"))] if comparisons else []
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
            sentences = [_on_all(comparisons), *(f"On the {title}: {sentence}" for sentence in part.findings)]
            tables, notes = [*tables, *part.tables], [*part.notes, *notes]
            return replace(part, figure=figure, findings=sentences, tables=tables, notes=notes)
    rows = cells.rows[cells.rows["length"] == length]
    rows = rows[rows["seed"] == rows["seed"].min()].reset_index(drop=True)
    longest = Bounds(rows, _prompt_provenance(cells.sweep, rows))
    return block(longest, name, f"Path sums of Theorem 5.1, {title}", [], tables=tables, notes=notes)


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
        # Of several options the first. Norms of another checkpoint or code stand in, and are refused with the reason.
        norms_of.setdefault(key[:-1], rows)
        norms_of.setdefault(key[: len(_PROMPT)], rows)
    comparisons, reasons = [], []
    for key, rows in groups(cells.rows, *_PROMPT, *MADE_BY):
        norms = norms_of.get(key, norms_of.get(key[: len(_PROMPT)]))
        if norms is None:
            continue
        try:
            comparisons.append((rows, *_comparison(cells.sweep, rows, norms)))
        except UNREADABLE as error:
            reasons.append(str(error))
    return comparisons, reasons


def _comparison(sweep: Reading, paths: Frame, norms: Frame) -> tuple[Sensitivity, Comparison]:
    """Raises `InputError` where the two are not of one prompt, one checkpoint and one version of the code."""
    for name in MADE_BY:
        ours, theirs = paths[name].iloc[0], norms[name].iloc[0]
        if ours != theirs:
            raise InputError(f"the path sum is of {name} {ours[:12]!r}, the norms beside it are of {theirs[:12]!r}")
    columns = [norms[f"{name}_norm"] for name in {"frobenius", known_norm(norms["method"])}]
    if not all(np.isfinite(column.astype(float)).all() for column in (paths["value"], *columns)):
        raise InputError("values that are not finite")
    measured = Sensitivity(norms, _prompt_provenance(sweep, norms))
    return measured, compare(measured, Bounds(paths, _prompt_provenance(sweep, paths)))


def _prompt_provenance(sweep: Reading, rows: Frame) -> Provenance:
    """The provenance of one prompt's rows, without edits: numbered by process, they would seem to differ.

    Raises `InputError` where files of several weights hold that prompt's cell.
    """
    names = _PROMPT[:-1]
    weights = distinct(source["model"].get("weight_hash") for source in sources_of(sweep, rows, *names))
    if len(weights) != 1:
        raise InputError(f"{rows['measurement'].iloc[0]} of one cell is of {len(weights)} different weights")
    ids = tuple(map(int, rows.drop_duplicates("position")["token_id"]))
    return replace(provenance_of(sweep, rows, *names), token_ids=ids, edits=())


def _over_prompts(comparisons: Sequence[Comparison], task: str) -> Table:
    """A row for each variant: on how many prompts it holds, how loose it is, whether its shape predicts."""
    rows = pd.concat([comparison.summary for comparison in comparisons], ignore_index=True)
    columns: dict[str, Any] = {
        "variant": lambda group: group[0][0],
        "kind": lambda group: KINDS[group[0][1]],
        "stands beside": lambda group: f"{group[0][2]}, {NORMS[group[0][3]]}",
        "holds on": lambda group: _holds(group[1]["holds"]) if group[0][1] == "certified" else "no claim",
        "median log10 ratio": lambda group: f"{group[1]['median_log10_looseness'].astype(float).median():.2f}",
        "median Spearman": lambda group: f"{group[1]['spearman'].astype(float).median():.2f}",
    }
    caption = f"Against the measured norms, {task}: over prompts (lengths and seeds)"
    return table_from(caption, groups(rows, "variant", "kind", "linearisation", "norm"), columns)


def _holds(column: Any) -> str:
    """Number of prompts; those that an estimate cannot decide are counted apart."""
    decided = column.dropna().astype(bool)
    undecided = len(column) - len(decided)
    return f"{int(decided.sum())} of {len(decided)} prompts" + (f", {undecided} undecided" if undecided else "")
