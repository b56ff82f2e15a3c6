"""The parts of a reproduction: what is measured for the claims, with which arguments, and how long
each may be.

`PARTS` is the recipe of a small model: about ten minutes of two cores at a million parameters. A
recipe file gives other arguments of the same names (examples/gemma-7b.yaml).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pandas as pd
import torch
from pydantic import NonNegativeInt, TypeAdapter, conlist
from torch import Tensor

import ostools as ost
from ostools.ground import (
    InputError,
    Progress,
    TransformerBridge,
    checked_name,
    parse_lengths,
    part_of,
    refusal,
)
from ostools.measure import Unloaded, bytes_of
from ostools.mitigations import Hint, Separator
from ostools.models import Prompt
from ostools.paper import behaviour
from ostools.paper.claims.claim import PaperClaim
from ostools.paper.figure5 import counting, figure_5
from ostools.paper.lemmas import lemma_checks
from ostools.paper.retrieval import retrieval
from ostools.paper.synthetic import figure_8, figure_9
from ostools.results import Provenance, Result
from ostools.tasks import FIGURE_5, AppendixTask, Question
from ostools.theory import lemmas

OVER_SQUASHING, LEMMAS, ATTENTION, LAYERS = "over-squashing", "lemmas", "attention", "layers"
CERTIFIED, PRINTED, EQUATION_4 = "local", "proof", "theorem-b5-literal"
"""The certified form of Theorem 5.1's bound, the paper's with its attention weights and one
constant a layer, and equation 4 as it is printed (docs/fidelity.md)."""

Arguments: TypeAlias = Mapping[str, Any]
"""Arguments of a part as a recipe has them: `lengths` as the command line takes them, `seeds` a
number.
"""
Results: TypeAlias = dict[str, Result]


@dataclass(frozen=True)
class ClaimPart:
    """One measurement of a reproduction. Its functions take `options_of` the arguments.

    arguments: their names and what they are unless a recipe says otherwise. weight: its share of
    the time. measure: from the model (a `TransformerBridge`, or a `Hosted` where the part has
    questions), options and progress to results by name. memory: bytes that it holds beside a model;
    None where numbers alone are asked for. questions: what a model that runs elsewhere is asked;
    None where the part takes a model's inside.
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
    return {
        name: readers[name](value) if name in readers else value
        for name, value in arguments.items()
    }


def steps(first: int, last: int, step: int) -> str:
    """Lengths as the command line takes them: from `first` to `last`, every `step`."""
    return ",".join(map(str, range(first, last + 1, step)))


def _result(name: str, function: Callable[..., Result], **fixed: Any) -> Callable[..., Results]:
    """A part of one result, `name`: that of `function` on the model."""
    return lambda model, options, progress: {
        name: function(model, **options, **fixed, progress=progress)
    }


def _numbers_alone(name: str, function: Callable[..., Result]) -> Callable[..., Results]:
    """A part of one result that needs no model."""
    return lambda model, options, progress: {name: function(**options)}


def _seeds_by_task(options: Mapping[str, Any]) -> dict[AppendixTask, Sequence[int]]:
    """Section 3.2 (1) read as an instruction, which C.1 does not print: each task of `figure-3`
    once more.
    """
    return behaviour.figure_tasks(options["seeds"], behaviour.TASKS, ("answer-only",))


def _answer_only(model: Any, options: dict[str, Any], progress: Progress | None) -> Results:
    evaluations = behaviour.evaluated(
        model, _seeds_by_task(options), options["lengths"], 0, progress, {}
    )
    return {task.name: evaluation for task, evaluation in evaluations.items()}


_FORMS = (CERTIFIED, PRINTED, EQUATION_4)
_ROUNDING = 1e-5  # softmax rounds each of the weights that sum to 1 to float32
_DIGITS = AppendixTask("copy-last", uniform=True)
"""Drawn digits, where a model that always says 0 is not always right."""


