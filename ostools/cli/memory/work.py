"""Memory of the largest step of each command, by its arguments, before a model is loaded.

What each measurement holds is counted beside it (`ostools.measure`) and in `largest`; here it is chosen by the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ostools.cli.commands import Command
from ostools.cli.prompts import Prompts, rewritten
from ostools.cli.signature import UNKNOWN, signature_of

if TYPE_CHECKING:
    from ostools.runs.forecast import Unloaded


@dataclass(frozen=True)
class Given:
    """Arguments of a command with the defaults of its function."""

    command: Command
    arguments: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name in self.arguments:
            return self.arguments[name]
        default = next(part.default for part in signature_of(self.command.function).parameters if part.name == name)
        return None if default is UNKNOWN else default

    def some(self, *names: str) -> dict[str, Any]:
        """Arguments that were given, of these."""
        return {name: self.arguments[name] for name in names if name in self.arguments}


def memory_of(command: Command, arguments: Mapping[str, Any]) -> Callable[[Unloaded], int]:
    """Bytes that the largest step of a command holds beside a model, as a function of the model."""
    given = Given(command, arguments)
    prompts = arguments.get("prompt", arguments.get("prompts"))
    name = command.function.partition(":")[2]
    if isinstance(prompts, Prompts) and name in _OF_A_TEXT:
        return lambda model: _longest(model, prompts, given, _OF_A_TEXT[name])
    if name.startswith("figure_"):
        from ostools.cli.memory import largest

        return lambda model: largest.figure(model, name, given.arguments)
    return lambda model: _OF_A_TASK[name](model, given)


def _longest(model: Unloaded, prompts: Prompts, given: Given, held: Callable[[Unloaded, int, Given], int]) -> int:
    """The longest prompt, as a mitigation rewrites it; that it acts is seen in a pass with its patterns."""
    from mitigations import optional
    from ostools.measure.mitigated import acting_bytes

    mitigation = given.arguments.get("mitigation")
    wrapped = replace(model, chat=prompts.wrapped or {})
    pos = max(map(wrapped.pos, rewritten(prompts, mitigation)))
    return max(acting_bytes(model.shape, pos, optional(mitigation)), held(model, pos, given))


def _rows(model: Unloaded, pos: int, given: Given) -> int:
    """Rows of Jacobians."""
    from ostools.cli.memory import largest

    names = given.some("linearisations", "linearisation").values()
    linearisations = next(iter(names), ("full", "frozen"))
    linearisations = (linearisations,) if isinstance(linearisations, str) else linearisations
    how = given.some("layers", "method", "cotangents", "position")
    return largest.sensitivity(model, pos, linearisations, one_row="logit" in given.arguments, **how)


def _untrained(model: Unloaded, pos: int, given: Given) -> int:
    """Rows, and an untrained model beside the model."""
    return _rows(model, pos, given) + model.shape.element * model.shape.parameters


def _paths(model: Unloaded, pos: int, given: Given) -> int:
    from ostools.measure.bounds.memory import bounds_bytes
    from ostools.measure.bounds.variants import checked_variants

    return bounds_bytes(model.shape, pos, checked_variants(given["variants"]))


def _patterns(model: Unloaded, pos: int, given: Given) -> int:
    """A pass whose patterns are kept."""
    from ostools.measure.passes.memory import patterns_bytes

    return patterns_bytes(model.shape, pos)


def _without(model: Unloaded, pos: int, given: Given) -> int:
    """Profiles, and prompts without a token."""
    from ostools.measure.faithfulness.without import cases_bytes
    from ostools.measure.passes.output import read_up_to

    beside = max(_rows(model, pos, given), _paths(model, pos, given) if given["variants"] else 0)
    return max(beside, cases_bytes(model.shape, read_up_to(given["position"], pos)))


_OF_A_TEXT: dict[str, Callable[[Unloaded, int, Given], int]] = {
    "sensitivity": _rows,
    "profile": _rows,
    "attribution": _patterns,
    "untrained_baselines": _untrained,
    "bounds": _paths,
    "spectra": _patterns,
    "attention": _patterns,
    "difference": _patterns,
    "head_scores": _patterns,
    "faithfulness": _without,
}


def _asked(given: Given) -> Any:
    from ostools import tasks

    return tasks.task(given["task"])


def _of_task(model: Unloaded, given: Given) -> int:
    """Patterns of a task's longest prompt."""
    lengths: Any = given.arguments.get("lengths") or (given.arguments.get("length"),)
    return _patterns(model, model.longest(_asked(given), list(lengths)).tokens, given)


def _answers(model: Unloaded, given: Given) -> int:
    from mitigations import optional
    from ostools.cli.memory import largest

    how = given.some("elicitation", "chat", "system", "thinking", "max_new_tokens")
    each = len(given["seeds"]) * given["samples"]
    acting = optional(given["mitigation"])
    return largest.answers(model, _asked(given), list(given["lengths"]), each=each, mitigation=acting, **how)


