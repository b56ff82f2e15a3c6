"""`ost.sensitivity` of every question in a sweep: d y_n / d v_i."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.names import checked_names
from ostools.measure import Sensitivity, sensitivity
from ostools.measure.jacobian.linearisations import LINEARISATIONS
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, PromptTokens
from ostools.models.shape import Shape
from ostools.runs.measurements.questions import each_question
from ostools.runs.measurements.record import Cell, Measurement, Names, Options, Rows


def _linearisations(names: tuple[str, ...]) -> tuple[str, ...]:
    return checked_names("linearisation", names, LINEARISATIONS)


class SensitivityOptions(Options):
    name: Literal["sensitivity"] = "sensitivity"
    linearisations: Annotated[Names, AfterValidator(_linearisations)] = ("full", "frozen")
    method: Literal["exact", "estimate"] = "exact"
    """Never "auto": it looks at the memory that is free, and one key would stand for two kinds of numbers."""
    relative_error: float = Field(0.1, gt=0, allow_inf_nan=False)
    confidence: float = Field(0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _settings_are_used(self) -> SensitivityOptions:
        unused = sorted({"relative_error", "confidence"} & self.model_fields_set)
        if unused and self.method == "exact":
            raise ValueError(f"exact norms have no {unused[0]}; leave it out, or give method: estimate")
        return self

    @property
    def draws(self) -> Literal["by seed"] | None:
        return "by seed" if self.method == "estimate" else None


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    options = cell.arguments
    return each_question(model, cell, lambda prompt: sensitivity(model, prompt, seed=cell.seed, **options))


def _count(shape: Shape, cell: Cell, tokens: PromptTokens) -> Cost:
    names, method = cell.arguments["linearisations"], cell.arguments["method"]
    return sum((sensitivity_cost(shape, pos, names, method=method) for pos in tokens.prompts), Cost())


SENSITIVITY = Measurement(SensitivityOptions, _count, _measure, Sensitivity)
