"""What a cell of a sweep measures: one function a measurement, from a loaded model to a tidy table.

Every function gives the table and the provenance of its numbers; rows carry their length.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import mitigations
from mitigations import Mitigation
from mitigations.named import NONE
from ostools import tasks
from ostools.measure import behaviour, collapse, path_sum, sensitivity
from ostools.measure.answers.acted import Acted
from ostools.measure.collapse.rows import as_rows
from ostools.measure.posed import Posed, pose
from ostools.results import Provenance, Result
from ostools.runs.asked.cells import Cell

Measured: TypeAlias = tuple[pd.DataFrame, Provenance]


def measure(model: TransformerBridge, cell: Cell) -> Measured:
    """The rows of a cell, with the cell's own columns in front. Raises what the measurement refuses."""
    table, provenance = _MEASUREMENTS[cell.measurement](model, cell, json.loads(cell.options))
    rows = table.drop(columns=[name for name in cell.columns if name in table])
    for index, (name, value) in enumerate(cell.columns.items()):
        rows.insert(index, name, value)
    return rows, provenance


def _behaviour(model: TransformerBridge, cell: Cell, options: dict[str, Any]) -> Measured:
    found = behaviour(
        model, cell.task, lengths=cell.lengths, seeds=[cell.seed], mitigation=_mitigation(cell), **options
    )
    return found.frame, found.provenance


def _collapse(model: TransformerBridge, cell: Cell, options: dict[str, Any]) -> Measured:
    found = collapse(
        model,
        cell.task,
        lengths=cell.lengths,
        dtypes=[cell.dtype],
        seeds=[cell.seed],
        mitigation=_mitigation(cell),
        **options,
    )
    return as_rows(found), found.provenance


def _sensitivity(model: TransformerBridge, cell: Cell, options: dict[str, Any]) -> Measured:
    return _each_question(model, cell, lambda posed: sensitivity(model, posed.prompt, seed=cell.seed, **options))


def _path_sum(model: TransformerBridge, cell: Cell, options: dict[str, Any]) -> Measured:
    return _each_question(model, cell, lambda posed: path_sum(model, posed.prompt, **options))


def _each_question(model: TransformerBridge, cell: Cell, work: Callable[[Posed], Result]) -> Measured:
    """One result a length, under the mitigation; `status` says whether it changed the question's text or a logit."""
    given, form = _mitigation(cell), tasks.task(cell.task)
    acted = Acted(model, given)
    tables, last = [], None
    for length in cell.lengths:
        posed = pose(model, form, length, seed=cell.seed, mitigation=given)
        with mitigations.running(model, given):
            last = work(posed)
        tables.append(last.frame.assign(length=length, status=acted.status(posed)[0]))
    if last is None:
        raise RuntimeError("a cell without lengths was planned")
    return pd.concat(tables, ignore_index=True), last.provenance


def _mitigation(cell: Cell) -> Mitigation | None:
    return None if cell.mitigation == NONE else mitigations.mitigation(cell.mitigation)


_MEASUREMENTS: dict[str, Callable[[TransformerBridge, Cell, dict[str, Any]], Measured]] = {
    "behaviour": _behaviour,
    "collapse": _collapse,
    "sensitivity": _sensitivity,
    "path-sum": _path_sum,
}
