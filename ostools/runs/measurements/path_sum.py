"""`ost.path_sum` of every question in a sweep: Theorem 5.1's bounds and predictions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import PathSum, path_sum
from ostools.measure.jacobian.memory import path_sum_bytes
from ostools.measure.paths.variants import checked_variants, variant_named
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


class PathSumOptions(Options):
    name: Literal["path-sum"] = "path-sum"
    variants: Annotated[Names, AfterValidator(checked_variants)] = ("local",)


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    options = cell.arguments
    return each_question(model, cell, lambda prompt: path_sum(model, prompt, **options))


def _count(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int) -> Count:
    """A block read in float64 at a time, and the norms that each variant takes of it."""
    work, held = in_full(shape, weights)
    variants = [variant_named(name) for name in cell.arguments["variants"]]
    paired = any(variant.name.startswith(("heads", "edge", "windowed")) for variant in variants)
    live = any(variant.linearisation == "full" for variant in variants)
    predicted = [variant for variant in variants if variant.kind == "predicted"]
    pos = max(tokens.prompts)
    inner = 3 * shape.d_model * shape.d_mlp * 8
    memory = path_sum_bytes(work, pos, heads=paired or bool(predicted), live=live)
    memory += 3 * 8 * shape.block_parameters + 3 * max(0, inner - (1 << 26))
    small = min(shape.d_model, shape.n_key_value_heads * shape.d_head)
    double, operations = 0.0, 0.0
    for pos in tokens.prompts:
        each = 4 * shape.d_model**2 * shape.d_mlp + (2 + EIGENVALUES) * shape.d_model**3
        block = pos * each * (len(variants) > len(predicted)) * (2 if live else 1)
        block += paired * pos**2 / 2 * (2 + EIGENVALUES) * small**3
        block += len(predicted) * (shape.n_heads * pos**3 + 2 * shape.d_mlp**2 * (shape.d_model + pos))
        double += shape.n_layers * block + 4 * one_pass(work, 1, pos)
        operations += 4 * shape.n_layers * BLOCK + QUESTION
    return Count(held + memory, double=double, operations=operations)


PATH_SUM = Measurement(PathSumOptions, _count, _measure, PathSum)
