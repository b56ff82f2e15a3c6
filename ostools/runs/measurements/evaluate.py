"""`ost.evaluate` in a sweep: what the model answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.measure import Evaluation, evaluate
from ostools.measure.answers.answers import answers_bytes
from ostools.measure.answers.evaluate import summarise
from ostools.measure.elicitation import Elicitation
from ostools.measure.passes.batches import LongestPrompt
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows


class EvaluationOptions(Options):
    name: Literal["evaluate"] = "evaluate"
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    samples: int = Field(1, ge=1, le=10_000)
    elicitation: Elicitation | None = None
    max_new_tokens: int = Field(64, ge=1, le=1_000_000)
    """Where an answer is cut: one limit for all lengths, as a row may not depend on which others stand beside it.

    The paper's answer line takes some 15 tokens, a preamble before it some 20 more. Reasoning needs more: ask for it.
    """

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluationOptions:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"at temperature 0 all {self.samples} samples would be the same; give a temperature, such as 1"
            )
        return self

    @property
    def draws(self) -> Literal["by sample"] | None:
        return "by sample" if self.temperature > 0 else None


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    result = evaluate(
        model, cell.task, lengths=cell.lengths, seeds=[cell.seed], mitigation=cell.mitigated, **cell.arguments
    )
    return result.frame, result.provenance


def _read(rows: Frame, provenance: Provenance) -> Evaluation:
    try:
        random = tasks.task(str(rows["task"].iloc[0])).random
    except InputError:  # of a distribution that is not installed here
        random = rows["seed"].nunique() > 1
    sampled = float(provenance.parameters["temperature"]) > 0
    return Evaluation(rows, provenance, summarise(rows, random=random, sampled=sampled))


def _memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    options = cell.arguments
    most, samples = options["max_new_tokens"], options["samples"]
    return answers_bytes(shape, longest, most, lengths=len(cell.lengths), per_length=samples)


EVALUATION = Measurement(EvaluationOptions, _memory, _measure, _read)
