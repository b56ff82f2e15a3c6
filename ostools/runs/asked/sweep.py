"""What a sweep file asks for, checked before anything is loaded: an unknown key or name is refused with the nearest."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

import mitigations
from mitigations.named import NONE
from ostools import tasks
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.lengths import parse_lengths
from ostools.measure.jacobian.linearisations import LINEARISATIONS
from ostools.measure.passes.precisions import PRECISIONS
from ostools.measure.paths.variants import checked_variants
from ostools.measure.prompts import checked_names
from ostools.runs.asked.yaml_file import read_yaml
from ostools.tasks import CollapseTask, Task


def _listed(value: Any) -> Any:
    """One value where a list is meant is a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _lengths(value: Any) -> Any:
    """`1:64`, 8, or a list of such."""
    parts = _listed(value)
    if not parts or not all(isinstance(part, int | str) and not isinstance(part, bool) for part in parts):
        raise ValueError("expected lengths such as 4:64 or [8, 16, 32]")
    return tuple(parse_lengths(",".join(map(str, parts)), "lengths"))


MOST_CELLS = 100_000
"""How many cells a sweep may ask for: at a second each, more than a day."""

_DEVICES = ("auto", "cpu", "cuda", "mps")
Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


def _linearisations(names: tuple[str, ...]) -> tuple[str, ...]:
    return checked_names("linearisation", names, LINEARISATIONS)


def _device(name: str) -> str:
    """A kind of device, with or without a number. Whether it is there, the executor says: workers have their own."""
    if not re.fullmatch(rf"auto|(?:{'|'.join(_DEVICES[1:])})(?::\d{{1,3}})?", name):
        raise unknown_name("device", name, _DEVICES)
    return name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)  # `seeds: true` is no seed


class _Cells(_Strict):
    """What every measurement of a sweep has."""

    dtypes: Names | None = None

    @property
    def draws(self) -> bool:
        """Whether it draws by the seed of the cell, whatever the task draws."""
        return False


class BehaviourCells(_Cells):
    """`ost.behaviour`: what the model answers."""

    name: Literal["behaviour"] = "behaviour"
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    samples: int = Field(1, ge=1, le=10_000)
    max_new_tokens: int = Field(64, ge=1, le=1_000_000)
    """Where an answer is cut: one limit for all lengths, as a row may not depend on which others stand beside it."""

    @model_validator(mode="after")
    def _samples_differ(self) -> BehaviourCells:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"at temperature 0 all {self.samples} samples would be the same; give a temperature, such as 1"
            )
        return self


class CollapseCells(_Cells):
    """`ost.collapse`: the distance between the representations of n and n + 1 items."""

    name: Literal["collapse"] = "collapse"
    bos: bool = True