def _over_squashing(
    model: TransformerBridge, options: dict[str, Any], progress: Progress | None
) -> Results:
    """Measured norms and path sums on prompts of drawn digits, and powers of the first one's
    patterns.
    """
    results: Results = {}
    for seed in options["seeds"]:
        task_prompt = ost.measure.render_prompt(model, _DIGITS, options["length"], seed=seed)
        items = ost.measure.item_positions(model, task_prompt)
        digits = [place for place, item in enumerate(items) if item is not None]
        if not digits:
            raise InputError(
                "which tokens are the sequence's is not known: its tokenizer does not say where "
                "its tokens stand"
            )
        part_progress = part_of(progress, seed, seed + 1, len(options["seeds"]))
        measured = ost.sensitivity(
            model, task_prompt.prompt, method="exact", progress=part_progress
        )
        paths = ost.bounds(model, task_prompt.prompt, variants=_FORMS)
        parameters = {**paths.provenance.parameters, "digits": digits}
        origin = replace(paths.provenance, parameters=parameters)
        results |= {
            f"measured-{seed}": measured,
            f"paths-{seed}": replace(paths, provenance=origin),
        }
        if seed == 0:
            results["powers"] = _pattern_powers(model, task_prompt.prompt, options["powers"])
    return results


def _pattern_powers(model: TransformerBridge, prompt: Prompt, powers: int) -> Result:
    """A row a block, of ((A + I) / 2)^k with A its mean pattern, in float64: power (k), remainder
    (the last token's mass off the first), observed_rate (remainder / that of k - 1; NaN where
    nothing is left), predicted_rate (the second eigenvalue).
    """
    if powers < 2:
        raise InputError(f"powers: expected at least 2, of which a rate is, found {powers}")

    def lazy_mean(pattern: Tensor, layer: int | None) -> Tensor:
        if not (defect := lemmas.defect(pattern[0].double())) <= _ROUNDING:
            raise InputError(
                f"expected patterns whose rows sum to 1, found layer {layer} off by {defect:.2g}"
            )
        return lemmas.lazy(pattern[0].double().mean(0))

    parameter = next(model.parameters())
    if parameter.dtype not in (torch.float32, torch.float64):
        model = ost.models.view_in(model, torch.float32)
    with torch.no_grad(), ost.hooks.capture(model, "pattern", reduce=lazy_mean) as record:
        model(prompt.ids[None].to(parameter.device), use_cache=False, logits_to_keep=1)
    rows = []
    for layer, matrix in record["pattern"].items():
        before, remainder = lemmas.remainders(matrix, powers)[-2:]
        numbers = (remainder, remainder / before, lemmas.second_eigenvalue(matrix))
        rows.append((layer, powers, *map(float, numbers)))
    names = ["layer", "power", "remainder", "observed_rate", "predicted_rate"]
    return Result(pd.DataFrame(rows, columns=names), Provenance.collect(model, powers=powers))


def _bytes(
    *measurements: Callable[..., Result], **sizes: Any
) -> Callable[[Unloaded, dict[str, Any]], int]:
    """Forecast of a part whose measurements follow each other."""
    return lambda model, options: max(
        bytes_of(measurement, model, **options, **sizes) for measurement in measurements
    )


_REMEDIES: dict[str, Any] = {
    **{"task": _DIGITS, "mitigations": (Separator(every=3), Hint())},
    "measures": ("answers", "log_probability", "collapse"),
}
"""The paper's remedies: commas and the hint, and what they are judged on."""
_TWO_DTYPES = ["float32", "bfloat16"]

