"""Of a sweep's cells: the path sums of Theorem 5.1, beside the measured norms where those are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.names import known_norm
from ostools.ground.words import number
from ostools.measure.paths.variants import VARIANTS
from ostools.measure.profiles.compare import compare
from ostools.reporting.charts.sensitivity.over_tokens import SHAPE
from ostools.reporting.findings.sensitivity import NORMS
from ostools.reporting.look.theme import KINDS
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Table
from ostools.reporting.sweep.charts import path_sums_chart
from ostools.reporting.sweep.parts import (
    CellsSection,
    Here,
    few_panels,
    finite,
    groups,
    panels,
    provenance_of,
    sources_of,
)
from ostools.results import Frame, Provenance
from ostools.runs.measurements.path_sum import PATH_SUM
from ostools.runs.measurements.sensitivity import SENSITIVITY
from ostools.runs.stored.reading import MADE_BY, Reading, distinct
from ostools.runs.stored.table import UNREADABLE

_PATHS = (
    "Theorem 5.1's sums over paths. A certified bound is one of the operator norm of the derivative that stands beside it. The "
    "paper's forms are not bounds, so they have panels of their own."
)
_PROMPT = ("model", "task", "dtype", "mitigation", "seed", "length")


def _paths(here: Here) -> Part:
    task, rows = here.task, here.rows.assign(panel=panels(here.rows))
    figure = None
    known, notes = finite(rows)
    table = _quartiles(known)
    if not notes:
        order = {kind: place for place, kind in enumerate(KINDS)}
        by_kind = table.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable")
        shown, notes = few_panels(by_kind, "tables have")
        caption = f"Path sums against length, {task}{here.made}: the median over tokens and seeds, and the middle half of them"
        title = f"Path sums of Theorem 5.1, {task}, {here.model}"
        chart = path_sums_chart(shown, title, ["Median over tokens; band: the middle half."])
        figure = Figure(here.name, chart, caption, f"{caption}.")
    beside, why = _beside(here.found, task, rows)
    medians = [_medians(table, task)] if len(table) else []
    return Part(title=here.title, figure=figure, tables=[*medians, *beside], notes=[*notes, *why])


def _quartiles(rows: Frame) -> Frame:
    """Of each condition, variant and length: the median over tokens and seeds, and the middle half of them."""
    unscaled = [name for name, variant in VARIANTS.items() if not variant.scaled]
    rows = rows.assign(norm=rows["norm"].astype(str).where(~rows["variant"].isin(unscaled), SHAPE))
    each = rows.groupby(["panel", "kind", "norm", "variant", "length"], sort=False)["value"]
    quartiles = {"value": each.median(), "low": each.quantile(0.25), "high": each.quantile(0.75)}
    return pd.DataFrame(quartiles).reset_index()


def _medians(table: Frame, task: str) -> Table:
    ends = sorted({int(table["length"].min()), int(table["length"].max())})
    wide = table.pivot(index=["kind", "variant", "norm", "panel"], columns="length", values="value")
    rows = [
        [KINDS[str(kind)], str(variant), NORMS.get(str(norm), str(norm)), str(panel)]
        + [number(float(values[length])) for length in ends]
        for (kind, variant, norm, panel), values in wide.iterrows()
    ]
    columns = ["kind", "variant", "norm", "condition", *(f"median at {length} items" for length in ends)]
    return Table(f"Path sums, {task}", columns, rows)


def _beside(found: Reading, task: str, paths: Frame) -> tuple[list[Table], list[str]]:
    """Each variant against the measured norm on every prompt that has both: does it hold, how loose, does its shape predict?"""
    measured = found.rows("sensitivity")
    if measured.empty:
        return [], [
            "Sensitivity was not measured on these prompts: whether the bounds hold, and how loose they are, is not known here."
        ]
    asked: dict[tuple[str, ...], Frame] = {}
    for key, rows in groups(measured, *_PROMPT, *MADE_BY, "options"):
        # Measured with several options: the first. Another checkpoint's or code's stands in, and is refused with the reason.
        asked.setdefault(key[:-1], rows)
        asked.setdefault(key[: len(_PROMPT)], rows)
    summaries, refused = [], []
    for key, rows in groups(paths, *_PROMPT, *MADE_BY):
        norms = asked.get(key, asked.get(key[: len(_PROMPT)]))
        if norms is None:
            continue
        try:
            one = _compared(found, rows, norms)
        except UNREADABLE as error:
            refused.append(str(error))
            continue
        summaries.append(one.assign(panel=rows["panel"].iloc[0]))
    why = (
        [f"Not compared: {refused[0]}" + (f" ({len(refused) - 1} more)" if len(refused) > 1 else "")] if refused else []
    )
    return ([_comparisons(pd.concat(summaries, ignore_index=True), task)] if summaries else []), why


def _compared(found: Reading, paths: Frame, norms: Frame) -> Frame:
    """Raises `InputError` where the two are not of one prompt, one checkpoint and one version of the code."""
    for name in MADE_BY:
        ours, theirs = paths[name].iloc[0], norms[name].iloc[0]
        if ours != theirs:
            raise InputError(f"the path sum is of {name} {ours[:12]!r}, the norms beside it are of {theirs[:12]!r}")
    values = [norms[f"{name}_norm"] for name in {"frobenius", known_norm(norms["method"])}]
    if not all(np.isfinite(each.astype(float)).all() for each in (paths["value"], *values)):
        raise InputError("values that are not finite")
    measured = SENSITIVITY.read(norms, _of_prompt(found, norms))
    return compare(measured, PATH_SUM.read(paths, _of_prompt(found, paths))).summary


def _of_prompt(found: Reading, rows: Frame) -> Provenance:
    """Of the rows of one prompt. Their edits are those of their mitigation, which is the same for both: numbered by with-blocks
    of a process, they would seem to differ. Raises `InputError` where files of several weights hold that prompt's cell."""
    names = _PROMPT[:-1]
    weights = distinct(source["model"].get("weight_hash") for source in sources_of(found, rows, *names))
    if len(weights) != 1:
        raise InputError(f"{rows['measurement'].iloc[0]} of one cell is of {len(weights)} different weights")
    ids = tuple(map(int, rows.drop_duplicates("position")["token_id"]))
    return replace(provenance_of(found, rows, *names), token_ids=ids, edits=())