class SensitivityCells(_Cells):
    """`ost.sensitivity` of every question: d y_n / d v_i."""

    name: Literal["sensitivity"] = "sensitivity"
    linearisations: Annotated[Names, AfterValidator(_linearisations)] = ("full", "frozen")
    method: Literal["exact", "estimate"] = "exact"
    """Never "auto": it looks at the memory that is free, and one key would stand for two kinds of numbers."""
    relative_error: float = Field(0.1, gt=0, allow_inf_nan=False)
    confidence: float = Field(0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _settings_are_used(self) -> SensitivityCells:
        unused = sorted({"relative_error", "confidence"} & self.model_fields_set)
        if unused and self.method == "exact":
            raise ValueError(f"exact norms have no {unused[0]}; leave it out, or give method: estimate")
        return self

    @property
    def draws(self) -> bool:
        return self.method == "estimate"


class PathSumCells(_Cells):
    """`ost.path_sum` of every question: Theorem 5.1's bounds and predictions."""

    name: Literal["path-sum"] = "path-sum"
    variants: Annotated[Names, AfterValidator(checked_variants)] = ("local",)


MeasurementCells: TypeAlias = BehaviourCells | CollapseCells | SensitivityCells | PathSumCells
KINDS: dict[str, type[MeasurementCells]] = {
    "behaviour": BehaviourCells,
    "collapse": CollapseCells,
    "sensitivity": SensitivityCells,
    "path-sum": PathSumCells,
}


def _measurement(value: Any) -> Any:
    """A name, or a mapping with a `name` and its options."""
    given = {"name": value} if isinstance(value, str) else value
    if isinstance(given, dict) and isinstance(given.get("name"), str) and given["name"] not in KINDS:
        raise unknown_name("measurement", given["name"], KINDS)
    return given


Measured: TypeAlias = Annotated[MeasurementCells, Field(discriminator="name"), BeforeValidator(_measurement)]


class Sweep(_Strict):
    """Models x tasks x dtypes x mitigations x seeds x measurements, each at all lengths.

    A measurement may name its own dtypes: `collapse` knows more of them (bfloat16-kv) than a model can be loaded in.
    """

    models: Names = ("embedded",)
    tasks: Names
    lengths: Annotated[tuple[int, ...], BeforeValidator(_lengths)]
    dtypes: Names = ("float32",)
    mitigations: Names = ("none",)
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], BeforeValidator(_listed), Field(min_length=1)
    ] = (0,)
    measurements: Annotated[tuple[Measured, ...], BeforeValidator(_listed), Field(min_length=1)]
    device: Annotated[str, AfterValidator(_device)] = "auto"

    def checked(self) -> Sweep:
        """Every task, mitigation and dtype exists and fits. Raises `InputError` or `MitigationError`."""
        each = len(self.models) * len(self.tasks) * len(self.mitigations) * len(self.seeds)
        cells = each * sum(len(measured.dtypes or self.dtypes) for measured in self.measurements)
        if cells > MOST_CELLS:  # before anything is done for each: a small file names more than a memory holds
            raise InputError(f"expected at most {MOST_CELLS} cells, found {cells}; split the sweep into several")
        for spec, name in itertools.product(
            dict.fromkeys(self.tasks), dict.fromkeys(m.name for m in self.measurements)
        ):
            form_of(spec, name)
        self._require_seeds_that_act()
        for spec in dict.fromkeys(self.mitigations):
            if spec != NONE:
                mitigations.mitigation(spec)
        for measured in self.measurements:
            known = [name for name, kind in PRECISIONS.items() if measured.name == "collapse" or kind.part is None]
            for name in measured.dtypes or self.dtypes:
                if name not in known:
                    raise unknown_name(f"dtype of {measured.name}", name, known)
        return self

    def _require_seeds_that_act(self) -> None:
        """Answers to one prompt are drawn by the number of the sample: a seed would change nothing there, and seem to."""
        sampled = any(isinstance(one, BehaviourCells) and one.temperature > 0 for one in self.measurements)
        if not sampled or self.seeds == (0,):
            return
        for spec in dict.fromkeys(self.tasks):
            if not form_of(spec, "behaviour").random:
                raise InputError(
                    f"seeds {list(self.seeds)}: {spec} draws nothing at random, and answers are drawn by samples: leave seeds "
                    f"out and give samples, or ask {spec} in another sweep"
                )


def form_of(spec: str, measurement: str) -> Task | CollapseTask:
    """The task of a name as a measurement takes it: `collapse` knows more, prompts that end in what is repeated.

    Raises `InputError` for an unknown name, and for one that the measurement cannot ask.
    """
    if measurement == "collapse" and spec in tasks.COLLAPSE_TASKS:
        return tasks.task(spec, CollapseTask)
    if spec in tasks.COLLAPSE_TASKS and spec not in tasks.names():
        raise InputError(
            f"{measurement} of {spec!r}: expected a task with an answer; known are {', '.join(tasks.names())}"
        )
    return tasks.task(spec)


def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a YAML file. Raises `InputError` that names the file, the key and the nearest right name."""
    values = read_yaml(Path(path))
    if not isinstance(values, dict):
        raise InputError(
            f"{path}: expected keys such as tasks, lengths and measurements, found {type(values).__name__}"
        )
    try:
        return sweep_of(values)
    except (InputError, mitigations.MitigationError) as error:
        raise InputError(f"{path}: {error}") from error


def sweep_of(values: dict[Any, Any]) -> Sweep:
    """The sweep that a mapping describes, checked."""
    try:
        return Sweep.model_validate(values).checked()
    except ValidationError as error:
        raise InputError(_in_words(error)) from error


def _in_words(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    # An unknown key before one that is missing: it is most often the missing one, misspelled.
    first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"] if part not in KINDS) or "the sweep"
    if first["type"] == "extra_forbidden":
        return str(unknown_name(f"key of {_owner(first['loc'])}", first["loc"][-1], _fields(first["loc"])))
    if first["type"] == "missing":
        return f"expected the key {where!r}, found none"
    cause = first.get("ctx", {}).get("error")
    said = str(cause) if cause is not None else f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"{where}: {said}; found {str(first['input'])[:60]!r}"


def _owner(place: tuple[Any, ...]) -> str:
    named = [part for part in place if part in KINDS]
    return f"the measurement {named[0]}" if named else "a sweep"


def _fields(place: tuple[Any, ...]) -> Iterable[str]:
    named = [part for part in place if part in KINDS]
    return (KINDS[named[0]] if named else Sweep).model_fields
