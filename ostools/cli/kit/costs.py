"""What each command takes that is made of several measurements: a count of its parts, for the forecast before it begins.

The counts of single measurements stand beside them (`ostools.measure.*.cost`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mitigations import Hint, Mitigation, Separator, changes_pass
from ostools import tasks
from ostools.cli.kit.prompts import Given
from ostools.experiments.figures import figure2, figure3
from ostools.experiments.reproduce.parts import CERTIFIED, EQUATION_4, PRINTED
from ostools.ground.lengths import parse_lengths
from ostools.measure.answers.cost import behaviour_cost
from ostools.measure.answers.elicitation import FEW_SHOT
from ostools.measure.answers.probability import spare
from ostools.measure.collapse.cost import collapse_cost
from ostools.measure.jacobian.estimate import COTANGENTS
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, PromptTokens, pass_cost
from ostools.measure.passes.output import read_up_to
from ostools.measure.paths.cost import path_sum_cost
from ostools.measure.profiles.looseness import CHAIN
from ostools.runs.forecast.forecast import Unloaded
from ostools.tasks import AppendixTask, CollapseTask, Task
from ostools.tasks.retrieve import RetrieveTask

_STUDY_BOUND = ("local",)
_ABLATED = 14  # passes a part that is taken out: answers, the pair's distance, the carriers' sensitivity
_WINDOWS = 24
_MOST_LENGTHS = 12


def sensitivity(
    model: Unloaded,
    prompts: Sequence[Given],
    linearisations: Sequence[str],
    layers: Sequence[int] | str,
    method: str,
    *,
    cotangents: int = COTANGENTS,
    at: int | None = None,
    one_row: bool = False,
) -> Cost:
    """Of every prompt; of its beginning up to `at`. `one_row`: of a logit. `cotangents`: of a sketch."""
    streams = model.shape.n_layers + 1 if isinstance(layers, str) else len(layers)
    how: dict[str, Any] = {"layers": streams, "method": method, "max_memory": model.limit, "one_row": one_row}
    how["cotangents"] = cotangents
    total = Cost()
    for prompt in prompts:
        pos = model.pos(prompt)
        total += sensitivity_cost(model.shape, read_up_to(at, pos), linearisations, **how)
        # The logits of the whole prompt and of its beginning; and that of the token.
        total += replace(pass_cost(model.shape, pos, 2.0 * (at is not None) + one_row), memory=0)
    return total


def looseness(model: Unloaded, prompt: Given) -> Cost:
    """The exact profile, and the chain of bounds beside it."""
    pos = model.pos(prompt)
    exact = sensitivity_cost(model.shape, pos, method="exact", max_memory=model.limit)
    return exact + path_sum_cost(model.shape, pos, CHAIN)


def attention(model: Unloaded, prompt: Given | None, task: str | None, length: int | None, compared: bool) -> Cost:
    """A pass with its patterns, or two."""
    pos = model.pos(prompt) if prompt is not None else max(model.asked(_form(task), [length or 1]).prompts)
    return pass_cost(model.shape, pos, 2 + 2 * compared)


def variation(
    model: Unloaded, task: CollapseTask, lengths: Sequence[int], seeds: int, mitigation: Mitigation | None = None
) -> Cost:
    """Passes in float64 with the attention weights: two for each pair under a mitigation that acts in the pass."""
    found = model.asked(task, lengths, pairs=True)
    if changes_pass(mitigation):
        each_pair = (pass_cost(model.shape, pos, 2, element=8) for pos in found.prompts)
        return sum(each_pair, Cost()) * seeds
    each = 1 if not task.random else len(lengths)
    return pass_cost(model.shape, max(found.prompts), (1 + each) * seeds, element=8)


def collapse(
    model: Unloaded,
    task: CollapseTask | Task,
    lengths: Sequence[int],
    dtypes: Sequence[str],
    *,
    layers: Sequence[int] | str | None = None,
    seeds: int = 1,
    mitigation: Mitigation | None = None,
) -> Cost:
    """Of one task, in each dtype."""
    kept = model.shape.n_layers + 1 if isinstance(layers, str) else 1 + len(layers or ())
    found = model.asked(task, lengths, pairs=True, mitigation=mitigation)
    total = collapse_cost(model.shape, found, dtypes, layers=kept, seeds=seeds)
    if layers is not None:
        total += pass_cost(model.shape, max(found.prompts), 2, element=8)
    return total


def behaviour(
    model: Unloaded,
    task: Task,
    lengths: Sequence[int],
    *,
    seeds: int = 1,
    mitigation: Mitigation | None = None,
    elicitation: str | None = None,
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool = False,
    samples: int = 1,
    max_new_tokens: int | None = None,
    probability: bool = True,
) -> Cost:
    """Of one task, asked at every length and seed. Answers go on to the limit of `behaviour`, but for a model that was
    trained on the task, and after a few-shot prompt, where they end with their line."""
    how = model.elicitation(task, elicitation, chat)
    found = model.asked(task, lengths, mitigation=mitigation, elicitation=how, system=system, thinking=thinking)
    every = PromptTokens(found.prompts * seeds, found.after, found.answer, found.hooked)
    reasons = thinking or str(getattr(task, "mode", "none")).startswith("cot")
    return behaviour_cost(
        model.shape,
        every,
        samples=samples,
        max_new_tokens=max_new_tokens or found.answer + spare(reasons, how == FEW_SHOT),
        probability=probability,
        goes_on=reasons or not (how == FEW_SHOT or model.trained_on(task)),
    )


def counting(
    model: Unloaded, task: Task, lengths: Sequence[int], dtypes: Sequence[str], mitigation: Mitigation | None = None
) -> Cost:
    """A curve, and the answers at every count in each dtype."""
    answers = behaviour(model, task, lengths, mitigation=mitigation, probability=False)
    return collapse(model, task, lengths, dtypes, mitigation=mitigation) + answers * len(dtypes)


def study(
    model: Unloaded,
    task: Task,
    compared: Sequence[Mitigation],
    lengths: Sequence[int],
    *,
    seeds: int,
    dtypes: Sequence[str],
    closely: int,
    elicitation: str | None = None,
    chat: bool | None = None,
) -> Cost:
    """Answers, distances, and sensitivity and its bound at some of the lengths: without, and with each mitigation."""
    total = Cost()
    near = sorted(lengths)[-1:] * min(closely, len(lengths))
    for one in (None, *compared):
        found = model.asked(task, lengths, mitigation=one, chat=False)
        total += behaviour(model, task, lengths, seeds=seeds, mitigation=one, elicitation=elicitation, chat=chat)
        total += collapse_cost(model.shape, found, dtypes or ("float64",), seeds=seeds)
        close = model.asked(task, near, mitigation=one, chat=False).prompts if near else ()
        for pos in close:
            bound = path_sum_cost(model.shape, pos, _STUDY_BOUND)
            total += (sensitivity_cost(model.shape, pos, ("full",), max_memory=model.limit) + bound) * seeds
    return total


def windows(model: Unloaded, task: Task, lengths: Sequence[int], sizes: Sequence[int] | None, seeds: int) -> Cost:
    """Answers and distances, in float64, under every window, each prompt in a pass of its own."""
    found = model.asked(task, lengths)
    hooked = PromptTokens(found.prompts * seeds, found.after, found.answer, hooked=True)
    one = behaviour_cost(model.shape, hooked) + collapse_cost(model.shape, hooked, ("float64",))
    return one * (1 + (len(sizes) if sizes else _WINDOWS))


def ablation(model: Unloaded, task: Task, length: int, parts: int | None, what: str, top: int) -> Cost:
    """Every part taken out, one at a time."""
    shape = model.shape
    known = {"heads": shape.n_layers * shape.n_heads, "layers": 2 * shape.n_layers, "edges": top}
    count = known.get(what, top) if parts is None else parts
    return pass_cost(shape, max(model.asked(task, [length]).prompts), _ABLATED * (1 + count))


def retrieval(
    model: Unloaded, records: str, length: int, positions: int, seeds: int, linearisation: str, method: str
) -> Cost:
    """An answer and a profile at every position and seed."""
    task = RetrieveTask(records=records)
    pos = max(model.asked(task, [length]).prompts)
    profile = sensitivity_cost(model.shape, pos, (linearisation,), method=method, max_memory=model.limit)
    return (profile + pass_cost(model.shape, pos, 4)) * (positions * seeds)


def chain_of_thought(
    model: Unloaded, task: Task, length: int, names: Sequence[str], method: str, tokens: int, wrapped: Mapping[str, Any]
) -> Cost:
    """The model's own reasoning, up to the limit, and the profile of all of it."""
    asked = behaviour(model, task, [length], **wrapped, max_new_tokens=tokens, probability=False)
    pos = max(model.asked(task, [length], **wrapped).prompts) + tokens
    return asked + sensitivity_cost(model.shape, pos, names, method=method, max_memory=model.limit)


