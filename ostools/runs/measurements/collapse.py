"""`ost.collapse` in a sweep: the distance between the representations of n and n + 1 items."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure import collapse
from ostools.measure.collapse.distances import collapse_bytes
from ostools.measure.collapse.result import as_rows, from_rows
from ostools.measure.passes.batches import LongestPrompt
from ostools.models.shape import Shape
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows, listed


class CollapseOptions(Options):
    name: Literal["collapse"] = "collapse"
    bos: bool = True
    layers: Literal["all"] | Annotated[tuple[int, ...], BeforeValidator(listed), Field(min_length=1)] | None = None
    """After which blocks v^(l) is compared too."""


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    result = collapse(
        model,
        cell.task,
        lengths=cell.lengths,
        dtypes=[cell.dtype],
        seeds=[cell.seed],
        mitigation=cell.mitigated,
        **cell.arguments,
    )
    return as_rows(result), result.provenance


def _memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    layers = cell.arguments["layers"]
    layer_count = shape.n_layers + 1 if layers == "all" else 1 + len(layers or ())
    return collapse_bytes(shape, longest.tokens, len(cell.lengths), [cell.dtype], layers=layer_count)


COLLAPSE = Measurement(CollapseOptions, _memory, _measure, from_rows, pairs=True, casts=True)
