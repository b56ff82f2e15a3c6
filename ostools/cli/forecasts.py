"""Bytes that the largest step of a command holds beside a model, forecast before it is loaded.

What a measurement holds is counted beside it (`ostools.measure`, the functions that end in
`_bytes`). Here the longest prompt of a command is found, by the arguments that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mitigations
from mitigations import Mitigation, optional
from ostools import tasks
from ostools.cli.checks import pairs_of
from ostools.cli.commands import Command
from ostools.cli.prompts import Prompts, rewritten
from ostools.cli.signature import UNKNOWN, signature_of
from ostools.experiments.figures import copying, counting
from ostools.experiments.reproduce.parts import CERTIFIED, EQUATION_4, PRINTED
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.answers.answers import answers_bytes
from ostools.measure.answers.elicitation import FEW_SHOT
from ostools.measure.answers.probability import spare
from ostools.measure.bounds.memory import bounds_bytes
from ostools.measure.bounds.variants import checked_variants
from ostools.measure.collapse.distances import collapse_bytes
from ostools.measure.faithfulness.deletion import cases_bytes
from ostools.measure.jacobian.memory import sensitivity_bytes
from ostools.measure.jacobian.norms import COTANGENTS
from ostools.measure.mitigated_prompts import acting_bytes
from ostools.measure.passes.batches import patterns_bytes
from ostools.measure.passes.output import read_up_to
from ostools.measure.probes.failure_stage import failure_stage_bytes
from ostools.measure.probes.probe import probes_bytes, seeds_asked
from ostools.reporting.report import extent as report_options
from ostools.runs.corpus.measures import Measure
from ostools.runs.forecast import Unloaded
from ostools.tasks import AppendixTask, CollapseTask, Task
from ostools.tasks.retrieve import RetrieveTask

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a command, with the defaults of its function."""

    command: Command
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        parameters = signature_of(self.command.function).parameters
        default = next(parameter.default for parameter in parameters if parameter.name == name)
        return None if default is UNKNOWN else default

    def only(self, *names: str) -> dict[str, Any]:
        """Arguments that were written, of these."""
        return {name: self.values[name] for name in names if name in self.values}

    @property
    def task(self) -> Task:
        """The task by its name."""
        return tasks.task(self["task"])


def memory_of(command: Command, values: Mapping[str, Any]) -> Memory:
    """Bytes that the largest step of a command holds beside a model, as a function of the model."""
    arguments = Arguments(command, values)
    prompts = values.get("prompt", values.get("prompts"))
    name = command.function.partition(":")[2]
    if isinstance(prompts, Prompts) and name in _OF_A_PROMPT:
        return lambda model: _prompt_memory(model, prompts, arguments, _OF_A_PROMPT[name])
    if name.startswith("figure_"):
        return lambda model: figure(model, name, values)
    return lambda model: _OF_A_TASK[name](model, arguments)


# ---- blocks that several commands are made of


def rows(
    model: Unloaded,
    pos: int,
    linearisations: Sequence[str],
    *,
    layers: Sequence[int] | str = (0,),
    method: str = "auto",
    cotangents: int = COTANGENTS,
    position: int | None = None,
    one_row: bool = False,
) -> int:
    """Rows of Jacobians of a prompt of `pos` tokens, or of its beginning up to `position`.

    one_row: of a logit. cotangents: of a sketch.
    """
    streams = model.shape.n_layers + 1 if isinstance(layers, str) else len(layers)
    options: dict[str, Any] = {"method": method, "cotangents": cotangents, "one_row": one_row}
    return sensitivity_bytes(
        model.shape,
        read_up_to(position, pos),
        linearisations,
        layers=streams,
        max_memory=model.limit,
        **options,
    )


def variation(model: Unloaded, task: CollapseTask | Task, lengths: Sequence[int]) -> int:
    """A pass in float64 with its attention weights."""
    pos = model.longest(task, lengths, pairs=True).tokens
    return patterns_bytes(model.shape, pos, element=8)


def pairs(
    model: Unloaded,
    task: CollapseTask | Task,
    lengths: Sequence[int],
    dtypes: Sequence[str],
    *,
    layers: Sequence[int] | str | None = None,
    mitigation: Mitigation | None = None,
) -> int:
    """The pairs of a task, in each dtype."""
    count = model.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers or ())
    pos = model.longest(task, lengths, pairs=True, mitigation=mitigation).tokens
    return collapse_bytes(model.shape, pos, len(lengths), dtypes, layers=count)


