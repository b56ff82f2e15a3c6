"""The parts of a reproduction: what is measured for the claims, with which arguments, and how long each may be.

`PARTS` is the recipe of a small model: about ten minutes of two cores at a million parameters. A recipe file gives other
arguments of the same names (examples/gemma-7b.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ostools import measure
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.answers.counting import counting_memory
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.bounds.bounds import bounds_memory
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.variation import variation_memory
from ostools.measure.hosted.answer_file import Hosted, hosted_evaluation
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.study.study import study, study_memory
from ostools.measure.task_prompt import item_positions, render_prompt
from ostools.measure.unloaded import Unloaded
from ostools.mitigations import Hint, Separator
from ostools.paper.claims.claim import Claim
from ostools.paper.figures import answering, counting
from ostools.paper.figures.answering import figure_questions
from ostools.paper.figures.counting import TASKS
from ostools.paper.figures.figure5 import figure_5, figure_5_memory
from ostools.paper.figures.synthetic import figure_8, figure_9
from ostools.paper.lemmas import lemma_checks
from ostools.paper.retrieval import retrieval, retrieval_memory
from ostools.results import Result
from ostools.tasks import AppendixTask
from ostools.tasks.questions import Question

OVER_SQUASHING, LEMMAS, ATTENTION, LAYERS = "over-squashing", "lemmas", "attention", "layers"
CERTIFIED, PRINTED, EQUATION_4 = "local", "proof", "theorem-b5-literal"
"""The certified form of Theorem 5.1's bound, the paper's with its attention weights and one constant a layer, and equation 4 as
it is printed (docs/fidelity.md)."""

Arguments: TypeAlias = Mapping[str, Any]
"""Arguments of a part as a recipe has them: `lengths` as the command line takes them, `seeds` a number."""
Results: TypeAlias = dict[str, Result]


@dataclass(frozen=True)
class Part:
    """One measurement of a reproduction. Its functions take `options_of` the arguments.

    arguments: their names and what they are unless a recipe says otherwise. weight: its share of the time.
    measure: from the model (a `TransformerBridge`, or a `Hosted` where the part has questions), options and progress to results
    by name. memory: bytes that it holds beside a model; None where numbers alone are asked for. questions: what a model that
    runs elsewhere is asked; None where the part takes a model's inside.
    """

    name: str
    arguments: Arguments
    weight: int
    measure: Callable[[Any, dict[str, Any], Progress | None], Results]
    memory: Callable[[Unloaded, dict[str, Any]], int] | None = None
    questions: Callable[[dict[str, Any]], list[Question]] | None = None


def options_of(arguments: Arguments) -> dict[str, Any]:
    """A part's arguments for its functions: lengths as numbers, a count of seeds as these seeds."""
    readers: dict[str, Callable[[Any], Any]] = {"lengths": parse_lengths, "seeds": range}
    return {name: readers[name](value) if name in readers else value for name, value in arguments.items()}


def steps(first: int, last: int, step: int) -> str:
    """Lengths as the command line takes them: from `first` to `last`, every `step`."""
    return ",".join(map(str, range(first, last + 1, step)))


def _result(name: str, function: Callable[..., Result], **fixed: Any) -> Callable[..., Results]:
    """A part of one result, `name`: that of `function` on the model."""
    return lambda model, options, progress: {name: function(model, **options, **fixed, progress=progress)}


def _numbers_alone(name: str, function: Callable[..., Result]) -> Callable[..., Results]:
    """A part of one result that needs no model."""
    return lambda model, options, progress: {name: function(**options)}


_ANSWER_ONLY = {name: AppendixTask(name, mode="answer-only") for name in TASKS}
"""Section 3.2 (1) read as an instruction, which C.1 does not print: each task of `figure-3` once more."""


def _answer_only_seeds(seeds: Sequence[int]) -> dict[AppendixTask, Sequence[int]]:
    return {task: tuple(seeds) if task.random else (0,) for task in _ANSWER_ONLY.values()}


def _answer_only(model: TransformerBridge | Hosted, options: dict[str, Any], progress: Progress | None) -> Results:
    """The answers to each of `_ANSWER_ONLY`."""
    if isinstance(model, Hosted):
        questions_by_task = {
            name: [item for item in model.questions if item.task == task] for name, task in _ANSWER_ONLY.items()
        }
        return {name: hosted_evaluation(model.part(questions)) for name, questions in questions_by_task.items()}
    elicitation = "chat" if getattr(model.tokenizer, "chat_template", None) else "zero-shot"
    return {
        task.name: measure.evaluate(
            model,
            task,
            lengths=options["lengths"],
            seeds=seeds,
            elicitation=elicitation,
            progress=part_of(progress, index, index + 1, len(TASKS), units=100),
        )
        for index, (task, seeds) in enumerate(_answer_only_seeds(options["seeds"]).items())
    }


def _answer_only_memory(model: Unloaded, options: dict[str, Any]) -> int:
    return max(evaluate_memory(model, task, **options) for task in _ANSWER_ONLY.values())


_DIGITS = AppendixTask("copy-last", uniform=True)
"""Drawn digits, where a model that always says 0 is not always right."""


