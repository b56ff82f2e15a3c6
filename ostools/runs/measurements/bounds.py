"""`ost.bounds` of every question in a sweep: Theorem 5.1's bounds and the paper's forms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import Bounds, bounds
from ostools.measure.bounds.bounds import bounds_bytes
from ostools.measure.bounds.variants import checked_variants
from ostools.measure.passes.batches import LongestPrompt
from ostools.models.shape import Shape
from ostools.runs.measurements.questions import each_question
from ostools.runs.measurements.record import Cell, Measurement, Names, Options, Rows


class BoundsOptions(Options):
    name: Literal["bounds"] = "bounds"
    variants: Annotated[Names, AfterValidator(checked_variants)] = ("local",)


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    options = cell.arguments
    return each_question(model, cell, lambda prompt: bounds(model, prompt, **options))


def _memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    return bounds_bytes(shape, longest.tokens, cell.arguments["variants"])


BOUNDS = Measurement(BoundsOptions, _memory, _measure, Bounds)