def answers(
    model: Unloaded,
    task: Task,
    lengths: Sequence[int],
    *,
    per_length: int = 1,
    mitigation: Mitigation | None = None,
    elicitation: str | None = None,
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool = False,
    max_new_tokens: int | None = None,
) -> int:
    """A batch of answers to a task, up to the limit of new tokens that the measurement has."""
    form = model.elicitation(task, elicitation, chat)
    options: dict[str, Any] = {"elicitation": form, "system": system, "thinking": thinking}
    longest = model.longest(task, lengths, mitigation=mitigation, **options)
    reasons = thinking or str(getattr(task, "mode", "none")).startswith("cot")
    new_tokens = max_new_tokens or longest.answer + spare(reasons, form == FEW_SHOT)
    return answers_bytes(model.shape, longest, new_tokens, lengths=len(lengths), per_length=per_length)


def study(
    model: Unloaded,
    task: Task,
    compared: Sequence[Mitigation],
    lengths: Sequence[int],
    dtypes: Sequence[str],
    *,
    seeds: int,
    with_sensitivity: bool,
    elicitation: str | None = None,
    chat: bool | None = None,
) -> int:
    """Answers, distances, sensitivity and its bound: without, and with each mitigation."""
    sizes = []
    for mitigation in (None, *compared):
        options: dict[str, Any] = {"elicitation": elicitation, "chat": chat}
        sizes.append(answers(model, task, lengths, per_length=seeds, mitigation=mitigation, **options))
        pos = model.longest(task, lengths, mitigation=mitigation, chat=False).tokens
        sizes.append(collapse_bytes(model.shape, pos, len(lengths), dtypes or ("float64",)))
        if with_sensitivity:
            sizes.append(rows(model, pos, ("full",)))
            sizes.append(bounds_bytes(model.shape, pos, ("local",)))
    return max(sizes)


def figure(model: Unloaded, name: str, options: Mapping[str, Any]) -> int:
    """Figures 2 to 5, by the name of the function that makes them."""
    if name == "figure_5":
        lengths = list(options.get("lengths", range(1, 257)))
        dtypes = options.get("dtypes", ("float32", "bfloat16"))
        forms = (tasks.task(form, CollapseTask) for form in tasks.FIGURE_5)
        return max(pairs(model, form, lengths, dtypes) for form in forms)
    if name == "figure_2":
        seeds_of, lengths = copying.figure_tasks(), options.get("lengths", copying.LENGTHS)
    else:
        names = ("seeds", "panels", "mode", "examples", "tidy")
        seeds_of = counting.figure_tasks(**{key: options[key] for key in names if key in options})
        lengths = options.get("lengths", counting.LENGTHS)
    limit = options.get("max_new_tokens")
    return max(
        answers(model, task, list(lengths), per_length=len(seeds), max_new_tokens=limit)
        for task, seeds in seeds_of.items()
    )


def untrained_model(model: Unloaded) -> int:
    """An untrained model beside the model."""
    return model.shape.element * model.shape.parameters


# ---- commands on a prompt: bytes by its tokens


def _prompt_memory(
    model: Unloaded,
    prompts: Prompts,
    arguments: Arguments,
    memory: Callable[[Unloaded, int, Arguments], int],
) -> int:
    """The longest prompt, as a mitigation rewrites it; that it acts is seen in a pass with patterns."""
    mitigation = arguments.values.get("mitigation")
    in_chat = replace(model, chat=prompts.wrapped or {})
    pos = max(map(in_chat.pos, rewritten(prompts, mitigation)))
    acting = acting_bytes(model.shape, pos, optional(mitigation))
    return max(acting, memory(model, pos, arguments))


def _rows(model: Unloaded, pos: int, arguments: Arguments) -> int:
    names = arguments.only("linearisations", "linearisation").values()
    linearisations = next(iter(names), ("full", "frozen"))
    if isinstance(linearisations, str):
        linearisations = (linearisations,)
    options = arguments.only("layers", "method", "cotangents", "position")
    return rows(model, pos, linearisations, one_row="logit" in arguments.values, **options)


def _untrained(model: Unloaded, pos: int, arguments: Arguments) -> int:
    return _rows(model, pos, arguments) + untrained_model(model)


def _paths(model: Unloaded, pos: int, arguments: Arguments) -> int:
    return bounds_bytes(model.shape, pos, checked_variants(arguments["variants"]))


def _patterns(model: Unloaded, pos: int, arguments: Arguments) -> int:
    return patterns_bytes(model.shape, pos)


def _deletions(model: Unloaded, pos: int, arguments: Arguments) -> int:
    """Profiles, and prompts without a token."""
    sizes = [_rows(model, pos, arguments), cases_bytes(model.shape, read_up_to(arguments["position"], pos))]
    return max(*sizes, _paths(model, pos, arguments) if arguments["variants"] else 0)


_OF_A_PROMPT: dict[str, Callable[[Unloaded, int, Arguments], int]] = {
    "sensitivity": _rows,
    "profile": _rows,
    "attribution": _patterns,
    "untrained_baselines": _untrained,
    "bounds": _paths,
    "spectra": _patterns,
    "attention": _patterns,
    "difference": _patterns,
    "head_scores": _patterns,
    "faithfulness": _deletions,
}
"""By the name of a command's function."""


