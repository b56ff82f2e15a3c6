"""`ost.sensitivity` of every question in a sweep: d y_n / d v_i."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.names import checked_names
from ostools.measure import Sensitivity, sensitivity
from ostools.measure.jacobian.memory import sensitivity_bytes
from ostools.measure.jacobian.norms import COTANGENTS
from ostools.measure.jacobian.routes import LINEARISATIONS
from ostools.measure.passes.batches import LongestPrompt
from ostools.models.shape import Shape
from ostools.runs.measurements.questions import each_question
from ostools.runs.measurements.record import Cell, Measurement, Names, Options, Rows


def _linearisations(names: tuple[str, ...]) -> tuple[str, ...]:
    return checked_names("linearisation", names, LINEARISATIONS)


class SensitivityOptions(Options):
    name: Literal["sensitivity"] = "sensitivity"
    linearisations: Annotated[Names, AfterValidator(_linearisations)] = ("full", "frozen")
    method: Literal["exact", "sketch", "estimate"] = "exact"
    """Never "auto": it looks at the memory that is free, and one key would stand for two kinds of numbers."""
    cotangents: int = Field(COTANGENTS, ge=2)

    @model_validator(mode="after")
    def _cotangents_are_used(self) -> SensitivityOptions:
        if "cotangents" in self.model_fields_set and self.method != "sketch":
            raise ValueError(f"method {self.method} has no cotangents; leave it out, or give method: sketch")
        return self

    @property
    def draws(self) -> Literal["by seed"] | None:
        return None if self.method == "exact" else "by seed"


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    options = cell.arguments
    return each_question(model, cell, lambda prompt: sensitivity(model, prompt, seed=cell.seed, **options))


def _memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    names = cell.arguments["linearisations"]
    how = {name: cell.arguments[name] for name in ("method", "cotangents") if name in cell.arguments}
    return sensitivity_bytes(shape, longest.tokens, names, **how)


SENSITIVITY = Measurement(SensitivityOptions, _memory, _measure, Sensitivity)