def _pairs(model: Unloaded, given: Given) -> int:
    from mitigations import optional
    from ostools.cli.checks import pairs_of
    from ostools.cli.memory import largest

    prompts = given["prompt"]
    prompt = None if prompts is None else prompts.given[0]
    task = pairs_of(given["task"], prompt, given["item"], given["items"])
    how = {"layers": given["layers"], "mitigation": optional(given["mitigation"])}
    return largest.pairs(model, task, list(given["lengths"]), given["dtypes"], **how)


def _repeats(model: Unloaded, given: Given) -> int:
    from ostools import tasks
    from ostools.cli.memory import largest

    untrained = model.shape.element * model.shape.parameters if given["untrained"] else 0
    known = [tasks.task(name, tasks.CollapseTask) for name in given["prompts"]]
    lengths = list(given["lengths"])
    return untrained + max(largest.pairs(model, task, lengths, given["dtypes"]) for task in known)


def _variation(model: Unloaded, given: Given) -> int:
    from ostools import tasks
    from ostools.cli.memory import largest

    return largest.variation(model, tasks.repeating(given["task"]), list(given["lengths"]))


def _counting(model: Unloaded, given: Given) -> int:
    from mitigations import optional
    from ostools.cli.memory import largest

    task, lengths, acting = _asked(given), list(given["lengths"]), optional(given["mitigation"])
    curve = largest.pairs(model, task, lengths, given["dtypes"], mitigation=acting)
    return max(curve, largest.answers(model, task, lengths, mitigation=acting))


def _retrieval(model: Unloaded, given: Given) -> int:
    from ostools.tasks.retrieve import RetrieveTask

    return _rows(model, model.longest(RetrieveTask(records=given["records"]), [given["length"]]).tokens, given)


def _reasoning(model: Unloaded, given: Given) -> int:
    from ostools.cli.memory import largest

    task, lengths, most = _asked(given), [given["length"]], given["max_new_tokens"]
    wrapped = given.some("chat", "system", "thinking")
    answered = largest.answers(model, task, lengths, **wrapped, max_new_tokens=most)
    return max(answered, _rows(model, model.longest(task, lengths, **wrapped).tokens + most, given))


def _probes(model: Unloaded, given: Given, *, whole: bool = False) -> int:
    from ostools.measure.probes.failure_stage import failure_stage_bytes
    from ostools.measure.probes.probe import probes_bytes, seeds_asked

    task, lengths = _asked(given), list(given["lengths"])
    random = bool(given.some("random_weights").get("random_weights", True))
    held = failure_stage_bytes if whole else probes_bytes
    how: dict[str, Any] = {"lengths": len(lengths), "seeds": len(seeds_asked(task, given["seeds"])), "random": random}
    return held(model.shape, model.longest(task, lengths), given["dtypes"], **how)


def _study(model: Unloaded, given: Given) -> int:
    from mitigations import mitigation
    from ostools.cli.memory import largest

    how = {**given.some("elicitation", "chat"), "closely": given["sensitivity_lengths"]}
    compared = [mitigation(name) for name in given["mitigations"]]
    lengths, seeds = list(given["lengths"]), len(given["seeds"])
    return largest.study(model, _asked(given), compared, lengths, given["dtypes"], seeds=seeds, **how)


def _windows(model: Unloaded, given: Given) -> int:
    from ostools.cli.memory import largest

    task, lengths = _asked(given), list(given["lengths"])
    answers = largest.answers(model, task, lengths, each=len(given["seeds"]))
    return max(answers, largest.pairs(model, task, lengths, ("float64",)))


def _corpus(model: Unloaded, given: Given) -> int:
    from mitigations import optional
    from ostools.runs.corpus.measures import Measure

    method = (given["linearisation"], given["method"], given["dtypes"])
    what = Measure.from_options(given["measure"], *method, model.shape.d_model, optional(given["mitigation"]))
    return max(what.memory(model.shape, length, model.limit) for length in given["lengths"])


_OF_A_TASK: dict[str, Callable[[Unloaded, Given], int]] = {
    "attention": _of_task,
    "difference": _of_task,
    "ablation": _of_task,
    "evaluate": _answers,
    "collapse": _pairs,
    "repeats": _repeats,
    "attention_variation": _variation,
    "counting": _counting,
    "retrieval": _retrieval,
    "chain_of_thought": _reasoning,
    "probe": _probes,
    "probe_intervention": _probes,
    "failure_stage": lambda model, given: _probes(model, given, whole=True),
    "study": _study,
    "windows": _windows,
    "corpus": _corpus,
}