def figure(model: Unloaded, maker: str, chosen: dict[str, Any]) -> Cost:
    """Figures 2 to 5."""
    if maker == "figure_5":
        lengths, seeds = list(chosen.get("lengths", range(1, 257))), len(chosen.get("seeds", range(5)))
        dtypes = chosen.get("dtypes", ("float32", "bfloat16"))
        panels: list[Any] = [tasks.task(name, CollapseTask) for name in tasks.FIGURE_5]
        parts = (collapse(model, one, lengths, dtypes, seeds=seeds if one.random else 1) for one in panels)
        return sum(parts, Cost())
    if maker == "figure_2":
        known, lengths = figure2.asked_tasks(), list(chosen.get("lengths", figure2.LENGTHS))
    else:
        names = {name: chosen[name] for name in ("seeds", "panels", "mode", "examples", "tidy") if name in chosen}
        known, lengths = figure3.asked_tasks(**names), list(chosen.get("lengths", figure3.LENGTHS))
    limit = chosen.get("max_new_tokens")
    asked = (
        behaviour(model, task, lengths, seeds=len(seeds), max_new_tokens=limit, probability=False)
        for task, seeds in known.items()
    )
    return sum(asked, Cost())


def reproduction(model: Unloaded, parts: Mapping[str, Mapping[str, Any]]) -> Cost:
    """Of these parts with their arguments; of those that need no model nothing."""
    return sum((_reproduced(model, name, asked) for name, asked in parts.items()), Cost())


