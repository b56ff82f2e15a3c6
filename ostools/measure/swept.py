"""What a sweep knows of a measurement beside its function: `Swept`. And what it measures with it: a
`Cell`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pandas as pd

from ostools import mitigations, tasks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.measure.mitigated_prompts import EffectStatus
from ostools.measure.position import Position, checked_position, read_at, reading
from ostools.measure.task_prompt import render_prompt
from ostools.mitigations import Mitigation
from ostools.mitigations.named import NONE
from ostools.results import Frame, Provenance, Result

Rows: TypeAlias = tuple[Frame, Provenance]
"""What a cell gave: its rows, each with its length, and what they come from."""
SEQUENCES = "sequences"
"""The option of a measurement that draws so many sequences of every length; those of seed s begin
at s times as many.
"""

READ_POSITION: dict[str, Any] = {"position": (Position | None, None)}
"""The option that says where a task's prompts are read."""


@dataclass(frozen=True)
class Cell:
    """One measurement on one model, task, dtype, mitigation and seed, at several lengths; its own
    `options` as JSON, so that a cell is a value that can be compared."""

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
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("options", "lengths")
        }

    @property
    def arguments(self) -> dict[str, Any]:
        return json.loads(self.options)

    @property
    def mitigated(self) -> Mitigation | None:
        return None if self.mitigation == NONE else mitigations.mitigation(self.mitigation)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the prompts: of `sequences` so many, one where the task draws nothing."""
        if (count := self.arguments.get(SEQUENCES)) is None:
            return [self.seed]
        return (
            list(range(self.seed * count, (self.seed + 1) * count))
            if tasks.task(self.task).random
            else [0]
        )

    def __str__(self) -> str:
        mitigation_words = "" if self.mitigation == NONE else f" under {self.mitigation}"
        lengths = (
            f"{self.lengths[0]}"
            if len(self.lengths) == 1
            else f"{self.lengths[0]} to {self.lengths[-1]}"
        )
        where = f"{self.model}, {self.dtype}, seed {self.seed}, lengths {lengths}"
        return f"{self.measurement} of {self.task}{mitigation_words} on {where}"


@dataclass(frozen=True)
class Swept:
    """What a sweep does with a measurement that names this in its record:
    `@measurement(sweep=lambda: NAME)`.

    read: the result of stored rows.
    options: the parameters that a sweep file may set. Their types and defaults are the function's
        where None stands here; else a constraint of pydantic on that type, or a type and a default
        of the sweep's own.
    check: raises `InputError` for options that do not go together.
    draws: what the numbers are drawn by, beside what the task draws by the seed: of the options.
    fixed: arguments that a sweep always gives.
    rows: the rows of a result, each with its length.
    measure: the rows of a cell, where one call of the function does not make them.
    pairs: it compares pairs of prompts, which are in no chat, and knows the tasks that have pairs
        and no answer.
    casts: it casts a float32 model itself, to dtypes too (bfloat16-kv) that no model can be loaded
        in.
    depends_on_lengths: a row depends on which other lengths were asked: a cell at other lengths is
        measured anew.
    """

    read: Callable[[Frame, Provenance], Result]
    options: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda options: None
    draws: Callable[[Any], Literal["by seed", "by sample"] | None] = lambda options: None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[Any, Cell], Frame] = lambda result, cell: result.frame
    measure: Callable[[TransformerBridge, Cell], Rows] | None = None
    pairs: bool = False
    casts: bool = False
    depends_on_lengths: bool = False

    def measured(self, function: Callable[..., Any], model: TransformerBridge, cell: Cell) -> Rows:
        """The rows of a cell: of one call at all its lengths, or of one a length for what takes one
        prompt.
        """
        if self.measure is not None:
            return self.measure(model, cell)
        options = {
            name: value
            for name, value in {**cell.arguments, **self.fixed}.items()
            if name != SEQUENCES
        }
        names = inspect.signature(function).parameters
        if "lengths" not in names:
            return _each_prompt(
                function, model, cell, options | ({"seed": cell.seed} if "seed" in names else {})
            )
        options |= {"dtypes": [cell.dtype]} if self.casts else {}
        how: Any = {"lengths": cell.lengths, "seeds": cell.seeds, "mitigation": cell.mitigated}
        result = function(model, cell.task, **how, **options)
        return self.rows(result, cell), result.provenance


def _each_prompt(
    function: Callable[..., Any], model: TransformerBridge, cell: Cell, options: Mapping[str, Any]
) -> Rows:
    """The prompt of each length up to its position, under the mitigation; `status` says whether
    that changed its text or a logit."""
    mitigation, form = cell.mitigated, tasks.task(cell.task)
    effect, results, tables, read_prompts = EffectStatus(model, mitigation), [], [], []
    options = dict(options)
    position = checked_position(options.pop("position", None))
    for length in cell.lengths:
        task_prompt = render_prompt(model, form, length, seed=cell.seed, mitigation=mitigation)
        read_prompts.append(read_at(model, task_prompt, position))
        with mitigations.running(model, mitigation):
            results.append(function(model, read_prompts[-1].prompt(model), **options))
        tables.append(results[-1].frame.assign(length=length, status=effect.status(task_prompt)[0]))
    provenance = results[-1].provenance
    parameters = provenance.parameters | {"read_at": reading(model, read_prompts)}
    return pd.concat(tables, ignore_index=True), replace(provenance, parameters=parameters)


def the_one(rows: Frame, name: str) -> str:
    """The value of a column in which all rows are alike. Raises `InputError` where they are not."""
    values = rows[name].unique()
    if len(values) != 1:
        raise InputError(
            f"expected rows of one {name}, found {len(values)}: read those of each by themselves"
        )
    return str(values[0])
