"""Bytes that the largest step of a command holds beside the model, for the forecast before it begins.

What each measurement holds is counted beside it (`ostools.measure`); here are its longest prompts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mitigations
from mitigations import Mitigation
from ostools import tasks
from ostools.experiments.figures import figure2, figure3
from ostools.experiments.reproduce.parts import CERTIFIED, EQUATION_4, PRINTED
from ostools.ground.lengths import parse_lengths
from ostools.measure.answers.answers import answers_bytes
from ostools.measure.answers.elicitation import FEW_SHOT
from ostools.measure.answers.probability import spare
from ostools.measure.bounds.memory import bounds_bytes
from ostools.measure.collapse.distances import collapse_bytes
from ostools.measure.jacobian.estimate import COTANGENTS
from ostools.measure.jacobian.memory import sensitivity_bytes
from ostools.measure.passes.memory import patterns_bytes
from ostools.measure.passes.output import read_up_to
from ostools.measure.probes.failure_stage import failure_stage_bytes
from ostools.reporting.report import asked as report_asks
from ostools.runs.forecast import Unloaded
from ostools.tasks import AppendixTask, CollapseTask, Task
from ostools.tasks.retrieve import RetrieveTask


def sensitivity(
    on: Unloaded,
    pos: int,
    linearisations: Sequence[str],
    *,
    layers: Sequence[int] | str = (0,),
    method: str = "auto",
    cotangents: int = COTANGENTS,
    position: int | None = None,
    one_row: bool = False,
) -> int:
    """Of a prompt of `pos` tokens, or of its beginning up to `position`. `one_row`: of a logit. `cotangents`: of a sketch."""
    streams = on.shape.n_layers + 1 if isinstance(layers, str) else len(layers)
    how: dict[str, Any] = {"method": method, "cotangents": cotangents, "max_memory": on.limit, "one_row": one_row}
    return sensitivity_bytes(on.shape, read_up_to(position, pos), linearisations, layers=streams, **how)


def variation(on: Unloaded, task: CollapseTask | Task, lengths: Sequence[int]) -> int:
    """A pass in float64 with its attention weights."""
    return patterns_bytes(on.shape, on.longest(task, lengths, pairs=True).tokens, element=8)


def pairs(
    on: Unloaded,
    task: CollapseTask | Task,
    lengths: Sequence[int],
    dtypes: Sequence[str],
    *,
    layers: Sequence[int] | str | None = None,
    mitigation: Mitigation | None = None,
) -> int:
    """The pairs of a task, in each dtype."""
    kept = on.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers or ())
    pos = on.longest(task, lengths, pairs=True, mitigation=mitigation).tokens
    return collapse_bytes(on.shape, pos, len(lengths), dtypes, layers=kept)


def answers(
    on: Unloaded,
    task: Task,
    lengths: Sequence[int],
    *,
    each: int = 1,
    mitigation: Mitigation | None = None,
    elicitation: str | None = None,
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool = False,
    max_new_tokens: int | None = None,
) -> int:
    """A batch of answers to a task, of `each` prompts a length, up to the limit of `evaluate` where none is given."""
    how = on.elicitation(task, elicitation, chat)
    longest = on.longest(task, lengths, mitigation=mitigation, elicitation=how, system=system, thinking=thinking)
    reasons = thinking or str(getattr(task, "mode", "none")).startswith("cot")
    most = max_new_tokens or longest.answer + spare(reasons, how == FEW_SHOT)
    return answers_bytes(on.shape, longest, most, lengths=len(lengths), per_length=each)


def study(
    on: Unloaded,
    task: Task,
    compared: Sequence[Mitigation],
    lengths: Sequence[int],
    dtypes: Sequence[str],
    *,
    seeds: int,
    closely: int,
    elicitation: str | None = None,
    chat: bool | None = None,
) -> int:
    """Answers, distances, and where `closely` sensitivity and its bound: without, and with each mitigation."""
    most = 0
    for one in (None, *compared):
        how: dict[str, Any] = {"mitigation": one, "elicitation": elicitation, "chat": chat}
        most = max(most, answers(on, task, lengths, each=seeds, **how))
        pos = on.longest(task, lengths, mitigation=one, chat=False).tokens
        most = max(most, collapse_bytes(on.shape, pos, len(lengths), dtypes or ("float64",)))
        if closely:
            most = max(most, sensitivity(on, pos, ("full",)), bounds_bytes(on.shape, pos, ("local",)))
    return most


def figure(on: Unloaded, maker: str, chosen: Mapping[str, Any]) -> int:
    """Figures 2 to 5."""
    if maker == "figure_5":
        lengths = list(chosen.get("lengths", range(1, 257)))
        dtypes = chosen.get("dtypes", ("float32", "bfloat16"))
        return max(pairs(on, tasks.task(name, CollapseTask), lengths, dtypes) for name in tasks.FIGURE_5)
    if maker == "figure_2":
        known, lengths = figure2.asked_tasks(), list(chosen.get("lengths", figure2.LENGTHS))
    else:
        names = {name: chosen[name] for name in ("seeds", "panels", "mode", "examples", "tidy") if name in chosen}
        known, lengths = figure3.asked_tasks(**names), list(chosen.get("lengths", figure3.LENGTHS))
    limit = chosen.get("max_new_tokens")
    return max(answers(on, task, lengths, each=len(seeds), max_new_tokens=limit) for task, seeds in known.items())


def reproduction(on: Unloaded, parts: Mapping[str, Mapping[str, Any]]) -> int:
    """Of these parts with their arguments; of those that need no model nothing."""
    return max((_reproduced(on, name, asked) for name, asked in parts.items()), default=0)


def _reproduced(on: Unloaded, part: str, asked: Mapping[str, Any]) -> int:
    lengths, seeds = parse_lengths(asked.get("lengths", "1")), range(asked.get("seeds", 1))
    ones, drawn = tasks.task("figure-5a", CollapseTask), AppendixTask("copy-last", uniform=True)
    if part in ("figure-2", "figure-3", "figure-5"):
        return figure(on, part.replace("-", "_"), {**asked, "lengths": lengths, "seeds": seeds})
    if part == "answer-only":
        forms = [AppendixTask(name, mode="answer-only") for name in figure3.TASKS]
        return max(answers(on, form, lengths, each=len(seeds)) for form in forms)
    if part == "attention":
        return variation(on, ones, lengths)
    if part == "layers":
        return pairs(on, ones, lengths, asked["dtypes"], layers="all")
    if part == "over-squashing":
        pos = on.longest(drawn, [asked["length"]]).tokens
        bounds = bounds_bytes(on.shape, pos, (CERTIFIED, PRINTED, EQUATION_4))
        return max(sensitivity(on, pos, ("full", "frozen"), method="exact"), bounds)
    if part == "retrieval":
        form = RetrieveTask(records="words")
        return sensitivity(on, on.longest(form, [asked["records"]]).tokens, ("full",))
    if part == "counting":
        form = tasks.task("count-ones")
        return max(pairs(on, form, lengths, asked["dtypes"]), answers(on, form, lengths))
    if part == "remedies":
        compared = [mitigations.Separator(every=3), mitigations.Hint()]
        return study(on, drawn, compared, lengths, asked["dtypes"], seeds=len(seeds), closely=0)
    return 0


def report(on: Unloaded, prompt: str | Sequence[int], lengths: Sequence[int], sections: Collection[str] | None) -> int:
    """Of the sections asked for; None: of those that are measured unasked."""
    pos, extent, shape = on.pos(prompt), report_asks.extent_of(on.shape), on.shape
    asked = set(report_asks.NAMES) - set(report_asks.unasked(shape, pos)) if sections is None else set(sections)
    parts = [0]
    if asked & {"collapse", "precision"}:
        dtypes = extent.formats if "precision" in asked else report_asks.CASTS
        parts += [pairs(on, tasks.task(name, CollapseTask), lengths, dtypes) for name in tasks.FIGURE_5]
    if "position" in asked:  # an untrained model stands beside the model
        passage = report_asks.PASSAGE_TOKENS + 2
        cotangents = extent.cotangents
        profile = sensitivity(on, passage, ("full",), method="sketch", cotangents=cotangents)
        parts.append(profile + shape.element * shape.parameters)
    if asked & {"sensitivity", "layers"}:
        parts.append(sensitivity(on, pos, ("full", "frozen"), layers="all" if "layers" in asked else (0,)))
    if "sensitivity" in asked:
        parts.append(bounds_bytes(shape, pos, extent.forms))
    if "attention" in asked:
        parts.append(patterns_bytes(shape, pos))
    if asked & {"evaluate", "mitigations"}:
        seeds = len(extent.answer_seeds)
        parts += [answers(on, tasks.task(name), extent.answer_lengths, each=seeds) for name in report_asks.EVALUATION]
    if "failure-stage" in asked:
        longest = on.longest(tasks.task(report_asks.JUDGED), report_asks.JUDGED_LENGTHS)
        known, seeds = len(report_asks.JUDGED_LENGTHS), len(report_asks.JUDGED_SEEDS)
        parts.append(failure_stage_bytes(shape, longest, report_asks.JUDGED_DTYPES, lengths=known, seeds=seeds))
    if "mitigations" in asked:
        compared = [mitigations.mitigation(name) for name in report_asks.MITIGATIONS]
        how: dict[str, Any] = {"seeds": len(extent.study_seeds), "closely": 0}
        for name in report_asks.EVALUATION:
            parts.append(study(on, tasks.task(name), compared, report_asks.STUDY_LENGTHS, ("float64",), **how))
    return max(parts)
