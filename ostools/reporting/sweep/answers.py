"""Of a sweep's cells: what the models answered, and how far apart the representations of n and n + 1 items are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.words import number, short_name
from ostools.measure.answers.behaviour import Behaviour
from ostools.measure.answers.behaviour_summary import summarise
from ostools.measure.collapse.rows import from_rows
from ostools.reporting.charts.collapse.curves import collapse_chart
from ostools.reporting.findings.behaviour import answered, behaviour_notes
from ostools.reporting.findings.collapse import collapse_findings
from ostools.reporting.look.theme import inert
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sweep.charts import answers_chart
from ostools.results import Frame, Provenance
from ostools.runs.stored.reading import MADE_BY, UNREADABLE

if TYPE_CHECKING:
    from ostools.runs.stored.reading import Reading

ANSWERS = "Prompts of the tasks and what was answered; an answer is right if its last line is, exactly."
DISTANCES = (
    "A sequence and the same with one item more: how far apart are the two representations of the last token, y? What lies "
    "below a dtype's rounding noise, or below one of its representable steps, is not information."
)


def sources_of(found: Reading, measurement: str, options: str, **columns: Any) -> list[Mapping[str, Any]]:
    """What the files of these cells say: those whose columns, `checkpoint` and `code` among them, have these values."""
    return [
        source
        for cell in found.cells
        if (cell.wanted.cell.measurement, cell.wanted.cell.options) == (measurement, options)
        for source in cell.sources
        if all(str({**source, **cell.wanted.cell.columns}[name]) == str(value) for name, value in columns.items())
    ]


def provenance_of(found: Reading, measurement: str, options: str, **columns: Any) -> Provenance:
    """What the numbers of these cells come from: of the first of their files, with what they do not share taken together."""
    sources = sources_of(found, measurement, options, **columns)
    first = sources[0]
    parameters = dict(first["parameters"])
    if "rewritten" in parameters:
        parameters["rewritten"] = any(source["parameters"]["rewritten"] for source in sources)
    if "difference_from_separate_pass" in parameters:
        differences: dict[str, float] = {}
        for source in sources:
            for name, value in source["parameters"]["difference_from_separate_pass"].items():
                differences[name] = max(value, differences.get(name, 0.0))
        parameters["difference_from_separate_pass"] = differences
    return Provenance(first["model"], parameters, None, first["versions"], tuple(first["edits"]), str(first["time"]))


def groups(rows: Frame, *names: str) -> Iterator[tuple[tuple[str, ...], Frame]]:
    """The rows by the values of these columns, in the order in which they come."""
    if len(rows):
        for key, here in rows.groupby(list(names), sort=False):
            yield tuple(map(str, key)), here.reset_index(drop=True)


def titled(here: Frame, rows: Frame) -> str:
    """The task and the model of a part's rows; the options of the measurement too where it was asked with several."""
    one = here.iloc[0]
    options = f", {one['options']}" if rows["options"].nunique() > 1 else ""
    return f"{one['task']}, {one['model']}{options}{made_with(here, rows)}"


def made_with(here: Frame, rows: Frame) -> str:
    """The checkpoint and the code of a part's rows, where the rows of its model have several."""
    of_model = rows[rows["model"] == here["model"].iloc[0]]
    several = [name for name in MADE_BY if of_model[name].nunique() > 1]
    return "".join(f", {name} {str(here[name].iloc[0])[:12] or 'unknown'}" for name in several)


def drawn(title: str, build: Callable[[], Part]) -> Part:
    """The part; where the stored rows are not what it can be made of, that and why."""
    try:
        return build()
    except UNREADABLE as error:
        why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Part(title=title, findings=[f"This could not be drawn from what is stored: {why}"])


def answers_section(found: Reading) -> Section | None:
    """Where behaviour was measured: a chart a task and model."""
    rows = found.rows("behaviour")
    parts = [
        drawn(titled(here, rows), lambda here=here, name=f"answers-{index}": _answers(found, here, rows, name))
        for index, (_, here) in enumerate(groups(rows, "model", "task", "options", *MADE_BY))
    ]
    return Section("behaviour", "What the models answer", "Behaviour", ANSWERS, parts) if parts else None


def _answers(found: Reading, rows: Frame, every: Frame, name: str) -> Part:
    shared = {name: str(rows[name].iloc[0]) for name in ("model", "task", *MADE_BY)}
    model, task = shared["model"], shared["task"]
    results = {
        (mitigation, dtype): _behaviour(found, here, mitigation=mitigation, dtype=dtype, **shared)
        for (mitigation, dtype), here in groups(rows, "mitigation", "dtype")
    }
    table = pd.concat([_drawn(result, *key) for key, result in results.items()], ignore_index=True)
    key, first = next(iter(results.items()))
    caption = f"Answers to {task} by length{made_with(rows, every)}"
    title = f"{task}: answers of {short_name({'name': model})}"
    notes = behaviour_notes(first)[0].partition(". ")[2:]
    hollow = (
        ["Hollow: the mitigation changed nothing of the prompts or the logits."] if bool(table["idle"].any()) else []
    )
    trained = first.provenance.parameters.get("trained_length")
    said = answered(first) if len(results) == 1 else _beside(key, first)
    chart = answers_chart(table, title, [*notes, *hollow], trained)
    return Part(
        title=titled(rows, every),
        figure=Figure(name, chart, caption, f"{caption}. {said}"),
        findings=[said],
        tables=[_answers_table(results, task)],
        more=[More("Length by length", tables=[_by_length(table, task)])],
    )


