"""`ost.path_sum` of every question in a sweep: Theorem 5.1's bounds and the paper's forms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import PathSum, path_sum
from ostools.measure.passes.memory import LongestPrompt
from ostools.measure.paths.memory import path_sum_bytes
from ostools.measure.paths.variants import checked_variants
from ostools.models.shape import Shape
from ostools.runs.measurements.questions import each_question
from ostools.runs.measurements.record import Cell, Measurement, Names, Options, Rows


class PathSumOptions(Options):
    name: Literal["path-sum"] = "path-sum"
    variants: Annotated[Names, AfterValidator(checked_variants)] = ("local",)


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    options = cell.arguments
    return each_question(model, cell, lambda prompt: path_sum(model, prompt, **options))


def _memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    return path_sum_bytes(shape, longest.tokens, cell.arguments["variants"])


PATH_SUM = Measurement(PathSumOptions, _memory, _measure, PathSum)
