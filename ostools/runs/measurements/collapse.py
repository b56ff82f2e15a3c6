"""`ost.collapse` in a sweep: the distance between the representations of n and n + 1 items."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import collapse
from ostools.measure.collapse.rows import as_rows, from_rows
from ostools.measure.passes.precisions import PRECISIONS, Precision
from ostools.models.shape import Shape
from ostools.runs.measurements.counts import BLOCK, QUESTION, Count, PromptTokens, one_pass, pass_bytes
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows, listed

_VIEW = 4000  # small operations of a view of a block's modules


class CollapseOptions(Options):
    name: Literal["collapse"] = "collapse"
    bos: bool = True
    layers: Literal["all"] | Annotated[tuple[int, ...], BeforeValidator(listed), Field(min_length=1)] | None = None
    """After which blocks v^(l) is compared too."""


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    found = collapse(
        model,
        cell.task,
        lengths=cell.lengths,
        dtypes=[cell.dtype],
        seeds=[cell.seed],
        variation=False,
        mitigation=cell.mitigated,
        **cell.arguments,
    )
    return as_rows(found), found.provenance


def _count(shape: Shape, cell: Cell, tokens: PromptTokens, weights: int) -> Count:
    """float64 and the precision: the longest prompt in one pass, the others as branches off it; by a loop under hooks."""
    precision = Precision.named(cell.dtype)
    trunk, count = max(tokens.prompts), len(tokens.prompts)
    branches = (tokens.after + 2) * 2 * count
    work = one_pass(shape, 1, trunk) + branches * one_pass(shape, 1, trunk) / trunk
    passes = 2 + branches // 192
    if tokens.hooked:
        work, passes = sum(2 * one_pass(shape, 1, pos) for pos in tokens.prompts), 2 * count
    work += 2 * one_pass(shape, 1, trunk)  # prompts in passes of their own, to check it; distances
    held = weights * shape.element + shape.view_bytes(8) + (shape.view_bytes(4) if _runs_a_view(precision) else 0)
    rows = min((1 << 22) // max(shape.d_vocab, 1) + 1, 2 * count)
    pairs = 12 * 8 * max(rows * shape.d_vocab, min(2 * count, (1 << 22) // shape.d_model) * shape.d_model)
    layers = cell.arguments["layers"]
    kept = shape.n_layers + 1 if layers == "all" else 1 + len(layers or ())
    pairs += 2 * 8 * 2 * count * (kept - 1) * shape.d_model  # last tokens alone, in float64 and in the precision
    memory = held + pass_bytes(shape, 1, trunk, 1, 8) + pairs
    operations = 1.0 * (2 * passes + 2) * shape.n_layers * BLOCK + count * QUESTION
    operations += (1 + _runs_a_view(precision)) * shape.n_layers * _VIEW
    return Count(memory, 0.0 if precision == PRECISIONS["float64"] else work, work, operations)


def _runs_a_view(precision: Precision) -> bool:
    """Whether the precision runs on a view beside the float64 one; else the model itself does."""
    if precision.part is not None:
        return precision.part == "weights"
    return precision not in (PRECISIONS["float32"], PRECISIONS["float64"])


COLLAPSE = Measurement(CollapseOptions, _count, _measure, from_rows, pairs=True, casts=True)
