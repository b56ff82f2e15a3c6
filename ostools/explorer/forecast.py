"""How long a question is forecast to take on this machine: the costs of its calls, counted from shapes."""

from __future__ import annotations

from transformer_lens.model_bridge import TransformerBridge

import mitigations
from ostools.explorer.question import Question
from ostools.explorer.recipe import Step, steps
from ostools.measure.collapse.cost import collapse_cost
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, PromptTokens, machine, pass_cost
from ostools.measure.paths.cost import path_sum_cost
from ostools.models import encode
from ostools.models.shape import Shape


def seconds(model: TransformerBridge, question: Question) -> float:
    """A forecast, not a measurement. Of a second model it knows no more than of the first."""
    shape = Shape.of(model)
    texts = {"prompt": question.prompt, "other": question.other or question.prompt}
    if (given := question.mitigation) is not None:
        texts["words"] = mitigations.rewrite(given, question.prompt)
    pos = {name: len(encode(model, text).ids) for name, text in texts.items()}
    total = sum((_cost(shape, pos, step, question) for step in steps(question)), Cost())
    return total.seconds(machine(shape))


def _cost(shape: Shape, tokens: dict[str, int], step: Step, question: Question) -> Cost:
    pos = next((tokens[name] for name in step.takes if name in tokens), tokens["prompt"])
    if step.function == "sensitivity":
        options = {"method": step.options.get("method", "auto")}
        return sensitivity_cost(shape, pos, step.options.get("linearisations", ("full", "frozen")), **options)
    if step.function == "path_sum":
        variants = step.options["variants"]
        return path_sum_cost(shape, pos, (variants,) if isinstance(variants, str) else variants)
    if step.function == "flow":
        return path_sum_cost(shape, pos, ("second-moment",))
    if step.function == "collapse":
        return collapse_cost(shape, PromptTokens(tuple(pos + n for n in step.options["lengths"])), question.dtypes)
    return pass_cost(shape, pos, 16) if "model" in step.takes and step.function != "models.encode" else Cost()
