"""The parts of a reproduction: what is measured for the claims, with which arguments, and how long each may be.

`PARTS` is the recipe of a small model: about ten minutes of two cores at a million parameters. A recipe file gives other
arguments of the same names (examples/gemma-7b.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from transformer_lens.model_bridge import TransformerBridge

from ostools import measure
from ostools.experiments.figures import copying, counting
from ostools.experiments.figures.answering import figure_questions
from ostools.experiments.figures.copying import figure_2
from ostools.experiments.figures.counting import TASKS, figure_3
from ostools.experiments.figures.figure5 import figure_5
from ostools.experiments.figures.synthetic import figure_8, figure_9
from ostools.experiments.lemmas import lemma_checks
from ostools.experiments.reproduce.claim import Claim
from ostools.experiments.retrieval import retrieval
from ostools.experiments.study.study import study
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.hosted.answer_file import Hosted
from ostools.measure.hosted.evaluate import hosted_evaluation
from ostools.measure.task_prompt import item_positions, render_prompt
from ostools.results import Result
from ostools.tasks import AppendixTask
from ostools.tasks.questions import Question

OVER_SQUASHING, LEMMAS, ATTENTION, LAYERS = "over-squashing", "lemmas", "attention", "layers"
CERTIFIED, PRINTED, EQUATION_4 = "local", "proof", "theorem-b5-literal"
"""The certified form of Theorem 5.1's bound, the paper's with its attention weights and one constant a layer, and equation 4 as
it is printed (docs/fidelity.md)."""

Arguments: TypeAlias = Mapping[str, Any]
Results: TypeAlias = dict[str, Result]
Measure: TypeAlias = Callable[[Any, Arguments, Progress | None], Results]
"""The model is a `TransformerBridge`, or a `Hosted` where the part has questions."""


@dataclass(frozen=True)
class Part:
    """One measurement of a reproduction.

    arguments: their names and what they are unless a recipe says otherwise; `lengths` as the command line takes them.
    measure: from model, arguments and progress to results by name. weight: its share of the time on the embedded model.
    needs_model: False where numbers alone are asked for. questions: what a model that runs elsewhere is asked with these
    arguments; None where the part takes a model's inside.
    """

    name: str
    arguments: Arguments
    measure: Measure
    weight: int
    needs_model: bool = True
    questions: Callable[[Arguments], list[Question]] | None = None


def steps(first: int, last: int, step: int) -> str:
    """Lengths as the command line takes them: from `first` to `last`, every `step`."""
    return ",".join(map(str, range(first, last + 1, step)))


def _result(name: str, function: Callable[..., Result], **options: Any) -> Measure:
    """A part of one result, `name`: `function` with these options and a recipe's arguments, lengths and seeds read."""

    def measure_part(model: TransformerBridge | Hosted, arguments: Arguments, progress: Progress | None) -> Results:
        return {name: function(model, **_read(arguments), **options, progress=progress)}

    return measure_part


def _numbers_alone(name: str, function: Callable[..., Result]) -> Measure:
    """A part of one result that needs no model."""
    return lambda model, arguments, progress: {name: function(**_read(arguments))}


def _read(arguments: Arguments) -> dict[str, Any]:
    """A recipe's arguments for a function: lengths as numbers, a count of seeds as these seeds."""
    readers: dict[str, Callable[[Any], Any]] = {"lengths": parse_lengths, "seeds": range}
    return {name: readers[name](value) if name in readers else value for name, value in arguments.items()}


_ANSWER_ONLY = {name: AppendixTask(name, mode="answer-only") for name in TASKS}
"""Section 3.2 (1) read as an instruction, which C.1 does not print: each task of `figure-3` once more."""


def _figure_2_questions(arguments: Arguments) -> list[Question]:
    return figure_questions(copying.figure_tasks(), parse_lengths(arguments["lengths"]))


def _figure_3_questions(arguments: Arguments) -> list[Question]:
    tasks = counting.figure_tasks(range(arguments["seeds"]), TASKS)
    return figure_questions(tasks, parse_lengths(arguments["lengths"]))


def _answer_only_questions(arguments: Arguments) -> list[Question]:
    seeds = {task: range(arguments["seeds"]) if task.random else (0,) for task in _ANSWER_ONLY.values()}
    return figure_questions(seeds, parse_lengths(arguments["lengths"]))


def _answer_only(model: TransformerBridge | Hosted, arguments: Arguments, progress: Progress | None) -> Results:
    """The answers to each of `_ANSWER_ONLY`."""
    if isinstance(model, Hosted):
        questions_by_task = {
            name: [item for item in model.questions if item.task == task] for name, task in _ANSWER_ONLY.items()
        }
        return {name: hosted_evaluation(model.part(questions)) for name, questions in questions_by_task.items()}
    results: Results = {}
    for index, (name, task) in enumerate(_ANSWER_ONLY.items()):
        results[name] = measure.evaluate(
            model,
            task,
            lengths=parse_lengths(arguments["lengths"]),
            seeds=tuple(range(arguments["seeds"])) if task.random else (0,),
            elicitation="chat" if getattr(model.tokenizer, "chat_template", None) else "zero-shot",
            progress=part_of(progress, index, index + 1, len(TASKS), units=100),
        )
    return results