def _over_squashing(model: TransformerBridge, options: dict[str, Any], progress: Progress | None) -> Results:
    """Measured norms and path sums on prompts of drawn digits, and the spectra of the first one's patterns."""
    results: Results = {}
    seeds = options["seeds"]
    for seed in seeds:
        task_prompt = render_prompt(model, _DIGITS, options["length"], seed=seed)
        digits = [place for place, item in enumerate(item_positions(model, task_prompt)) if item is not None]
        if not digits:
            raise InputError(
                "which tokens are the sequence's is not known: its tokenizer does not say where its tokens stand"
            )
        prompt, part_progress = task_prompt.prompt, part_of(progress, seed, seed + 1, len(seeds), units=100)
        measured = measure.sensitivity(model, prompt, method="exact", progress=part_progress)
        paths = measure.bounds(model, prompt, variants=(CERTIFIED, PRINTED, EQUATION_4))
        parameters = {**paths.provenance.parameters, "digits": digits}
        results[f"measured-{seed}"] = measured
        results[f"paths-{seed}"] = replace(paths, provenance=replace(paths.provenance, parameters=parameters))
        if seed == 0:
            results["spectra"] = measure.spectra(model, prompt, measured=measured, powers=options["powers"])
    return results


def _over_squashing_memory(model: Unloaded, options: dict[str, Any]) -> int:
    pos = model.longest(_DIGITS, [options["length"]]).tokens
    forms = (CERTIFIED, PRINTED, EQUATION_4)
    return max(sensitivity_memory(model, pos, method="exact"), bounds_memory(model, pos, variants=forms))


def _retrieval(model: TransformerBridge, options: dict[str, Any], progress: Progress | None) -> Results:
    return {"retrieval": retrieval(model, length=options["records"], seeds=options["seeds"], progress=progress)}


_REMEDIES: dict[str, Any] = {
    **{"task": _DIGITS, "mitigations": (Separator(every=3), Hint())},
    "measures": ("answers", "log_probability", "collapse"),
}
"""The paper's remedies: commas and the hint, and what they are judged on."""
_TWO_DTYPES = ["float32", "bfloat16"]

_PARTS = (
    Part(
        "figure-2",
        {"lengths": steps(10, 400, 10)},
        10,
        _result("figure", answering.figure_2),
        lambda model, options: answering.figure_2_memory(model, **options),
        lambda options: figure_questions(answering.figure_2_tasks(), **options),
    ),
    Part(
        "figure-3",
        {"lengths": steps(5, 150, 5), "seeds": 3, "max_new_tokens": 256},
        55,
        _result("figure", counting.figure_3, panels=TASKS, number=6),
        lambda model, options: counting.figure_3_memory(model, panels=TASKS, **options),
        lambda options: figure_questions(counting.figure_tasks(options["seeds"], TASKS), options["lengths"]),
    ),
    Part(
        "answer-only",
        {"lengths": steps(5, 150, 5), "seeds": 3},
        5,
        _answer_only,
        _answer_only_memory,
        lambda options: figure_questions(_answer_only_seeds(options["seeds"]), options["lengths"]),
    ),
    Part(
        "figure-5",
        {"lengths": "1:256", "dtypes": _TWO_DTYPES, "seeds": 5, "items": "text"},
        20,
        _result("figure", figure_5),
        lambda model, options: figure_5_memory(model, lengths=options["lengths"], dtypes=options["dtypes"]),
    ),
    Part(
        ATTENTION,
        {"lengths": steps(8, 256, 8)},
        3,
        _result("variation", measure.attention_variation, task="figure-5a"),
        lambda model, options: variation_memory(model, "figure-5a", **options),
    ),
    Part(
        LAYERS,
        {"lengths": steps(8, 256, 8), "dtypes": ["bfloat16"]},
        5,
        _result("collapse", measure.collapse, task="figure-5a", layers="all"),
        lambda model, options: collapse_memory(model, "figure-5a", **options, layers="all"),
    ),
    Part("figure-8", {"seeds": 5}, 2, _numbers_alone("figure", figure_8)),
    Part("figure-9", {"seeds": 5}, 1, _numbers_alone("figure", figure_9)),
    Part(OVER_SQUASHING, {"length": 32, "seeds": 6, "powers": 64}, 10, _over_squashing, _over_squashing_memory),
    Part(
        "retrieval",
        {"records": 9, "seeds": 6},
        60,
        _retrieval,
        lambda model, options: retrieval_memory(model, options["records"]),
    ),
    Part(LEMMAS, {"seed": 0}, 4, _numbers_alone(LEMMAS, lemma_checks)),
    Part(
        "counting",
        {"lengths": "1:96", "dtypes": _TWO_DTYPES},
        15,
        _result("counting", measure.counting, task="count-ones"),
        lambda model, options: counting_memory(model, "count-ones", **options),
    ),
    Part(
        "remedies",
        {"lengths": steps(4, 64, 4), "seeds": 2, "dtypes": ["bfloat16"]},
        15,
        _result("study", study, **_REMEDIES),
        lambda model, options: study_memory(model, **options, **_REMEDIES),
    ),
)
PARTS: dict[str, Part] = {part.name: part for part in _PARTS}


def parts_of(claims: Sequence[Claim]) -> list[Part]:
    """The parts that these claims need, in the order of `PARTS`."""
    needed = {name for claim in claims for name in claim.needs}
    return [part for part in PARTS.values() if part.name in needed]


def reproduction_memory(model: Unloaded, arguments: Mapping[str, Arguments]) -> int:
    """Bytes of the largest of the parts of these names with their arguments; nothing of those that need no model."""
    needs = {name: PARTS[name].memory for name in arguments}
    return max((memory(model, options_of(arguments[name])) for name, memory in needs.items() if memory), default=0)


def claim_questions() -> list[Question]:
    """What a model that runs elsewhere is asked for the claims about answers, each question once."""
    every = [item for part in PARTS.values() if part.questions for item in part.questions(options_of(part.arguments))]
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
