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
from ostools.experiments.figures.figure2 import figure_2
from ostools.experiments.figures.figure3 import TASKS, figure_3
from ostools.experiments.figures.figure5 import figure_5
from ostools.experiments.figures.figure8 import figure_8
from ostools.experiments.figures.figure9 import figure_9
from ostools.experiments.lemmas import lemma_checks
from ostools.experiments.reproduce.claim import Claim
from ostools.experiments.retrieval import retrieval
from ostools.experiments.study.study import study
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.task_prompt import TaskPrompt, item_positions, render_prompt
from ostools.results import Provenance, Result
from ostools.tasks import AppendixTask

OVER_SQUASHING, LEMMAS = "over-squashing", "lemmas"
CERTIFIED, PRINTED, EQUATION_4 = "local", "proof", "theorem-b5-literal"
"""The certified form of Theorem 5.1's bound, the paper's with its attention weights and one constant a layer, and equation 4 as
it is printed (docs/fidelity.md)."""

Arguments: TypeAlias = Mapping[str, Any]
Results: TypeAlias = dict[str, Result]


@dataclass(frozen=True)
class Part:
    """One measurement of a reproduction.

    arguments: their names and what they are unless a recipe says otherwise; `lengths` as the command line takes them.
    measure: from model, arguments and progress to results by name. weight: its share of the time on the embedded model.
    needs_model: False where numbers alone are asked for.
    """

    name: str
    arguments: Arguments
    measure: Callable[[TransformerBridge, Arguments, Progress | None], Results]
    weight: int
    needs_model: bool = True


def steps(first: int, last: int, step: int) -> str:
    """Lengths as the command line takes them: from `first` to `last`, every `step`."""
    return ",".join(map(str, range(first, last + 1, step)))


