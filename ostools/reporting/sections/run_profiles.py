"""Of a sweep's cells: sensitivity at several lengths, and the path sums that bound or predict it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ostools.errors import InputError
from ostools.measure import PathSum, Sensitivity
from ostools.measure.compare import compare
from ostools.measure.variants import VARIANTS
from ostools.reporting.answer_marks import short_name
from ostools.reporting.findings import NORMS
from ostools.reporting.frames import Frame
from ostools.reporting.page import Figure
from ostools.reporting.profiles import SHAPE
from ostools.reporting.run_charts import path_sums_chart, profiles_chart
from ostools.reporting.sections.run_answers import groups, provenance_of, titled
from ostools.reporting.sections.section import Part, Section, Table
from ostools.reporting.theme import KINDS, METHODS, display_token, inert
from ostools.reporting.words import number
from ostools.results import Provenance

if TYPE_CHECKING:
    from ostools.runs.reading import Reading

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
        _profiles(model, task, linearisation, here, f"profiles-{index}", titled(task, model, options, rows))
        for index, ((model, task, options, linearisation), here) in enumerate(
            groups(rows, "model", "task", "options", "linearisation")
        )
    ]
    lead = PROFILES
    return Section("sensitivity", "Sensitivity (Section 5)", "Sensitivity", lead, parts) if parts else None


def _profiles(model: str, task: str, linearisation: str, rows: Frame, name: str, heading: str) -> Part:
    estimated = bool((rows["method"] == "estimate").any())
    norm = "frobenius" if estimated else "operator"
    rows = rows.assign(panel=_panels(rows), value=rows[f"{norm}_norm"])
    last = rows.groupby(PROMPT)["position"].transform("max")
    rows = rows.assign(place=rows["position"] / last.clip(lower=1))
    first = rows[rows["seed"] == rows["seed"].min()]
    lengths = sorted(set(first["length"]))
    chosen = sorted({lengths[round(i * (len(lengths) - 1) / (LENGTHS_DRAWN - 1))] for i in range(LENGTHS_DRAWN)})
    shown, left = _few_panels(first[first["length"].isin(chosen)])
    tokens = [inert(display_token(str(token))) for token in shown["token"]]
    drawn = shown[["panel", "length", "place", "value"]].assign(token=tokens)
    kinds = " and ".join(dict.fromkeys(METHODS[str(method)] for method in rows["method"]))
    notes = [
        f"{kinds}, {linearisation}; lengths {', '.join(map(str, chosen))} of {len(lengths)}, seed {first['seed'].iloc[0]}."
    ]
    title = f"Sensitivity of y to every token, {task}, {short_name({'name': model})}"
    caption = f"{linearisation}: {NORMS[norm]} over the tokens of the prompt"
    table = _least_and_largest(rows, norm, task, linearisation)
    return Part(
        title=f"{heading}: {linearisation}",
        figure=Figure(
            name, profiles_chart(drawn, norm, title, notes), caption, f"{caption}. The table has the figures."
        ),
        tables=[table],
        notes=[f"Drawn are {PANELS_DRAWN} of the {PANELS_DRAWN + left} conditions; the table has all."] if left else (),
    )


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
        _paths(found, model, task, here, f"paths-{index}", titled(task, model, options, rows))
        for index, ((model, task, options), here) in enumerate(groups(rows, "model", "task", "options"))
    ]
    return Section("bounds", "Bounds and predictions (Theorem 5.1)", "Bounds", PATHS, parts) if parts else None


def _paths(found: Reading, model: str, task: str, rows: Frame, name: str, heading: str) -> Part:
    rows = rows.assign(panel=_panels(rows))
    unscaled = [name for name, variant in VARIANTS.items() if not variant.scaled]
    drawn = rows.assign(norm=rows["norm"].astype(str).where(~rows["variant"].isin(unscaled), SHAPE))
    keys = ["panel", "kind", "norm", "variant", "length"]
    each = drawn.groupby(keys, sort=False)["value"]
    table = pd.DataFrame(
        {"value": each.median(), "low": each.quantile(0.25), "high": each.quantile(0.75)}
    ).reset_index()
    shown, left = _few_panels(table.sort_values("kind", key=lambda kinds: kinds.map(list(KINDS).index), kind="stable"))
    caption = f"Path sums against length, {task}: the median over tokens and seeds, and the middle half of them"
    title = f"Path sums of Theorem 5.1, {task}, {short_name({'name': model})}"
    figure = Figure(
        name, path_sums_chart(shown, title, ["Median over tokens; band: the middle half."]), caption, f"{caption}."
    )
    notes = [f"Drawn are {PANELS_DRAWN} of the {PANELS_DRAWN + left} conditions; the tables have all."] if left else []
    beside, why = _beside(found, model, task, rows)
    return Part(title=heading, figure=figure, tables=[_medians(table, task), *beside], notes=[*notes, *why])


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


def _beside(found: Reading, model: str, task: str, paths: Frame) -> tuple[list[Table], list[str]]:
    """Each variant against the measured norm on every prompt that has both: does it hold, how loose, does its shape predict?"""
    measured = found.rows("sensitivity")
    if measured.empty:
        return [], [
            "Sensitivity was not measured on these prompts: whether the bounds hold, and how loose they are, is not said."
        ]
    asked: dict[tuple[str, ...], Frame] = {}
    for key, rows in groups(measured, *PROMPT, "options"):  # measured with several options: the first
        asked.setdefault(key[: len(PROMPT)], rows)
    summaries, refused = [], []
    for key, rows in groups(paths, *PROMPT):
        if key not in asked:
            continue
        source, other = (
            _of_prompt(found, name, one, key) for name, one in (("path-sum", rows), ("sensitivity", asked[key]))
        )
        try:
            one = compare(Sensitivity(asked[key], other), PathSum(rows, source)).summary
        except InputError as error:
            refused.append(str(error))
            continue
        summaries.append(one.assign(panel=rows["panel"].iloc[0]))
    why = (
        [f"Not compared: {refused[0]}" + (f" ({len(refused) - 1} more)" if len(refused) > 1 else "")] if refused else []
    )
    return ([_comparisons(pd.concat(summaries, ignore_index=True), task)] if summaries else []), why


def _of_prompt(found: Reading, measurement: str, rows: Frame, key: tuple[str, ...]) -> Provenance:
    """Of the rows of one prompt. Their edits are those of their mitigation, which is the same for both: numbered by with-blocks
    of a process, they would seem to differ."""
    columns = dict(zip(("model", "task", "dtype", "mitigation"), key, strict=False))
    source = provenance_of(found, measurement, str(rows["options"].iloc[0]), **columns)
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
