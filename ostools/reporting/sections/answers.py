"""Sections on answers: what the model answers, where answers are lost, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import ABOUT, ABOUT_WORDS, QUANTITIES, in_words
from ostools.ground.words import number
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.probes.captured import LOGITS
from ostools.measure.probes.splits import TESTS
from ostools.reporting.charts.components import places_named
from ostools.reporting.findings.answers import (
    answers_sentence,
    evaluation_findings,
    study_finding,
    unread_texts,
)
from ostools.reporting.findings.collapse import task_of
from ostools.reporting.findings.probes import failure_stage_findings, intervention_findings, probe_findings
from ostools.reporting.page.section import More, Part, Section, Table, table_from
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

EVALUATION_LEAD = (
    "Prompts of Appendix C.1, answered greedily in this run. The last answer line of the text is read. It is right if it "
    "holds the right answer. Beside it stands what the text asserts in whatever words (by content)."
)
FAILURE_STAGE_LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe of the last token says the "
    "right one (unread)? Or are both wrong (undecodable)? A probe is tested on sequences that it was not trained on."
)
MITIGATIONS_LEAD = (
    "The same questions with each mitigation and without it. The task is the one of the section on answers whose share of "
    "right answers is nearest to one half: the model can do better and worse on it. A verdict needs two things: an interval "
    "over lengths that excludes zero, and a sign-flip test. “No measurable effect” does not mean “no effect”."
)


def share(value: Any) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if value != value else f"{value:.0%}"


def interval(low: str, high: str) -> Callable[[Mapping[Any, Any]], str]:
    """A cell from these two columns of a record."""
    return lambda row: "–" if row[low] != row[low] else f"{row[low]:.0%} to {row[high]:.0%}"


def evaluation_section(measured: Measurements) -> Section | None:
    """A block for each task; None where no answer could be read."""
    if not measured.evaluations:
        return None
    parts = [
        evaluation_block(result, f"evaluate-{index}", title=task_of(result))
        for index, result in enumerate(measured.evaluations)
    ]
    return Section("evaluate", "What the model answers", "Evaluation", EVALUATION_LEAD, parts)


def evaluation_block(result: Evaluation, name: str, **part_fields: Any) -> Part:
    """Right answers by length, and every length in numbers."""
    task, details = task_of(result), evaluation_findings(result) + unread_texts(result)
    more = [More("In detail", findings=details, tables=[_lengths(result, task)])]
    return block(result, name, f"Answers by length, {task}", [answers_sentence(result)], more=more, **part_fields)


def _lengths(result: Evaluation, task: str) -> Table:
    columns: dict[str, Any] = {
        "items": "length",
        "right": lambda row: f"{row['right']} of {row['asked']}",
        "Wilson 95%": interval("wilson_low", "wilson_high"),
        "right by content": lambda row: f"{row['content_right']} of {row['content_read']}",
        "something else": "something_else",
        "cut off": "cut_off",
        "length trained": lambda row: {True: "yes", False: "no"}.get(row["within_training"], "not known"),
    }
    return table_from(f"Answers, {task}", result.summary.to_dict("records"), columns)


def failure_stage_section(measured: Measurements) -> Section | None:
    """Where each answer is lost; None where that was not measured."""
    if measured.failure_stage is None:
        return None
    parameters: Any = measured.failure_stage.provenance.parameters
    prompts, sequences = parameters["prompts"], len(parameters["seeds"])
    lengths, dtypes = (", ".join(map(str, parameters[name])) for name in ("lengths", "dtypes"))
    note = (
        f"Asked: {prompts} prompts of {sequences} drawn sequences, of {lengths} items, in {dtypes}. More "
        "lengths, sequences and precisions, another task, a mitigation beside it: `ostools probe stage`."
    )
    more = [More("Place by place", tables=[_places(measured.failure_stage.probes)])]
    part = failure_stage_block(measured.failure_stage, "failure-stage-chart", notes=[note], more=more)
    return Section("failure-stage", "Where is the answer lost?", "Where it is lost", FAILURE_STAGE_LEAD, [part])


def failure_stage_block(result: FailureStage, name: str, **part_fields: Any) -> Part:
    """Verdicts by length, with the table of them."""
    caption = f"Where answers are lost, {task_of(result)}"
    tables = [_verdicts(result)]
    return block(result, name, caption, failure_stage_findings(result), has_words=True, tables=tables, **part_fields)


def probe_block(result: Decodability, name: str, **part_fields: Any) -> Part:
    """Accuracy of probes, with the table of places."""
    caption = f"What linear probes decode of {task_of(result)}"
    more = [More("Place by place", tables=[_places(result)])]
    return block(result, name, caption, probe_findings(result), has_words=True, more=more, **part_fields)


def intervention_block(result: ProbeIntervention, name: str, **part_fields: Any) -> Part:
    """Whether the output reads what probes decode."""
    caption = f"Whether the output reads the answer to {task_of(result)}"
    return block(result, name, caption, intervention_findings(result), has_words=True, **part_fields)


def _verdicts(result: FailureStage) -> Table:
    """A row for each mitigation, length and dtype."""
    frame = frame_of(result)
    columns: dict[str, Any] = {
        **({"mitigation": "mitigation"} if frame["mitigation"].nunique() > 1 else {}),
        "items": "length",
        "dtype": "dtype",
        "verdict": "verdict",
        "prompts": "prompts",
        "right": lambda row: share(row["read"]),
        "wrong, probe right": lambda row: share(row["unread"]),
        "both wrong": lambda row: share(row["undecodable"]),
        "distance of n to n + 1": lambda row: number(float(row["distance"])),
        "its noise": lambda row: number(float(row["pair_noise"])),
    }
    return table_from("Verdicts", frame.to_dict("records"), columns)


def _places(probes: Decodability) -> Table:
    """A row for each place, dtype and test: the accuracy of its probes; tests in the chart's order."""
    frame = frame_of(probes)
    frame = frame[(frame["control"] == "none") & (frame["site"] != LOGITS)]
    frame = frame.sort_values("test", key=lambda tests: tests.map(TESTS.index), kind="stable")
    by_length: Any = frame["site"] == "length"
    frame = frame.assign(
        place=pd.Series(places_named(frame), index=frame.index).mask(by_length, "length alone"),
        dtype=frame["dtype"].mask(by_length, "–"),
    )
    columns: dict[str, Any] = {
        "place": "place",
        "dtype": "dtype",
        "test": "test",
        "trained on": "trained",
        "tested on": "tested",
        "right": lambda row: share(row["accuracy"]),
        "95%": interval("low", "high"),
        "chance": lambda row: share(row["chance"]),
        "finding": "finding",
    }
    return table_from("What probes say right", frame.to_dict("records"), columns)