def _figure_2(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    return {"figure": figure_2(model, parse_lengths(arguments["lengths"]), progress=progress)}


def _figure_3(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    result = figure_3(
        model,
        parse_lengths(arguments["lengths"]),
        range(arguments["seeds"]),
        panels=TASKS,
        number=6,
        max_new_tokens=arguments["max_new_tokens"],
        progress=progress,
    )
    return {"figure": result}


def _answer_only(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    """Section 3.2 (1) read as an instruction, which C.1 does not print: each task of `figure-3` once more."""
    results: Results = {}
    for parts_done, name in enumerate(TASKS):
        task = AppendixTask(name, mode="answer-only")
        part_progress = part_of(progress, parts_done, parts_done + 1, len(TASKS), units=100)
        seeds = tuple(range(arguments["seeds"])) if task.random else (0,)
        lengths = parse_lengths(arguments["lengths"])
        how: Any = {"chat": bool(getattr(model.tokenizer, "chat_template", None)), "probability": False}
        results[name] = measure.evaluate(model, task, lengths=lengths, seeds=seeds, progress=part_progress, **how)
    return results


def _attention(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    lengths = parse_lengths(arguments["lengths"])
    return {"variation": measure.attention_variation(model, "figure-5a", lengths=lengths, progress=progress)}


def _layers(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    lengths = parse_lengths(arguments["lengths"])
    result = measure.collapse(
        model, "figure-5a", lengths=lengths, dtypes=arguments["dtypes"], layers="all", progress=progress
    )
    return {"collapse": result}


def _figure_5(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    lengths, seeds = parse_lengths(arguments["lengths"]), range(arguments["seeds"])
    return {
        "figure": figure_5(
            model, lengths=lengths, dtypes=arguments["dtypes"], seeds=seeds, items=arguments["items"], progress=progress
        )
    }


def _figure_8(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    return {"figure": figure_8(seeds=range(arguments["seeds"]))}


def _figure_9(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    return {"figure": figure_9(seeds=range(arguments["seeds"]))}


def _lemmas(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    return {LEMMAS: lemma_checks(arguments["seed"])}


def _over_squashing(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    """Measured norms and path sums on prompts of drawn digits, and the spectra of the first one's patterns."""
    results: Results = {}
    count = arguments["seeds"]
    for seed in range(count):
        task_prompt = render_prompt(model, AppendixTask("copy-last", uniform=True), arguments["length"], seed=seed)
        digits = _digits(model, task_prompt)
        part_progress = part_of(progress, seed, seed + 1, count, units=100)
        measured = measure.sensitivity(model, task_prompt.prompt, method="exact", progress=part_progress)
        paths = measure.bounds(model, task_prompt.prompt, variants=(CERTIFIED, PRINTED, EQUATION_4))
        results[f"measured-{seed}"] = measured
        results[f"paths-{seed}"] = _with(paths, digits=digits)
        if seed == 0:
            results["spectra"] = measure.spectra(
                model, task_prompt.prompt, measured=measured, powers=arguments["powers"]
            )
    return results


def _digits(model: TransformerBridge, task_prompt: TaskPrompt) -> list[int]:
    """The positions of the tokens of the sequence."""
    digits = [place for place, item in enumerate(item_positions(model, task_prompt)) if item is not None]
    if not digits:
        raise InputError(
            "which tokens are the sequence's is not known: its tokenizer does not say where its tokens stand"
        )
    return digits


def _with(result: Any, **more: Any) -> Any:
    """The same result, its provenance with more parameters."""
    provenance: Provenance = result.provenance
    return replace(result, provenance=replace(provenance, parameters={**provenance.parameters, **more}))


def _retrieval(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    result = retrieval(model, length=arguments["records"], seeds=range(arguments["seeds"]), progress=progress)
    return {"retrieval": result}


def _remedies(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    """The paper's: commas and the hint, on drawn digits, where a model that always says 0 is not always right."""
    result = study(
        model,
        AppendixTask("copy-last", uniform=True),
        mitigations=("separator:every=3", "hint"),
        lengths=parse_lengths(arguments["lengths"]),
        seeds=tuple(range(arguments["seeds"])),
        dtypes=arguments["dtypes"],
        sensitivity_lengths=0,
        progress=progress,
    )
    return {"study": result}


def _counting(model: TransformerBridge, arguments: Arguments, progress: Progress | None) -> Results:
    lengths = parse_lengths(arguments["lengths"])
    return {
        "counting": measure.counting(
            model, "count-ones", lengths=lengths, dtypes=arguments["dtypes"], progress=progress
        )
    }


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("figure-2", {"lengths": steps(10, 400, 10)}, _figure_2, 10),
        Part("figure-3", {"lengths": steps(5, 150, 5), "seeds": 3, "max_new_tokens": 256}, _figure_3, 55),
        Part("answer-only", {"lengths": steps(5, 150, 5), "seeds": 3}, _answer_only, 5),
        Part(
            "figure-5",
            {"lengths": "1:256", "dtypes": ["float32", "bfloat16"], "seeds": 5, "items": "text"},
            _figure_5,
            20,
        ),
        Part("attention", {"lengths": steps(8, 256, 8)}, _attention, 3),
        Part("layers", {"lengths": steps(8, 256, 8), "dtypes": ["bfloat16"]}, _layers, 5),
        Part("figure-8", {"seeds": 5}, _figure_8, 2, needs_model=False),
        Part("figure-9", {"seeds": 5}, _figure_9, 1, needs_model=False),
        Part(OVER_SQUASHING, {"length": 32, "seeds": 6, "powers": 64}, _over_squashing, 10),
        Part("retrieval", {"records": 9, "seeds": 6}, _retrieval, 60),
        Part(LEMMAS, {"seed": 0}, _lemmas, 4, needs_model=False),
        Part("counting", {"lengths": "1:96", "dtypes": ["float32", "bfloat16"]}, _counting, 15),
        Part("remedies", {"lengths": steps(4, 64, 4), "seeds": 2, "dtypes": ["bfloat16"]}, _remedies, 15),
    )
}


def parts_of(claims: Sequence[Claim]) -> list[Part]:
    """The parts that these claims need, in the order of `PARTS`."""
    needed = {name for claim in claims for name in claim.needs}
    return [part for part in PARTS.values() if part.name in needed]


def checked_arguments(given_arguments: Mapping[str, Any]) -> dict[str, Arguments]:
    """Every part's arguments: those given, else its own. Raises `InputError` for an unknown part, argument or kind of value."""
    for name in given_arguments:
        if name not in PARTS:
            raise unknown_name("part", name, PARTS)
    return {name: {**part.arguments, **_checked(part, given_arguments.get(name, {}))} for name, part in PARTS.items()}


def _checked(part: Part, given_arguments: Any) -> Arguments:
    if not isinstance(given_arguments, Mapping):
        raise InputError(f"{part.name}: expected arguments with their values, found {given_arguments!r}")
    for name, value in given_arguments.items():
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
    if "lengths" in given_arguments:
        parse_lengths(given_arguments["lengths"], f"{part.name}: lengths")
    return given_arguments
