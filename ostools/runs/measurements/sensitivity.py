"""`ost.sensitivity` of every question in a sweep: d y_n / d v_i."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.names import checked_names
from ostools.measure import Sensitivity, sensitivity
from ostools.measure.jacobian.estimate import most_rows
from ostools.measure.jacobian.linearisations import HELD, LINEARISATIONS
from ostools.measure.jacobian.memory import plan
from ostools.models.shape import Shape
from ostools.runs.measurements.counts import (
    BLOCK,
    EIGENVALUES,
    QUESTION,
    Count,
    PromptTokens,
    in_full,
    one_pass,
)
from ostools.runs.measurements.questions import each_question
from ostools.runs.measurements.record import Cell, Measurement, Names, Options, Rows

_CHECKS = 20  # passes over a prompt that finite differences and frozen passes take, of each linearisation


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


def _count(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int) -> Count:
    """d_model cotangents through every block and the norms of n Jacobians, of each linearisation."""
    work, held = in_full(shape, weights)
    options = cell.arguments
    is_exact = options["method"] == "exact"
    d_model, memory, products, operations = shape.d_model, 0, 0.0, 0.0
    for name in options["linearisations"]:
        live = not HELD[name].attention
        for pos in tokens.prompts:
            kept = None if is_exact else most_rows(d_model)
            way = plan(work, pos, 1, live=live, max_memory=1 << 62, rows=kept)
            memory = max(memory, way.peak)
            rows = d_model if is_exact else 2 * most_rows(d_model)
            through = rows * (one_pass(work, 1, pos) * (1.5 if live else 1.0))
            norms = pos * (2 + EIGENVALUES) * d_model**3 if is_exact else 0
            products += through + norms + _CHECKS * one_pass(work, 1, pos)
            blocks = -(-rows // way.chunk) + _CHECKS
            operations += blocks * shape.n_layers * BLOCK + QUESTION
    single, double = (0.0, products) if work.element == 8 else (products, 0.0)
    return Count(held + memory, single, double, operations)


SENSITIVITY = Measurement(SensitivityOptions, _count, _measure, Sensitivity)
