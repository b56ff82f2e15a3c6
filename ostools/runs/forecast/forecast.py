"""What a cell of a sweep, or a command, will take, in seconds and bytes, before its model is loaded.

Memory is counted from shapes: the weights, what of them is cast at a time, and the largest pass over them. Time
is counted in products and in small operations, times what this machine does with either, measured once
(`ostools.measure.passes.cost`). Cost: reading a configuration and a tokenizer, once a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from mitigations import Mitigation
from ostools.ground.errors import INTERRUPTS
from ostools.ground.memory import available_memory
from ostools.measure.answers.elicitation import Elicitation
from ostools.measure.passes.cost import Cost, PromptTokens, machine
from ostools.models.describe import read_trained_lengths
from ostools.models.files.checks import check_config
from ostools.models.files.config import quiet, read_config
from ostools.models.files.shards import check_stored, read_shards
from ostools.models.files.sources import Source
from ostools.models.placed.device_map import DISK, SHARE
from ostools.models.shape import Shape
from ostools.runs.asked.cells import to_load
from ostools.runs.forecast.prompts import elicited, prompt_tokens, task_tokens, text_tokens
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.measurements.record import Cell
from ostools.tasks import CollapseTask, Task
from ostools.theory.distances import dtype_named

LIBRARIES = 560 << 20
"""Bytes that a process holds before it has a model: Python, torch, transformers and what they keep."""
_WHOLE = {"F8_E4M3": 1, "F32": 4, "F64": 8}
_LOAD_OPERATIONS, _LAYER_OPERATIONS, _WORD_OPERATIONS, _READ = 60_000, 8_000, 2, 5e8
"""Of loading: small operations of any model, of each layer, of each word of its vocabulary; bytes of weights read, hashed,
copied and checked a second."""


@dataclass(frozen=True)
class Forecast:
    """A forecast, not a measurement. `seconds`: on the machine where it was made, or on its GPU; `memory`: bytes at the peak,
    the libraries and the model among them (on a GPU those of the GPU, and of the model alone); `work`: of them what the
    measurement takes beside the loaded model; `libraries`: what a process holds before it.

    A cell that nothing is known of has no `seconds`, and of `memory` what any cell takes."""

    seconds: float | None
    memory: int
    work: int = 0
    libraries: int = 0

    @property
    def beside_libraries(self) -> int:
        """Of the memory what this process does not hold yet."""
        return self.memory - self.libraries

    @property
    def time(self) -> str:
        """In words."""
        return "for an unknown time" if self.seconds is None else in_time(self.seconds)


def in_time(seconds: float) -> str:
    """About how long, in words."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Unloaded:
    """A model that would be loaded in `dtype` on that kind of device ("cpu", "cuda"), whole or by a device map: its shape, and
    its tokens of prompts. `limit`: bytes that the work may take beside it, where the work can be fitted to that. `chat`: how
    texts are put to it, as `models.encode` takes it.

    Raises `InputError` as loading would."""

    source: Source
    dtype: torch.dtype
    kind: str
    device_map: str | None = None
    limit: int | None = None
    chat: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def shape(self) -> Shape:
        """Weights that may lie on disk are made where they are read, a large table in one piece."""
        mapped = self.device_map is not None
        found = _shape(_stamp(self.source.directory), self.source, self.dtype, self.kind)
        return replace(found, cast=mapped, whole=mapped)

    def pos(self, prompt: str | Sequence[int]) -> int:
        """Tokens of a prompt, given as text or as ids."""
        return text_tokens(prompt, self.source.tokenizer, **self.chat) if isinstance(prompt, str) else len(prompt)

    def asked(
        self,
        form: Task | CollapseTask,
        lengths: Sequence[int],
        *,
        mitigation: Mitigation | None = None,
        pairs: bool = False,
        elicitation: Elicitation | None = None,
        chat: bool | None = None,
        system: str | None = None,
        thinking: bool = False,
    ) -> PromptTokens:
        """Tokens of a task's prompts; `elicitation`: as `behaviour` asks them, None: alone, in a chat where there is a
        template."""
        how: Any = {"mitigation": mitigation, "pairs": pairs, "chat": chat, "system": system, "thinking": thinking}
        return task_tokens(form, self.source.tokenizer, lengths, elicitation=elicitation, **how)

    def elicitation(self, form: Task, elicitation: str | None = None, chat: bool | None = None) -> Elicitation:
        """How `behaviour` would ask it that task."""
        return elicited(form, self.source, elicitation, chat)

    def trained_on(self, form: Task) -> bool:
        """Whether its card lists the task."""
        return form.trained_as in (read_trained_lengths(self.source.directory) or {})

    @property
    def _weights(self) -> _Weights:
        return _weights(_stamp(self.source.directory))

    @property
    def held(self) -> int:
        """Bytes of the loaded weights: none of those on disk, of `auto` what has room."""
        weights = self._weights
        whole = weights.numbers * self.dtype.itemsize
        if self.device_map is None:
            return whole
        free = available_memory(torch.device(self.kind))
        return 0 if self.device_map == DISK else min(whole, int(SHARE * free))

    def forecast(self, cost: Cost) -> Forecast:
        """What loading it and that work take."""
        weights = self._weights
        shape, on_cpu = self.shape, self.kind == "cpu"
        libraries = LIBRARIES if on_cpu else 0
        # A weight is read through a mapping of the file, whose pages count as the process's own until they are dropped.
        largest = weights.largest if self.device_map is None and on_cpu else 0
        memory = libraries + self.held + max(largest, cost.memory)
        here = machine(shape)
        operations = _LOAD_OPERATIONS + _LAYER_OPERATIONS * shape.n_layers + _WORD_OPERATIONS * shape.d_vocab
        return Forecast(
            cost.seconds(here) + operations * here.operation + weights.stored / _READ, memory, cost.memory, libraries
        )


