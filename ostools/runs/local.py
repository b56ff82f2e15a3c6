"""Measures the cells of a sweep in this process, one after the other. What fails is given back in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.errors import InputError
from ostools.models import load_model
from ostools.models.load import resolve_device
from ostools.models.sources import locate
from ostools.models.threads import one_is_enough
from ostools.runs.cells import Cell, checkpoint_hash, code_version
from ostools.runs.executor import Done, Executor, Job, Terms
from ostools.runs.measuring import Measured, measure


class Bench:
    """Holds one model at a time and measures cells with it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._held: tuple[tuple[str, str], TransformerBridge] | None = None

    def measure(self, cell: Cell) -> Measured | str:
        """The rows of a cell, or whatever it, or a plugin in it, raised, in one line."""
        try:
            model = self._model(cell)
            with _threads(model):
                return measure(model, cell)
        except Exception as error:
            return " ".join(f"{type(error).__name__}: {error}".split())

    def _model(self, cell: Cell) -> TransformerBridge:
        if self._held is None or self._held[0] != cell.loads:
            self._held = None  # the last model's memory is free before the next is loaded
            name, dtype = cell.loads
            self._require_same(name)
            self._held = cell.loads, load_model(name, dtype=dtype, device=self.terms.device)
        return self._held[1]

    def _require_same(self, name: str) -> None:
        """The key promises which checkpoint and which code a number comes from."""
        if checkpoint_hash(locate(name, None)) != self.terms.checkpoints[name]:
            raise InputError(
                f"expected the checkpoint of {name!r} that the sweep was planned with, found another one here"
            )
        if code_version() != self.terms.code:
            raise InputError("expected the code and versions that the sweep was planned with, found others here")


class ThisProcess(Executor):
    """The executor of one machine: one cell after the other."""

    def device(self, asked: str) -> str:
        return str(resolve_device(asked))

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Iterator[Done]:
        bench = Bench(terms)
        for job in jobs:
            yield job.wanted, bench.measure(job.wanted.cell)


@contextmanager
def _threads(model: TransformerBridge) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if one_is_enough(model) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
