"""Of a sweep's cells: what the models answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pandas as pd

from ostools.ground.words import number
from ostools.measure import Behaviour
from ostools.reporting.findings.behaviour import answered, behaviour_notes
from ostools.reporting.look.theme import inert
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Table
from ostools.reporting.sweep.charts import answers_chart
from ostools.reporting.sweep.parts import CellsSection, Here, groups, provenance_of
from ostools.results import Frame
from ostools.runs.measurements.behaviour import BEHAVIOUR

_Condition: TypeAlias = tuple[str, str]
"""A mitigation and a dtype."""
_CELLS = ("model", "task", "mitigation", "dtype")
_ANSWERS = "Prompts of the tasks and what was answered. The last answer line is read. It is right if it holds the right answer."


def _answers(here: Here) -> Part:
    task = here.task
    results: dict[_Condition, Behaviour] = {
        (mitigation, dtype): BEHAVIOUR.read(rows, provenance_of(here.found, rows, *_CELLS))
        for (mitigation, dtype), rows in groups(here.rows, *_CELLS[2:])
    }
    table = pd.concat([_drawn(result, *key) for key, result in results.items()], ignore_index=True)
    (mitigation, dtype), first = next(iter(results.items()))
    said = answered(first)
    if len(results) > 1:
        under = "with no mitigation" if mitigation == "none" else f"under {mitigation}"
        said = f"In {dtype} {under}, {said[:1].lower()}{said[1:]}"
    notes = behaviour_notes(first)[0].partition(". ")[2:]
    if bool(table["idle"].any()):
        notes = [*notes, "Hollow: the mitigation changed neither the prompts nor the logits."]
    trained = first.provenance.parameters.get("trained_length")
    chart = answers_chart(table, f"{task}: answers of {here.model}", notes, trained)
    caption = f"Answers to {task} by length{here.made}"
    return Part(
        title=here.title,
        figure=Figure(here.name, chart, caption, f"{caption}. {said}"),
        findings=[said],
        tables=[_answers_table(results, task)],
        more=[More("Length by length", tables=[_by_length(table, task)])],
    )


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


def _answers_table(results: Mapping[_Condition, Behaviour], task: str) -> Table:
    rows = []
    for (mitigation, dtype), result in results.items():
        summary: Any = result.summary
        once: Any = result.frame.drop_duplicates(["length", "seed"])
        worst: Any = summary.loc[summary["accuracy"].idxmin()]
        inactive = result.frame["status"].eq("inactive").tolist()
        rows.append(
            [
                mitigation,
                dtype,
                f"{int(summary['right'].sum())} of {int(summary['asked'].sum())}",
                f"{int(worst['right'])} of {int(worst['asked'])} at {int(worst['length'])}",
                _log_p(once["log_probability"].mean()),
                str(sum(inactive)) if mitigation != "none" else "",
            ]
        )
    columns = ["mitigation", "dtype", "right", "fewest", "mean log p (nats)", "answers it changed nothing of"]
    return Table(f"Answers to {task}, all lengths", columns, rows)


def _log_p(mean: float) -> str:
    return "–" if pd.isna(mean) else number(float(mean))


def _by_length(table: Frame, task: str) -> Table:
    rows = [
        [
            row["mitigation"],
            row["dtype"],
            str(row["length"]),
            f"{row['right']} of {row['asked']}",
            "–" if pd.isna(row["wilson_low"]) else f"{row['wilson_low']:.0%} to {row['wilson_high']:.0%}",
            _log_p(row["log_probability"]),
        ]
        for row in table.to_dict(orient="records")
    ]
    return Table(f"Answers, {task}", ["mitigation", "dtype", "items", "right", "Wilson 95%", "mean log p"], rows)


SECTION = CellsSection(BEHAVIOUR, "behaviour", "What the models answer", "Behaviour", _ANSWERS, "answers", _answers)
