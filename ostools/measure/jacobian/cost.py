"""What measuring sensitivity takes: rows through every block, their norms, and the checks of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ostools.measure.jacobian.estimate import choose_method, most_rows
from ostools.measure.jacobian.linearisations import HELD
from ostools.measure.jacobian.memory import fits, plan
from ostools.measure.passes.cost import BLOCK, EIGENVALUES, QUESTION, Cost, in_full, one_pass, work_in
from ostools.models.shape import Shape

_CHECKS = 20  # passes over a prompt that finite differences and frozen passes take, of each linearisation
_READ = 6  # times that every weight is cast for those, and to linearise each block
_WITHOUT_LIMIT = 1 << 62


def sensitivity_cost(
    shape: Shape,
    pos: int,
    linearisations: Sequence[str] = ("full", "frozen"),
    *,
    layers: int = 1,
    method: str = "auto",
    max_memory: int | None = None,
) -> Cost:
    """Of a prompt of `pos` tokens, at `layers` residual streams, within `max_memory` bytes beside the model.

    Raises `InsufficientMemoryError` where not even the smallest steps fit into `max_memory`.
    """
    work, d_model = in_full(shape), shape.d_model
    limit = _WITHOUT_LIMIT if max_memory is None else max_memory
    total = Cost(operations=float(QUESTION))
    for name in linearisations:
        live, chosen = not HELD[name].attention, method
        if method == "auto":
            there = fits(work, pos, layers, live=live, max_memory=limit)
            chosen = choose_method(d_model, exact_fits=there).method
        kept = None if chosen == "exact" else most_rows(d_model)
        way = plan(work, pos, layers, live=live, max_memory=limit, rows=kept)
        rows = d_model if chosen == "exact" else 2 * most_rows(d_model)
        products = rows * one_pass(work, 1, pos) * (1.5 if live else 1.0)
        products += pos * layers * (2 + EIGENVALUES) * d_model**3 if chosen == "exact" else 0
        products += _CHECKS * one_pass(work, 1, pos)
        operations = (-(-rows // way.chunk) + _CHECKS) * shape.n_layers * BLOCK
        groups = 1 if way.rows_on_disk is None else -(-rows // way.rows_on_disk)
        read = (_READ + groups) * shape.n_layers * shape.block_parameters * work.cast
        one = work_in(work.element, products) + Cost(cast=float(read), operations=float(operations))
        total += replace(one, memory=way.peak + (shape.view_bytes(4) if work.cast else 0))
    return total