def forecast(cell: Cell, source: Source, device: str, device_map: str | None = None) -> Forecast:
    """What measuring `cell` on the model at `source` will take, the loading of the model included.

    Held against peaks and times on the embedded model and on checkpoints up to 2.5 G parameters, see `benchmarks.forecast`.
    Where answers end is not known: a model is expected to end where the right answer does, and one that goes on to
    `max_new_tokens` takes longer than forecast.

    Of a cell that cannot be measured (a model that is not whole, a length that a task cannot have) it forecasts nothing: the
    error comes when the cell is measured.
    """
    kind = device.partition(":")[0]
    try:
        model = Unloaded(source, dtype_named(to_load(cell)[1]), kind, device_map)
        shape, tokens = model.shape, prompt_tokens(cell, source)
    except INTERRUPTS:
        raise
    except (
        BaseException
    ):  # whatever a plugin or a broken checkpoint raises: it is for the cell to fail, not for its forecast
        return Forecast(None, LIBRARIES if kind == "cpu" else 0)
    return model.forecast(MEASUREMENTS[cell.measurement].count(shape, cell, tokens))


def _stamp(directory: Path) -> tuple[Path, int, int]:
    """What a checkpoint is known by: where it lies, and which file its configuration is."""
    found = (directory / "config.json").stat()
    return directory.resolve(), found.st_ino, found.st_mtime_ns


@lru_cache(maxsize=64)
def _shape(stamp: tuple[Path, int, int], source: Source, dtype: torch.dtype, kind: str) -> Shape:
    """A model is read once, and not for each of its cells. Raises `InputError` where its weights are not those of its shape."""
    family = check_config(source.directory)
    with quiet():
        config, quantisation = read_config(source.directory, family)
    check_stored(config, family, read_shards(source.directory), source.directory, quantisation is not None)
    return Shape.of_config(config, dtype, kind)


@dataclass(frozen=True)
class _Weights:
    """Of a checkpoint: bytes of its files, how many numbers there are, and the bytes of the largest tensor."""

    stored: int
    numbers: int
    largest: int


@lru_cache(maxsize=64)
def _weights(stamp: tuple[Path, int, int]) -> _Weights:
    """Reads headers."""
    stored = numbers = largest = 0
    for shard in read_shards(stamp[0]):
        stored += shard.file.stat().st_size
        for tensor in shard.tensors.values():
            numbers += tensor.count
            largest = max(largest, tensor.count * _WHOLE.get(tensor.dtype, 2))
    return _Weights(stored, numbers, largest)