_PARTS = (
    ClaimPart(
        "figure-2",
        {"lengths": steps(10, 400, 10)},
        10,
        _result("figure", behaviour.figure_2),
        _bytes(ost.evaluate, task=[*behaviour.figure_2_tasks()]),
        lambda options: behaviour.figure_questions(behaviour.figure_2_tasks(), **options),
    ),
    ClaimPart(
        "figure-3",
        {"lengths": steps(5, 150, 5), "seeds": 3, "max_new_tokens": 256},
        55,
        _result("figure", behaviour.figure_3, panels=behaviour.TASKS, number=6),
        _bytes(ost.evaluate, task=[*behaviour.figure_tasks(panels=behaviour.TASKS)]),
        lambda options: behaviour.figure_prompts(
            6, options["lengths"], options["seeds"], behaviour.TASKS
        ),
    ),
    ClaimPart(
        "answer-only",
        {"lengths": steps(5, 150, 5), "seeds": 3},
        5,
        _answer_only,
        _bytes(ost.evaluate, task=[*_seeds_by_task({"seeds": [0]})]),
        lambda options: behaviour.figure_questions(_seeds_by_task(options), options["lengths"]),
    ),
    ClaimPart(
        "figure-5",
        {"lengths": "1:256", "dtypes": _TWO_DTYPES, "seeds": 5, "items": "text"},
        20,
        _result("figure", figure_5),
        _bytes(ost.collapse, task=[*FIGURE_5]),
    ),
    ClaimPart(
        ATTENTION,
        {"lengths": steps(8, 256, 8)},
        3,
        _result("variation", ost.measure.attention_variation, task="figure-5a"),
        _bytes(ost.measure.attention_variation, task="figure-5a"),
    ),
    ClaimPart(
        LAYERS,
        {"lengths": steps(8, 256, 8), "dtypes": ["bfloat16"]},
        5,
        _result("collapse", ost.collapse, task="figure-5a", layers="all"),
        _bytes(ost.collapse, task="figure-5a", layers="all"),
    ),
    ClaimPart("figure-8", {"seeds": 5}, 2, _numbers_alone("figure", figure_8)),
    ClaimPart("figure-9", {"seeds": 5}, 1, _numbers_alone("figure", figure_9)),
    ClaimPart(
        OVER_SQUASHING,
        {"length": 32, "seeds": 6, "powers": 64},
        10,
        _over_squashing,
        _bytes(ost.sensitivity, ost.bounds, task=_DIGITS, method="exact", variants=_FORMS),
    ),
    ClaimPart(
        "retrieval",
        {"length": 9, "seeds": 6},
        60,
        _result("retrieval", retrieval),
        _bytes(retrieval),
    ),
    ClaimPart(LEMMAS, {"seed": 0}, 4, _numbers_alone(LEMMAS, lemma_checks)),
    ClaimPart(
        "counting",
        {"lengths": "1:96", "dtypes": _TWO_DTYPES},
        15,
        lambda model, options, progress: counting(model, **options, progress=progress),
        _bytes(ost.collapse, task="count-ones"),
    ),
    ClaimPart(
        "remedies",
        {"lengths": steps(4, 64, 4), "seeds": 2, "dtypes": ["bfloat16"]},
        15,
        _result("study", ost.study, **_REMEDIES),
        _bytes(ost.study, **_REMEDIES),
    ),
)
PARTS: dict[str, ClaimPart] = {part.name: part for part in _PARTS}


def parts_of(claims: Sequence[PaperClaim]) -> list[ClaimPart]:
    """The parts that these claims need, in the order of `PARTS`."""
    needed = {name for claim in claims for name in claim.needs}
    return [part for part in PARTS.values() if part.name in needed]


def reproduction_memory(model: Unloaded, arguments: Mapping[str, Arguments]) -> int:
    """Bytes of the largest of the parts of these names with their arguments; nothing of those that
    need no model.
    """
    return max(
        (
            memory(model, options_of(arguments[name]))
            for name in arguments
            if (memory := PARTS[name].memory)
        ),
        default=0,
    )


def claim_questions() -> list[Question]:
    """What a model that runs elsewhere is asked for the claims about answers, each
    question once.
    """
    every = [
        item
        for part in PARTS.values()
        if part.questions
        for item in part.questions(options_of(part.arguments))
    ]
    return list({item.id: item for item in every}.values())


def checked_arguments(recipe: Mapping[str, Any]) -> dict[str, Arguments]:
    """Arguments of every part: the recipe's, else its own. Raises `InputError` for an unknown part,
    argument or type.
    """
    for name, values in recipe.items():
        checked_name("part", name, PARTS)
        if not isinstance(values, Mapping):
            raise InputError(f"{name}: expected arguments with their values, found {values!r}")
        for argument, value in values.items():
            default = PARTS[name].arguments.get(
                checked_name(f"argument of {name}", argument, PARTS[name].arguments)
            )
            with refusal(f"{name}: {argument} such as {default!r:.22}"):
                _KINDS[type(default)].validate_python(value, strict=True)
        parse_lengths(values.get("lengths", "1"), f"{name}: lengths")
    return {name: {**part.arguments, **recipe.get(name, {})} for name, part in PARTS.items()}


_KINDS: dict[type, TypeAdapter[Any]] = {
    int: TypeAdapter(NonNegativeInt),
    str: TypeAdapter(str),
    list: TypeAdapter(conlist(str, min_length=1)),
}
"""By the type of an argument's default: what a recipe may say."""
