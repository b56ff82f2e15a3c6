"""Of a sweep's cells: sensitivity at several lengths, and the path sums that bound or predict it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.words import number, short_name
from ostools.measure import PathSum, Sensitivity
from ostools.measure.paths.variants import VARIANTS
from ostools.measure.profiles.compare import compare
from ostools.reporting.charts.sensitivity.over_tokens import SHAPE
from ostools.reporting.findings.sensitivity import NORMS
from ostools.reporting.look.theme import KINDS, METHODS, display_token, inert
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sweep.answers import drawn, groups, made_with, provenance_of, sources_of, titled
from ostools.reporting.sweep.charts import path_sums_chart, profiles_chart
from ostools.results import Frame, Provenance
from ostools.runs.stored.reading import MADE_BY, UNREADABLE, distinct

if TYPE_CHECKING:
    from ostools.runs.stored.reading import Reading

LENGTHS_DRAWN, PANELS_DRAWN = 5, 8
PROFILES = (
    "How much of each token v is left in the last token's representation y: norms of the derivative ∂y/∂v. “full” is the real "
    "derivative; “frozen” holds attention patterns and norm scales, as the theorem assumes."
)
PATHS = (
    "Theorem 5.1's sums over paths. Certified bounds are of the derivative that stands beside them, operator norms; the "
    "paper's forms and the predictions bound nothing, and stand in panels of their own."
)
CONDITION = ["dtype", "mitigation"]
PROMPT = ["model", "task", "dtype", "mitigation", "seed", "length"]


def sensitivity_section(found: Reading) -> Section | None:
    """Where sensitivity was measured: profiles at some lengths, a panel a dtype and mitigation."""
    rows = found.rows("sensitivity")
    parts = [
        drawn(titled(here, rows), lambda here=here, name=f"profiles-{index}": _profiles(here, rows, name))
        for index, (_, here) in enumerate(groups(rows, "model", "task", "options", "linearisation", *MADE_BY))
    ]
    lead = PROFILES
    return Section("sensitivity", "Sensitivity (Section 5)", "Sensitivity", lead, parts) if parts else None


def _profiles(rows: Frame, every: Frame, name: str) -> Part:
    heading, made = titled(rows, every), made_with(rows, every)
    model, task, linearisation = (str(rows[name].iloc[0]) for name in ("model", "task", "linearisation"))
    estimated = bool((rows["method"] == "estimate").any())
    norm = "frobenius" if estimated else "operator"
    rows = rows.assign(panel=_panels(rows), value=rows[f"{norm}_norm"].astype(float))
    caption = f"{linearisation}: {NORMS[norm]} over the tokens of the prompt{made}"
    title = f"Sensitivity of y to every token, {task}, {short_name({'name': model})}"
    figure, notes = None, _not_finite(rows)
    if not notes:
        shown, said, left = _profiles_shown(rows)
        kinds = " and ".join(dict.fromkeys(METHODS[str(method)] for method in rows["method"]))
        chart = profiles_chart(shown, norm, title, [f"{kinds}, {linearisation}; {said}."])
        aloud = (
            f"{caption}. The table has the least, the median and the largest norm, the first token's and the last's."
        )
        figure = Figure(name, chart, caption, aloud)
        notes = (
            [f"Drawn are {PANELS_DRAWN} of the {PANELS_DRAWN + left} conditions; the table has all."] if left else []
        )
    known = rows[np.isfinite(rows["value"])]
    tables = [_least_and_largest(known, norm, task, linearisation)] if len(known) else []
    return Part(title=f"{heading}: {linearisation}", figure=figure, tables=tables, notes=notes)


def _profiles_shown(rows: Frame) -> tuple[Frame, str, int]:
    """What is drawn: of each condition its least seed, at a few lengths; that in words; how many conditions are left out."""
    least = rows.groupby("panel")["seed"].transform("min")
    first = rows[rows["seed"] == least]
    last = first.groupby(["panel", "length"])["position"].transform("max")
    first = first.assign(place=first["position"] / last.clip(lower=1))
    lengths = sorted(set(first["length"]))
    chosen = sorted({lengths[round(i * (len(lengths) - 1) / (LENGTHS_DRAWN - 1))] for i in range(LENGTHS_DRAWN)})
    shown, left = _few_panels(first[first["length"].isin(chosen)])
    tokens = [inert(display_token(str(token))) for token in shown["token"]]
    seeds = sorted(set(shown["seed"]))
    of_seeds = f"seed {seeds[0]}" if len(seeds) == 1 else f"each condition's least seed ({', '.join(map(str, seeds))})"
    said = f"lengths {', '.join(map(str, chosen))} of {len(lengths)}, {of_seeds}"
    return shown[["panel", "length", "place", "value"]].assign(token=tokens), said, left


def _not_finite(rows: Frame) -> list[str]:
    """That values are not finite, in words; empty where all are."""
    bad = int((~np.isfinite(rows["value"].astype(float))).sum())
    left_out = f"{bad} of {len(rows)} values are not finite: there is no figure, and no table has them in it."
    return [left_out] if bad else []


def _panels(rows: Frame) -> list[str]:
    """dtype and mitigation in words."""
    pairs = zip(rows["dtype"].astype(str), rows["mitigation"].astype(str), strict=True)
    return [dtype if name == "none" else f"{dtype}, {inert(name)}" for dtype, name in pairs]


def _few_panels(rows: Frame) -> tuple[Frame, int]:
    """The rows of the first panels, and how many panels were left out."""
    names = list(dict.fromkeys(rows["panel"]))
    return rows[rows["panel"].isin(names[:PANELS_DRAWN])], max(0, len(names) - PANELS_DRAWN)


def _least_and_largest(rows: Frame, norm: str, task: str, linearisation: str) -> Table:
    """Of the shortest and the longest length: the least, the median and the largest norm, the first token's and the last's."""
    ends = [rows["length"].min(), rows["length"].max()]
    body = []
    for (dtype, mitigation, length), here in groups(rows[rows["length"].isin(ends)], *CONDITION, "length"):
        by_place = here.sort_values("position").groupby("seed")["value"]
        values = here["value"]
        figures = (values.min(), values.median(), values.max(), by_place.first().median(), by_place.last().median())
        body.append([dtype, mitigation, length, *(number(float(value)) for value in figures)])
    columns = ["dtype", "mitigation", "items", "least", "median", "largest", "first token", "last token"]
    return Table(f"{NORMS[norm]}, {task}, {linearisation}; over tokens and seeds", columns, body)


def paths_section(found: Reading) -> Section | None:
    """Where path sums were computed: medians against length, a panel a kind; and beside the measured norms where those are."""
    rows = found.rows("path-sum")
    parts = [
        drawn(titled(here, rows), lambda here=here, name=f"paths-{index}": _paths(found, here, rows, name))
        for index, (_, here) in enumerate(groups(rows, "model", "task", "options", *MADE_BY))
    ]
    return Section("bounds", "Bounds and predictions (Theorem 5.1)", "Bounds", PATHS, parts) if parts else None


def _paths(found: Reading, rows: Frame, every: Frame, name: str) -> Part:
    heading, made = titled(rows, every), made_with(rows, every)
    model, task = (str(rows[name].iloc[0]) for name in ("model", "task"))
    rows = rows.assign(panel=_panels(rows))
    figure, notes = None, _not_finite(rows)
    table = _quartiles(rows[np.isfinite(rows["value"].astype(float))])
    if not notes:
        order = {kind: place for place, kind in enumerate(KINDS)}
        shown, left = _few_panels(table.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable"))
        caption = (
            f"Path sums against length, {task}{made}: the median over tokens and seeds, and the middle half of them"
        )
        title = f"Path sums of Theorem 5.1, {task}, {short_name({'name': model})}"
        chart = path_sums_chart(shown, title, ["Median over tokens; band: the middle half."])
        figure = Figure(name, chart, caption, f"{caption}.")
        notes = (
            [f"Drawn are {PANELS_DRAWN} of the {PANELS_DRAWN + left} conditions; the tables have all."] if left else []
        )
    beside, why = _beside(found, task, rows)
    medians = [_medians(table, task)] if len(table) else []
    return Part(title=heading, figure=figure, tables=[*medians, *beside], notes=[*notes, *why])


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
            "Sensitivity was not measured on these prompts: whether the bounds hold, and how loose they are, is not said."
        ]
    asked: dict[tuple[str, ...], Frame] = {}
    for key, rows in groups(measured, *PROMPT, *MADE_BY, "options"):
        # Measured with several options: the first. Another checkpoint's or code's stands in, and is refused with the reason.
        asked.setdefault(key[:-1], rows)
        asked.setdefault(key[: len(PROMPT)], rows)
    summaries, refused = [], []
    for key, rows in groups(paths, *PROMPT, *MADE_BY):
        norms = asked.get(key, asked.get(key[: len(PROMPT)]))
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
    values = [norms[name] for name in ("operator_norm", "frobenius_norm")]
    if not all(np.isfinite(each.astype(float)).all() for each in (paths["value"], *values)):
        raise InputError("values that are not finite")
    measured = Sensitivity(norms, _of_prompt(found, "sensitivity", norms))
    return compare(measured, PathSum(paths, _of_prompt(found, "path-sum", paths))).summary


def _of_prompt(found: Reading, measurement: str, rows: Frame) -> Provenance:
    """Of the rows of one prompt. Their edits are those of their mitigation, which is the same for both: numbered by with-blocks
    of a process, they would seem to differ. Raises `InputError` where files of several weights hold that prompt's cell."""
    names = ("model", "task", "dtype", "mitigation", "seed", *MADE_BY)
    columns, options = {name: str(rows[name].iloc[0]) for name in names}, str(rows["options"].iloc[0])
    sources = sources_of(found, measurement, options, **columns)
    weights = distinct(source["model"].get("weight_hash") for source in sources)
    if len(weights) != 1:
        raise InputError(f"{measurement} of one cell is of {len(weights)} different weights")
    source = provenance_of(found, measurement, options, **columns)
    return replace(source, token_ids=tuple(map(int, rows.drop_duplicates("position")["token_id"])), edits=())


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
