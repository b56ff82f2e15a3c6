"""`ost.behaviour` in a sweep: what the model answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.measure import Behaviour, behaviour
from ostools.measure.answers.behaviour import summarise
from ostools.measure.passes.batches import TOKENS, batches
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance
from ostools.runs.measurements.counts import BLOCK, QUESTION, Count, PromptTokens, one_pass, pass_bytes
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows

_DRAWN = 64  # samples of a prompt that batches are made of; more of them take as much more time


class BehaviourOptions(Options):
    name: Literal["behaviour"] = "behaviour"
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    samples: int = Field(1, ge=1, le=10_000)
    max_new_tokens: int = Field(64, ge=1, le=1_000_000)
    """Where an answer is cut: one limit for all lengths, as a row may not depend on which others stand beside it.

    The paper's answer line takes some 15 tokens, a preamble before it some 20 more. Reasoning needs more: ask for it.
    """

    @model_validator(mode="after")
    def _samples_differ(self) -> BehaviourOptions:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"at temperature 0 all {self.samples} samples would be the same; give a temperature, such as 1"
            )
        return self

    @property
    def draws(self) -> Literal["by sample"] | None:
        return "by sample" if self.temperature > 0 else None


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    found = behaviour(
        model, cell.task, lengths=cell.lengths, seeds=[cell.seed], mitigation=cell.mitigated, **cell.arguments
    )
    return found.frame, found.provenance


def _read(rows: Frame, provenance: Provenance) -> Behaviour:
    try:
        random = tasks.task(str(rows["task"].iloc[0])).random
    except InputError:  # of a distribution that is not installed here
        random = rows["seed"].nunique() > 1
    drawn = float(provenance.parameters["temperature"]) > 0
    return Behaviour(rows, provenance, summarise(rows, random=random, drawn=drawn))


def _count(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int) -> Count:
    """The prompts of a batch, then steps through a cache; the right answers' probability in one more pass."""
    options = cell.arguments
    asked = int(options["samples"])
    samples = min(asked, _DRAWN)
    padded = shape.element >= 4 and not tokens.hooked
    groups = batches([pos for pos in tokens.prompts for _ in range(samples)], padded, TOKENS)
    # Where an answer ends is not known before: behind the right one's tokens, if all is well.
    steps = min(int(options["max_new_tokens"]), tokens.answer + 2)
    memory, single, operations = 0, 0.0, float(QUESTION * len(tokens.prompts) * samples)
    for group in groups:
        rows, longest = len(group), max(tokens.prompts[one // samples] for one in group)
        text = longest + int(options["max_new_tokens"])
        memory = max(memory, pass_bytes(shape, rows, text, tokens.answer + 2, shape.element))
        single += 2 * one_pass(shape, rows, longest + steps) + steps * _step(shape, rows)
        operations += (2 + steps) * shape.n_layers * BLOCK
    if tokens.hooked:
        single += sum(2 * one_pass(shape, 1, pos) for pos in tokens.prompts)
        operations += 2 * len(tokens.prompts) * shape.n_layers * BLOCK
    more = asked / samples
    return Count(weights * shape.element + memory, single=single * more, operations=operations * more)


def _step(shape: Shape, rows: int) -> float:
    """One token a row: reading the weights from memory takes as long as some ten products with each."""
    return 2.0 * shape.parameters * max(10, rows)


BEHAVIOUR = Measurement(BehaviourOptions, _count, _measure, _read)