def mitigations_section(measured: Measurements) -> Section | None:
    """The study of mitigations; None where none was run."""
    study = measured.study
    if study is None:
        return None
    caption = f"Mitigations against none, {study.provenance.parameters['task']}"
    effects = More("Every effect", findings=study.verdicts["sentence"].tolist(), tables=[_effects(study)])
    decided = [name for name in ABOUT if name in set(study.effects["about"])]
    columns = {"mitigation": "mitigation"} | {ABOUT_WORDS[name]: name for name in decided}
    title = "Verdicts, all together at the study's level"
    tables = [table_from(title, study.verdicts.to_dict("records"), columns)]
    part = block(study, "mitigations-chart", caption, [study_finding(study)], tables=tables, more=[effects])
    return Section("mitigations", "What helps", "Mitigations", MITIGATIONS_LEAD, [part])


def _effects(study: Study) -> Table:
    def quantity(row: Mapping[Any, Any]) -> str:
        return QUANTITIES[row["quantity"]].words + ("" if pd.isna(row["dtype"]) else f", {row['dtype']}")

    effects: Frame = study.effects
    columns: dict[str, Any] = {
        "mitigation": "mitigation",
        "quantity": quantity,
        "kind": "kind",
        "effect": lambda row: in_words(row) if row["pairs"] else row["reason"] or "inactive",
        "pairs": "pairs",
    }
    return table_from("Effects with their intervals", effects.to_dict("records"), columns)