def _comparisons(summaries: Frame, task: str) -> Table:
    rows = []
    for (variant, kind, beside, norm, panel), here in groups(
        summaries, "variant", "kind", "linearisation", "norm", "panel"
    ):
        rows.append(
            [
                variant,
                KINDS[kind],
                panel,
                f"{beside}, {NORMS.get(norm, norm)}",
                _holds(here["holds"].tolist()) if kind == "certified" else "no claim",
                _middle(here["median_log10_looseness"]),
                _middle(here["spearman"]),
            ]
        )
    columns = ["variant", "kind", "condition", "stands beside", "holds on", "median log10 ratio", "median Spearman"]
    return Table(f"Against the measured norms, {task}: over prompts (lengths and seeds)", columns, rows)


def _holds(values: Sequence[Any]) -> str:
    """On how many prompts; those that an estimate cannot decide are counted apart."""
    known = [bool(value) for value in values if not pd.isna(value)]
    undecided = len(values) - len(known)
    return f"{sum(known)} of {len(known)} prompts" + (f", {undecided} undecided" if undecided else "")


def _middle(values: Any) -> str:
    known = values.dropna().astype(float)
    return "–" if known.empty else f"{float(np.median(known)):.2f}"


SECTION = CellsSection(PATH_SUM, "bounds", "Bounds and forms (Theorem 5.1)", "Bounds", _PATHS, "paths", _paths)
