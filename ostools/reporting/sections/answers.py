"""What the model answers, where answers are lost, and what helps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import ABOUT, ABOUT_WORDS, QUANTITIES, in_words
from ostools.ground.words import number
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.probes.captured import LOGITS
from ostools.measure.probes.splits import TESTS
from ostools.models.families import EMBEDDED
from ostools.models.files.sources import EMBEDDED_DIRECTORY
from ostools.reporting.charts.components import places_named
from ostools.reporting.findings.evaluation import answered, card_findings, evaluation_findings, unread_texts
from ostools.reporting.findings.probes import failure_stage_findings, intervention_findings, probe_findings
from ostools.reporting.findings.study import study_finding
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
    "The same questions with each mitigation and without it. The task is the one of the section on behaviour whose share of "
    "right answers is nearest to one half: the model can do better and worse on it. A verdict needs two things: an interval "
    "over lengths that excludes zero, and a sign-flip test. “No measurable effect” does not mean “no effect”."
)
CARD_NOTE = (
    "This was not measured in this run. The model's card states it, from when the weights were trained. In the paper's own "
    "sequences the answer to copy-last and copy-first is always a zero. Only rows marked “uniform” tell whether the model "
    "reads the sequence."
)


def share(value: Any) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if value != value else f"{value:.0%}"


def interval(low: str, high: str) -> Callable[[Mapping[Any, Any]], str]:
    """What a table shows of these two columns of a record."""
    return lambda row: "–" if row[low] != row[low] else f"{row[low]:.0%} to {row[high]:.0%}"


def evaluation_section(found: Measurements) -> Section | None:
    """Where answers were asked for and some could be read."""
    if not found.evaluations:
        return None
    parts = [
        evaluation_block(result, f"evaluate-{index}", title=str(frame_of(result)["task"].iloc[0]))
        for index, result in enumerate(found.evaluations)
    ]
    model: Any = found.provenance.model
    parts += _card(str(model["name"]))
    return Section("evaluate", "What the model answers", "Evaluation", EVALUATION_LEAD, parts)


def evaluation_block(result: Evaluation, name: str, **beside: Any) -> Part:
    """Right answers by length, and every length in numbers."""
    task, details = str(frame_of(result)["task"].iloc[0]), evaluation_findings(result) + unread_texts(result)
    more = [More("In detail", findings=details, tables=[_lengths(result, task)])]
    return block(result, name, f"Answers by length, {task}", [answered(result)], more=more, **beside)


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


def _card(name: str) -> list[Part]:
    """Tables from the card of the shipped weights; other models have none."""
    path = EMBEDDED_DIRECTORY / "card.json"
    if name != EMBEDDED or not path.is_file():
        return []
    accuracy = json.loads(path.read_text(encoding="utf-8")).get("accuracy", [])
    if not accuracy:
        return []
    more = More("The card's table", tables=_card_tables(accuracy))
    title, sentences = "From the model's card", card_findings(accuracy)
    return [Part(title=title, findings=sentences, notes=[CARD_NOTE], more=[more])]


def _card_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Accuracy by task and length, inside and beyond the trained lengths in two tables."""
    tables = []
    for within, words in ((True, "Inside the trained lengths"), (False, "Beyond the trained lengths")):
        chosen = [row for row in rows if bool(row["within_training"]) is within]
        bands = sorted({(int(row["length_from"]), int(row["length_to"])) for row in chosen})
        shares = {(_variant(row), int(row["length_from"])): share(float(row["accuracy"])) for row in chosen}
        labels = dict.fromkeys(_variant(row) for row in chosen)
        body = [[label, *(shares.get((label, low), "") for low, _ in bands)] for label in labels]
        if chosen:
            tables.append(Table(words, ["task", *(f"{low}–{high}" for low, high in bands)], body))
    return tables


def _variant(row: Mapping[str, Any]) -> str:
    options = [name for name in ("uniform", "interleave", "hint") if row.get(name)]
    if row.get("separator_every"):
        options.append(f"comma every {row['separator_every']}")
    words = f" ({', '.join(options)})" if options else ""
    return f"{row['task']}{words}"


def failure_stage_section(found: Measurements) -> Section | None:
    """Where verdicts were measured."""
    if found.failure_stage is None:
        return None
    given = found.failure_stage.provenance.parameters
    lengths, dtypes = (", ".join(map(str, given[name])) for name in ("lengths", "dtypes"))
    note = (
        f"Asked: {given['prompts']} prompts of {len(given['seeds'])} drawn sequences, of {lengths} items, in {dtypes}. More "
        "lengths, sequences and precisions, another task, a mitigation beside it: `ostools probe stage`."
    )
    more = [More("Place by place", tables=[_places(found.failure_stage.probes)])]
    part = failure_stage_block(found.failure_stage, "failure-stage-chart", notes=[note], more=more)
    return Section("failure-stage", "Where is the answer lost?", "Where it is lost", FAILURE_STAGE_LEAD, [part])


def failure_stage_block(result: FailureStage, name: str, **beside: Any) -> Part:
    """Verdicts by length, with the table of them."""
    caption = f"Where answers are lost, {frame_of(result)['task'].iloc[0]}"
    tables = [_verdicts(result)]
    return block(result, name, caption, failure_stage_findings(result), told=True, tables=tables, **beside)


def probe_block(result: Decodability, name: str, **beside: Any) -> Part:
    """What probes decode, with the table of places."""
    caption = f"What linear probes decode of {frame_of(result)['task'].iloc[0]}"
    more = [More("Place by place", tables=[_places(result)])]
    return block(result, name, caption, probe_findings(result), told=True, more=more, **beside)


def intervention_block(result: ProbeIntervention, name: str, **beside: Any) -> Part:
    """Whether the output reads what probes decode."""
    caption = f"Whether the output reads the answer to {frame_of(result)['task'].iloc[0]}"
    return block(result, name, caption, intervention_findings(result), told=True, **beside)


def _verdicts(result: FailureStage) -> Table:
    """A row a mitigation, length and dtype."""
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
    """A row a place, dtype and test: what its probes said right; the tests in the order of the chart."""
    frame = frame_of(probes)
    frame = frame[(frame["control"] == "none") & (frame["site"] != LOGITS)]
    frame = frame.sort_values("test", key=lambda tests: tests.map(TESTS.index), kind="stable")
    alone: Any = frame["site"] == "length"
    frame = frame.assign(
        place=pd.Series(places_named(frame), index=frame.index).mask(alone, "length alone"),
        dtype=frame["dtype"].mask(alone, "–"),
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


def mitigations_section(found: Measurements) -> Section | None:
    """Where a study was run."""
    if found.study is None:
        return None
    study = found.study
    caption = f"Mitigations against none, {study.provenance.parameters['task']}"
    effects = More("Every effect", findings=study.verdicts["sentence"].tolist(), tables=[_effects(study)])
    # A verdict is on what was measured: what was not has no column.
    measured = [name for name in ABOUT if name in set(study.effects["about"])]
    columns = {"mitigation": "mitigation"} | {ABOUT_WORDS[name]: name for name in measured}
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