def _over_squashing(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    """Measured norms and path sums on prompts of drawn digits, and the spectra of the first one's patterns."""
    results: Results = {}
    count = arguments["seeds"]
    for seed in range(count):
        task_prompt = render_prompt(model, AppendixTask("copy-last", uniform=True), arguments["length"], seed=seed)
        digits = [place for place, item in enumerate(item_positions(model, task_prompt)) if item is not None]
        if not digits:
            raise InputError(
                "which tokens are the sequence's is not known: its tokenizer does not say where its tokens stand"
            )
        prompt, part_progress = task_prompt.prompt, part_of(progress, seed, seed + 1, count, units=100)
        measured = measure.sensitivity(model, prompt, method="exact", progress=part_progress)
        paths = measure.bounds(model, prompt, variants=(CERTIFIED, PRINTED, EQUATION_4))
        parameters = {**paths.provenance.parameters, "digits": digits}
        results[f"measured-{seed}"] = measured
        results[f"paths-{seed}"] = replace(paths, provenance=replace(paths.provenance, parameters=parameters))
        if seed == 0:
            results["spectra"] = measure.spectra(model, prompt, measured=measured, powers=arguments["powers"])
    return results


def _retrieval(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    result = retrieval(model, length=arguments["records"], seeds=range(arguments["seeds"]), progress=progress)
    return {"retrieval": result}


_REMEDIES: dict[str, Any] = {
    "task": AppendixTask("copy-last", uniform=True),
    "mitigations": ("separator:every=3", "hint"),
    "sensitivity_lengths": 0,
}
"""The paper's remedies, commas and the hint, on drawn digits, where a model that always says 0 is not always right."""
_TWO_DTYPES = ["float32", "bfloat16"]
_COLLAPSE: dict[str, Any] = {"task": "figure-5a", "layers": "all"}

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part(
            "figure-2", {"lengths": steps(10, 400, 10)}, _result("figure", figure_2), 10, questions=_figure_2_questions
        ),
        Part(
            "figure-3",
            {"lengths": steps(5, 150, 5), "seeds": 3, "max_new_tokens": 256},
            _result("figure", figure_3, panels=TASKS, number=6),
            55,
            questions=_figure_3_questions,
        ),
        Part(
            "answer-only",
            {"lengths": steps(5, 150, 5), "seeds": 3},
            _answer_only,
            5,
            questions=_answer_only_questions,
        ),
        Part(
            "figure-5",
            {"lengths": "1:256", "dtypes": _TWO_DTYPES, "seeds": 5, "items": "text"},
            _result("figure", figure_5),
            20,
        ),
        Part(
            ATTENTION,
            {"lengths": steps(8, 256, 8)},
            _result("variation", measure.attention_variation, task="figure-5a"),
            3,
        ),
        Part(
            LAYERS,
            {"lengths": steps(8, 256, 8), "dtypes": ["bfloat16"]},
            _result("collapse", measure.collapse, **_COLLAPSE),
            5,
        ),
        Part("figure-8", {"seeds": 5}, _numbers_alone("figure", figure_8), 2, needs_model=False),
        Part("figure-9", {"seeds": 5}, _numbers_alone("figure", figure_9), 1, needs_model=False),
        Part(OVER_SQUASHING, {"length": 32, "seeds": 6, "powers": 64}, _over_squashing, 10),
        Part("retrieval", {"records": 9, "seeds": 6}, _retrieval, 60),
        Part(LEMMAS, {"seed": 0}, _numbers_alone(LEMMAS, lemma_checks), 4, needs_model=False),
        Part(
            "counting",
            {"lengths": "1:96", "dtypes": _TWO_DTYPES},
            _result("counting", measure.counting, task="count-ones"),
            15,
        ),
        Part(
            "remedies",
            {"lengths": steps(4, 64, 4), "seeds": 2, "dtypes": ["bfloat16"]},
            _result("study", study, **_REMEDIES),
            15,
        ),
    )
}


def parts_of(claims: Sequence[Claim]) -> list[Part]:
    """The parts that these claims need, in the order of `PARTS`."""
    needed = {name for claim in claims for name in claim.needs}
    return [part for part in PARTS.values() if part.name in needed]


def claim_questions() -> list[Question]:
    """What a model that runs elsewhere is asked for the claims about answers, each question once."""
    every = [item for part in PARTS.values() if part.questions for item in part.questions(part.arguments)]
    return list({item.id: item for item in every}.values())


def checked_arguments(recipe: Mapping[str, Any]) -> dict[str, Arguments]:
    """Arguments of every part: the recipe's, else its own. Raises `InputError` for an unknown part, argument or type."""
    for name in recipe:
        if name not in PARTS:
            raise unknown_name("part", name, PARTS)
    return {name: {**part.arguments, **_checked(part, recipe.get(name, {}))} for name, part in PARTS.items()}


def _checked(part: Part, values: Any) -> Arguments:
    if not isinstance(values, Mapping):
        raise InputError(f"{part.name}: expected arguments with their values, found {values!r}")
    for name, value in values.items():
        if name not in part.arguments:
            raise unknown_name(f"argument of {part.name}", name, part.arguments)
        kind = type(part.arguments[name])
        if kind is int and (type(value) is not int or value < 0):
            raise InputError(f"{part.name}: {name}: expected a whole number from 0, found {value!r}")
        if kind is str and not isinstance(value, str):
            raise InputError(
                f"{part.name}: {name}: expected a text such as {part.arguments[name][:20]!r}, found {value!r}"
            )
        if kind is list and not (isinstance(value, list) and value and all(isinstance(entry, str) for entry in value)):
            raise InputError(f"{part.name}: {name}: expected a list of names, found {value!r}")
    if "lengths" in values:
        parse_lengths(values["lengths"], f"{part.name}: lengths")
    return values
