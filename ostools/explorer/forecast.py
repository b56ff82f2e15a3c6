"""How long a question is forecast to take on this machine: the costs of its calls, counted from shapes."""

from __future__ import annotations

from collections.abc import Mapping

from transformer_lens.model_bridge import TransformerBridge

import mitigations
from ostools.explorer.question import Question
from ostools.explorer.recipe import Step, steps
from ostools.measure.collapse.cost import collapse_cost
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.mitigated import acting_cost
from ostools.measure.passes.cost import Cost, PromptTokens, machine, pass_cost
from ostools.measure.paths.cost import path_sum_cost
from ostools.models import encode
from ostools.models.shape import Shape


def seconds(model: TransformerBridge, question: Question) -> float:
    """Seconds, forecast and not measured. A second model is forecast as the first one is."""
    shape, given = Shape.of(model), question.mitigation
    texts = {"prompt": question.prompt, "other": question.other or question.prompt}
    texts["mitigated"] = question.prompt if given is None else mitigations.rewrite(given, question.prompt)
    pos = {name: len(encode(model, text).ids) for name, text in texts.items()}
    total = sum((_cost(shape, _tokens(pos, step), step, question) for step in steps(question)), Cost())
    return total.seconds(machine(shape))


def _tokens(pos: Mapping[str, int], step: Step) -> int:
    """Of the text that the call reads."""
    read = "mitigated" if "mitigation" in step.options else ""
    return pos[read or next((name for name in (*step.takes, *step.given.values()) if name in pos), "prompt")]


def _cost(shape: Shape, pos: int, step: Step, question: Question) -> Cost:
    acting = acting_cost(shape, pos, question.mitigation if "mitigation" in step.options else None)
    if step.function == "sensitivity":
        options = {"method": step.options.get("method", "auto")}
        found = sensitivity_cost(shape, pos, step.options.get("linearisations", ("full", "frozen")), **options)
    elif step.function == "path_sum":
        variants = step.options["variants"]
        found = path_sum_cost(shape, pos, (variants,) if isinstance(variants, str) else variants)
    elif step.function == "collapse":
        found = collapse_cost(shape, PromptTokens(tuple(pos + n for n in step.options["lengths"])), question.dtypes)
    else:  # of what compares two results there is nothing to run
        found = pass_cost(shape, pos, 16) if "model" in step.takes or "other_model" in step.takes else Cost()
    return found + acting
