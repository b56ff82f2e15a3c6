"""What a sweep can measure: `MEASUREMENTS`, a record each, in a file of its own; `record` says what one is.

A new one is a file with its record, its place in `MEASUREMENTS`, and its section in
`ostools.reporting.sweep.sections.SECTIONS`.
"""

from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.runs.measurements.bounds import BOUNDS
from ostools.runs.measurements.collapse import COLLAPSE
from ostools.runs.measurements.evaluate import EVALUATION
from ostools.runs.measurements.probes import DECODABLE, FAILURE_STAGE, INTERVENTION
from ostools.runs.measurements.record import Cell, Measurement, Rows
from ostools.runs.measurements.sensitivity import SENSITIVITY

MEASUREMENTS: dict[str, Measurement[Any]] = {
    measurement.name: measurement
    for measurement in (EVALUATION, FAILURE_STAGE, DECODABLE, INTERVENTION, COLLAPSE, SENSITIVITY, BOUNDS)
}


def measure(model: TransformerBridge, cell: Cell) -> Rows:
    """The rows of a cell, with the cell's own columns in front. Raises what the measurement refuses."""
    table, provenance = MEASUREMENTS[cell.measurement].measure(model, cell)
    rows = table.drop(columns=[name for name in cell.columns if name in table])
    for index, (name, value) in enumerate(cell.columns.items()):
        rows.insert(index, name, value)
    return rows, provenance