# ---- commands on a task


def _task_patterns(model: Unloaded, arguments: Arguments) -> int:
    lengths: Any = arguments.values.get("lengths") or (arguments.values.get("length"),)
    pos = model.longest(arguments.task, list(lengths)).tokens
    return patterns_bytes(model.shape, pos)


def _answers(model: Unloaded, arguments: Arguments) -> int:
    options = arguments.only("elicitation", "system", "thinking", "max_new_tokens")
    options |= {"per_length": len(arguments["seeds"]) * arguments["samples"]}
    acting = optional(arguments["mitigation"])
    return answers(model, arguments.task, list(arguments["lengths"]), mitigation=acting, **options)


def _pairs(model: Unloaded, arguments: Arguments) -> int:
    prompts = arguments["prompt"]
    prompt = None if prompts is None else prompts.values[0]
    task = pairs_of(arguments["task"], prompt, arguments["item"], arguments["items"])
    lengths, acting = list(arguments["lengths"]), optional(arguments["mitigation"])
    options: dict[str, Any] = {"layers": arguments["layers"], "mitigation": acting}
    return pairs(model, task, lengths, arguments["dtypes"], **options)


def _repeats(model: Unloaded, arguments: Arguments) -> int:
    forms = [tasks.task(name, CollapseTask) for name in arguments["prompts"]]
    lengths, dtypes = list(arguments["lengths"]), arguments["dtypes"]
    largest = max(pairs(model, form, lengths, dtypes) for form in forms)
    return largest + (untrained_model(model) if arguments["untrained"] else 0)


def _variation(model: Unloaded, arguments: Arguments) -> int:
    return variation(model, tasks.repeating(arguments["task"]), list(arguments["lengths"]))


def _counting(model: Unloaded, arguments: Arguments) -> int:
    task, lengths = arguments.task, list(arguments["lengths"])
    acting = optional(arguments["mitigation"])
    distances = pairs(model, task, lengths, arguments["dtypes"], mitigation=acting)
    return max(distances, answers(model, task, lengths, mitigation=acting))


def _retrieval(model: Unloaded, arguments: Arguments) -> int:
    task = RetrieveTask(records=arguments["records"])
    return _rows(model, model.longest(task, [arguments["length"]]).tokens, arguments)


def _reasoning(model: Unloaded, arguments: Arguments) -> int:
    task, lengths = arguments.task, [arguments["length"]]
    limit = arguments["max_new_tokens"]
    in_chat = arguments.only("chat", "system", "thinking")
    size = answers(model, task, lengths, **in_chat, max_new_tokens=limit)
    pos = model.longest(task, lengths, **in_chat).tokens + limit
    return max(size, _rows(model, pos, arguments))


def _probes(model: Unloaded, arguments: Arguments, *, whole_stage: bool = False) -> int:
    task, lengths = arguments.task, list(arguments["lengths"])
    random = bool(arguments.values.get("random_weights", True))
    seeds = len(seeds_asked(task, arguments["seeds"]))
    return (failure_stage_bytes if whole_stage else probes_bytes)(
        model.shape,
        model.longest(task, lengths),
        arguments["dtypes"],
        lengths=len(lengths),
        seeds=seeds,
        random=random,
    )


def _study(model: Unloaded, arguments: Arguments) -> int:
    options = arguments.only("elicitation", "chat")
    compared = [mitigations.mitigation(name) for name in arguments["mitigations"]]
    return study(
        model,
        arguments.task,
        compared,
        list(arguments["lengths"]),
        arguments["dtypes"],
        seeds=len(arguments["seeds"]),
        with_sensitivity=bool(arguments["sensitivity_lengths"]),
        **options,
    )


def _windows(model: Unloaded, arguments: Arguments) -> int:
    task, lengths = arguments.task, list(arguments["lengths"])
    size = answers(model, task, lengths, per_length=len(arguments["seeds"]))
    return max(size, pairs(model, task, lengths, ("float64",)))


def _corpus(model: Unloaded, arguments: Arguments) -> int:
    method = (arguments["linearisation"], arguments["method"], arguments["dtypes"])
    acting = optional(arguments["mitigation"])
    measure = Measure.from_options(arguments["measure"], *method, model.shape.d_model, acting)
    return max(measure.memory(model.shape, length, model.limit) for length in arguments["lengths"])


_OF_A_TASK: dict[str, Callable[[Unloaded, Arguments], int]] = {
    "attention": _task_patterns,
    "difference": _task_patterns,
    "ablation": _task_patterns,
    "evaluate": _answers,
    "collapse": _pairs,
    "repeats": _repeats,
    "attention_variation": _variation,
    "counting": _counting,
    "retrieval": _retrieval,
    "chain_of_thought": _reasoning,
    "probe": _probes,
    "probe_intervention": _probes,
    "failure_stage": lambda model, arguments: _probes(model, arguments, whole_stage=True),
    "study": _study,
    "windows": _windows,
    "corpus": _corpus,
}
"""By the name of a command's function."""