def _reproduced(model: Unloaded, part: str, asked: Mapping[str, Any]) -> Cost:
    lengths, seeds = parse_lengths(asked.get("lengths", "1")), range(asked.get("seeds", 1))
    ones, drawn = tasks.task("figure-5a", CollapseTask), AppendixTask("copy-last", uniform=True)
    if part in ("figure-2", "figure-3", "figure-5"):
        chosen = {**asked, "lengths": lengths, "seeds": seeds}
        return figure(model, part.replace("-", "_"), chosen)
    if part == "answer-only":
        known = [AppendixTask(name, mode="answer-only") for name in figure3.TASKS]
        counts = {one: len(seeds) if one.random else 1 for one in known}
        each = (behaviour(model, one, lengths, seeds=count, probability=False) for one, count in counts.items())
        return sum(each, Cost())
    if part == "attention":
        return variation(model, ones, lengths, 1)
    if part == "layers":
        return collapse(model, ones, lengths, asked["dtypes"], layers="all")
    if part == "over-squashing":
        (pos,) = model.asked(drawn, [asked["length"]]).prompts
        bound = path_sum_cost(model.shape, pos, (CERTIFIED, PRINTED, EQUATION_4))
        return (sensitivity_cost(model.shape, pos, max_memory=model.limit) + bound) * len(seeds)
    if part == "retrieval":
        places = asked["records"]
        return retrieval(model, "words", places, places, len(seeds), "full", "auto")
    if part == "counting":
        return counting(model, tasks.task("count-ones"), lengths, asked["dtypes"])
    if part == "remedies":
        return study(
            model, drawn, [Separator(every=3), Hint()], lengths, seeds=len(seeds), dtypes=asked["dtypes"], closely=0
        )
    return Cost()


def _form(task: str | None) -> Task:
    return tasks.task(task or "copy-last")