def _behaviour(found: Reading, rows: Frame, **columns: str) -> Behaviour:
    provenance = provenance_of(found, "behaviour", str(rows["options"].iloc[0]), **columns)
    drawn = float(provenance.parameters["temperature"]) > 0
    try:
        random = tasks.task(columns["task"]).random
    except InputError:  # of a distribution that is not installed here
        random = rows["seed"].nunique() > 1
    return Behaviour(rows, provenance, summarise(rows, random=random, drawn=drawn))


def _drawn(result: Behaviour, mitigation: str, dtype: str) -> Frame:
    frame, summary = result.frame, result.summary
    once: Any = frame.drop_duplicates(["length", "seed"])
    mean = once.groupby("length")["log_probability"].mean()
    return pd.DataFrame(
        {
            "mitigation": inert(mitigation),
            "dtype": dtype,
            **{name: summary[name] for name in ("length", "accuracy", "wilson_low", "wilson_high", "right", "asked")},
            "log_probability": summary["length"].map(mean),
            "idle": (mitigation != "none") & (summary["active"] == 0),
        }
    )


def _beside(key: tuple[str, str], result: Behaviour) -> str:
    mitigation, dtype = key
    under = "with no mitigation" if mitigation == "none" else f"under {mitigation}"
    said = answered(result)
    return f"In {dtype} {under}, {said[:1].lower()}{said[1:]}"


def _answers_table(results: Mapping[tuple[str, str], Behaviour], task: str) -> Table:
    rows = []
    for (mitigation, dtype), result in results.items():
        summary: Any = result.summary
        once: Any = result.frame.drop_duplicates(["length", "seed"])
        right, asked = int(summary["right"].sum()), int(summary["asked"].sum())
        worst: Any = summary.loc[summary["accuracy"].idxmin()]
        inactive = sum(result.frame["status"].eq("inactive").tolist())
        log_p = float(once["log_probability"].mean())
        rows.append(
            [
                mitigation,
                dtype,
                f"{right} of {asked}",
                f"{int(worst['right'])} of {int(worst['asked'])} at {int(worst['length'])}",
                "–" if log_p != log_p else number(log_p),
                str(inactive) if mitigation != "none" else "",
            ]
        )
    columns = ["mitigation", "dtype", "right", "fewest", "mean log p (nats)", "answers it changed nothing of"]
    return Table(f"Answers to {task}, all lengths", columns, rows)


def _by_length(table: Frame, task: str) -> Table:
    rows = [
        [
            row["mitigation"],
            row["dtype"],
            str(row["length"]),
            f"{row['right']} of {row['asked']}",
            "–" if pd.isna(row["wilson_low"]) else f"{row['wilson_low']:.0%} to {row['wilson_high']:.0%}",
            "–" if pd.isna(row["log_probability"]) else number(row["log_probability"]),
        ]
        for row in table.to_dict(orient="records")
    ]
    return Table(f"Answers, {task}", ["mitigation", "dtype", "items", "right", "Wilson 95%", "mean log p"], rows)


def collapse_section(found: Reading) -> Section | None:
    """Where collapse was measured: a chart a task, model and mitigation."""
    rows = found.rows("collapse")
    parts = [
        drawn(titled(here, rows), lambda here=here, name=f"collapse-{index}": _collapse(found, here, rows, name))
        for index, (_, here) in enumerate(groups(rows, "model", "task", "mitigation", "options", *MADE_BY))
    ]
    return (
        Section("collapse", "Representational collapse (Theorem 4.2)", "Collapse", DISTANCES, parts) if parts else None
    )


def _collapse(found: Reading, rows: Frame, every: Frame, name: str) -> Part:
    columns = {name: str(rows[name].iloc[0]) for name in ("model", "task", "mitigation", *MADE_BY)}
    provenance = provenance_of(found, "collapse", str(rows["options"].iloc[0]), **columns)
    result = from_rows(rows, provenance)
    task, under = columns["task"], "" if columns["mitigation"] == "none" else f" under {columns['mitigation']}"
    several = rows["dtype"].nunique() > 4 or any("-" in dtype for dtype in rows["dtype"].unique())
    exact = not result.reference.empty
    chart = result.plot() if several and exact else collapse_chart(result, ("y",))
    caption = f"L2 distance of the two y against the number of items, {task}{under}{made_with(rows, every)}"
    if exact:
        said = collapse_findings(result, provenance.model.get("trained_lengths"))
        table = [_ends(result, task)]
    else:
        said = [
            "No collapse length can be read from these cells: they were stored without the float64 distance it is read from."
        ]
        table = []
    return Part(
        title=f"{titled(rows, every)}{under}",
        figure=Figure(name, chart, caption, f"{caption}. {said[0]}"),
        findings=said[:1],
        tables=table,
        more=[More("Dtype by dtype", findings=said[1:])] if said[1:] else (),
    )


def _ends(result: Any, task: str) -> Table:
    lengths: Frame = result.collapse_lengths()
    shown = ["pair", "seed", "dtype", "site", "status"]
    rows = [[str(row[column]) for column in shown] for row in lengths.to_dict(orient="records")]
    return Table(f"Collapse lengths, {task}", ["pair", "seed", "dtype", "site", "collapse"], rows)
