"""What a sweep knows of a measurement: one record. And what it measures: a cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from transformer_lens.model_bridge import TransformerBridge

import mitigations
from mitigations import Mitigation
from mitigations.named import NONE
from ostools.measure.passes.batches import LongestPrompt
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance, Result

Rows: TypeAlias = tuple[Frame, Provenance]
"""What a cell gave: its rows, each with its length, and what they come from."""
ResultType = TypeVar("ResultType", bound=Result)


@dataclass(frozen=True)
class Cell:
    """One measurement on one model, task, dtype, mitigation and seed, at several lengths.

    `options` are the measurement's own, as JSON, so that a cell is a value that can be compared.
    """

    model: str
    task: str
    dtype: str
    mitigation: str
    seed: int
    measurement: str
    options: str
    lengths: tuple[int, ...]

    @property
    def columns(self) -> dict[str, Any]:
        """What every row of the cell carries."""
        return {name: value for name, value in asdict(self).items() if name not in ("options", "lengths")}

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as the measurement takes them."""
        return json.loads(self.options)

    @property
    def mitigated(self) -> Mitigation | None:
        """The mitigation that acts; None for none."""
        return None if self.mitigation == NONE else mitigations.mitigation(self.mitigation)

    def __str__(self) -> str:
        mitigation_words = "" if self.mitigation == NONE else f" under {self.mitigation}"
        lengths = f"{self.lengths[0]}" if len(self.lengths) == 1 else f"{self.lengths[0]} to {self.lengths[-1]}"
        where = f"{self.model}, {self.dtype}, seed {self.seed}, lengths {lengths}"
        return f"{self.measurement} of {self.task}{mitigation_words} on {where}"


def listed(value: Any) -> Any:
    """One value where a list is meant is a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(listed), Field(min_length=1)]


class Strict(BaseModel):
    """Values of a sweep file: no other keys, and no number for a word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)  # `seeds: true` is no seed


class Options(Strict):
    """What a sweep may ask of a measurement: its arguments, and dtypes of its own."""

    name: Any
    dtypes: Names | None = None

    @property
    def draws(self) -> Literal["by seed", "by sample"] | None:
        """What it draws by, beside what the task draws by the seed."""
        return None

    @property
    def as_json(self) -> str:
        """The arguments of the measurement alone."""
        return json.dumps(self.model_dump(exclude={"name", "dtypes"}), sort_keys=True)


@dataclass(frozen=True)
class Measurement(Generic[ResultType]):
    """A measurement of a sweep: what may be asked of it, the memory it takes, how it is measured, and
    its stored rows read back."""

    options: type[Options]
    memory: Callable[[Shape, Cell, LongestPrompt], int]
    """Bytes that a cell holds beside the model, from the model's shape and the tokens of its longest prompt."""
    measure: Callable[[TransformerBridge, Cell], Rows]
    read: Callable[[Frame, Provenance], ResultType]
    """The result of stored rows."""
    pairs: bool = False
    """It compares pairs of prompts, which are in no chat, and knows the tasks that have pairs and no answer."""
    casts: bool = False
    """It casts a float32 model itself, to dtypes too (bfloat16-kv) that no model can be loaded in."""
    depends_on_lengths: bool = False
    """A row depends on which other lengths were asked: a cell at other lengths is another one, measured anew."""

    @property
    def name(self) -> str:
        return str(self.options.model_fields["name"].default)