# ---- reproduction and report


def reproduction(model: Unloaded, parts: Mapping[str, Mapping[str, Any]]) -> int:
    """Parts of a reproduction with their arguments; nothing of those that need no model."""
    return max((_part(model, name, options) for name, options in parts.items()), default=0)


def _part(model: Unloaded, name: str, options: Mapping[str, Any]) -> int:
    lengths = parse_lengths(options.get("lengths", "1"))
    seeds = range(options.get("seeds", 1))
    ones = tasks.task("figure-5a", CollapseTask)
    digits = AppendixTask("copy-last", uniform=True)
    match name:
        case "figure-2" | "figure-3" | "figure-5":
            settings = {**options, "lengths": lengths, "seeds": seeds}
            return figure(model, name.replace("-", "_"), settings)
        case "answer-only":
            forms = [AppendixTask(form, mode="answer-only") for form in counting.TASKS]
            return max(answers(model, form, lengths, per_length=len(seeds)) for form in forms)
        case "attention":
            return variation(model, ones, lengths)
        case "layers":
            return pairs(model, ones, lengths, options["dtypes"], layers="all")
        case "over-squashing":
            pos = model.longest(digits, [options["length"]]).tokens
            bounds = bounds_bytes(model.shape, pos, (CERTIFIED, PRINTED, EQUATION_4))
            return max(rows(model, pos, ("full", "frozen"), method="exact"), bounds)
        case "retrieval":
            pos = model.longest(RetrieveTask(records="words"), [options["records"]]).tokens
            return rows(model, pos, ("full",))
        case "counting":
            task = tasks.task("count-ones")
            distances = pairs(model, task, lengths, options["dtypes"])
            return max(distances, answers(model, task, lengths))
        case "remedies":
            compared = [mitigations.Separator(every=3), mitigations.Hint()]
            counts: dict[str, Any] = {"seeds": len(seeds), "with_sensitivity": False}
            return study(model, digits, compared, lengths, options["dtypes"], **counts)
    return 0


def report(
    model: Unloaded,
    prompt: str | Sequence[int],
    lengths: Sequence[int],
    sections: Collection[str] | None,
) -> int:
    """Sections of a report; None: those that are measured where none is named."""
    pos, extent, shape = model.pos(prompt), report_options.extent_of(model.shape), model.shape
    names = set(report_options.NAMES) - set(report_options.only_by_name(shape, pos))
    names = names if sections is None else set(sections)
    sizes = [0]
    if names & {"collapse", "precision"}:
        dtypes = extent.formats if "precision" in names else report_options.CASTS
        forms = (tasks.task(name, CollapseTask) for name in tasks.FIGURE_5)
        sizes += [pairs(model, form, lengths, dtypes) for form in forms]
    if "position" in names:
        passage = report_options.PASSAGE_TOKENS + 2
        options: dict[str, Any] = {"method": "sketch", "cotangents": extent.cotangents}
        sizes.append(rows(model, passage, ("full",), **options) + untrained_model(model))
    if names & {"sensitivity", "layers"}:
        layers = "all" if "layers" in names else (0,)
        sizes.append(rows(model, pos, ("full", "frozen"), layers=layers))
    if "sensitivity" in names:
        sizes.append(bounds_bytes(shape, pos, extent.forms))
    if "attention" in names:
        sizes.append(patterns_bytes(shape, pos))
    questions = [tasks.task(name) for name in report_options.EVALUATION]
    if names & {"evaluate", "mitigations"}:
        seeds = len(extent.answer_seeds)
        sizes += [answers(model, task, extent.answer_lengths, per_length=seeds) for task in questions]
    if "failure-stage" in names:
        longest = model.longest(tasks.task(report_options.FAILURE_STAGE_TASK), report_options.FAILURE_STAGE_LENGTHS)
        seeds = len(report_options.FAILURE_STAGE_SEEDS)
        judged = len(report_options.FAILURE_STAGE_LENGTHS)
        sizes.append(
            failure_stage_bytes(shape, longest, report_options.FAILURE_STAGE_DTYPES, lengths=judged, seeds=seeds)
        )
    if "mitigations" in names:
        compared = [mitigations.mitigation(name) for name in report_options.MITIGATIONS]
        counts: dict[str, Any] = {"seeds": len(extent.study_seeds), "with_sensitivity": False}
        lengths = report_options.STUDY_LENGTHS
        sizes += [study(model, task, compared, lengths, ("float64",), **counts) for task in questions]
    return max(sizes)
