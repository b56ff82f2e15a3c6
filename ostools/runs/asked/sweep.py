"""What a sweep file asks for, checked before anything is loaded: an unknown key or name is refused with the nearest."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, TypeAlias, Union

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetPydanticSchema, ValidationError

import mitigations
from hooks.errors import checked_arguments
from mitigations.named import NONE
from ostools import tasks
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.lengths import parse_lengths
from ostools.ground.names import checked_name
from ostools.measure.passes.precisions import PRECISIONS
from ostools.models.placed.device_map import NAMED_MAPS
from ostools.runs.asked.yaml_file import read_yaml
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.measurements.record import Names, Options, Strict, listed
from ostools.tasks import CollapseTask, Task


def _lengths(value: Any) -> Any:
    """`1:64`, 8, or a list of such."""
    parts = listed(value)
    if not parts or not all(isinstance(part, int | str) and not isinstance(part, bool) for part in parts):
        raise ValueError("expected lengths such as 4:64 or [8, 16, 32]")
    return tuple(parse_lengths(",".join(map(str, parts)), "lengths"))


MOST_CELLS = 100_000
"""The most cells that a sweep may ask for. At a second each, they take more than a day."""

_DEVICES = ("auto", "cpu", "cuda", "mps")


def _device_map(name: str | None) -> str | None:
    return None if name is None else checked_name("device map", name, NAMED_MAPS)


def _device(name: str) -> str:
    """A kind of device, with or without a number. Whether it is there, the executor says: workers have their own."""
    if not re.fullmatch(rf"auto|(?:{'|'.join(_DEVICES[1:])})(?::\d{{1,3}})?", name):
        raise unknown_name("device", name, _DEVICES)
    return name


def _measurement(value: Any) -> Any:
    """A name, or a mapping with a `name` and its options."""
    spec = {"name": value} if isinstance(value, str) else value
    if isinstance(spec, dict) and isinstance(spec.get("name"), str) and spec["name"] not in MEASUREMENTS:
        raise unknown_name("measurement", spec["name"], MEASUREMENTS)
    return spec


def _one_of_them(_: Any, handler: GetCoreSchemaHandler) -> Any:
    kinds = tuple(measurement.options for measurement in MEASUREMENTS.values())
    return handler.generate_schema(Annotated[Union[kinds], Field(discriminator="name")])  # noqa: UP007 (of a tuple)


AnyOptions: TypeAlias = Annotated[Options, GetPydanticSchema(_one_of_them), BeforeValidator(_measurement)]
"""The options of a measurement, whose name says which."""


class Sweep(Strict):
    """Models x tasks x dtypes x mitigations x seeds x measurements, each at all lengths.

    A measurement may name its own dtypes: `collapse` knows more of them (bfloat16-kv) than a model can be loaded in.
    `device_map`: "auto" or "disk", for models that are larger than the memory (`load_model`).
    """

    models: Names = ("embedded",)
    tasks: Names
    lengths: Annotated[tuple[int, ...], BeforeValidator(_lengths)]
    dtypes: Names = ("float32",)
    mitigations: Names = ("none",)
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], BeforeValidator(listed), Field(min_length=1)
    ] = (0,)
    measurements: Annotated[tuple[AnyOptions, ...], BeforeValidator(listed), Field(min_length=1)]
    device: Annotated[str, AfterValidator(_device)] = "auto"
    device_map: Annotated[str | None, AfterValidator(_device_map)] = None

    def checked(self) -> Sweep:
        """Every task, mitigation and dtype exists and fits. Raises `InputError` or `MitigationError`."""
        cells_per_dtype = len(self.models) * len(self.tasks) * len(self.mitigations) * len(self.seeds)
        cells = cells_per_dtype * sum(len(measurement.dtypes or self.dtypes) for measurement in self.measurements)
        if cells > MOST_CELLS:  # before anything is done for each: a small file names more than a memory holds
            raise InputError(f"expected at most {MOST_CELLS} cells, found {cells}; split the sweep into several")
        names = dict.fromkeys(measurement.name for measurement in self.measurements)
        for spec, name in itertools.product(dict.fromkeys(self.tasks), names):
            form_of(spec, name)
        self._require_seeds_that_act()
        for spec in dict.fromkeys(
            self.mitigations
        ):  # in their order: the first that is wrong is told, in every process
            if spec != NONE:
                mitigations.mitigation(spec)
        for measurement in self.measurements:
            casts = MEASUREMENTS[measurement.name].casts
            dtype_names = [name for name, kind in PRECISIONS.items() if casts or kind.part is None]
            for name in measurement.dtypes or self.dtypes:
                if name not in dtype_names:
                    raise unknown_name(f"dtype of {measurement.name}", name, dtype_names)
        return self

    def _require_seeds_that_act(self) -> None:
        """Answers to one prompt are drawn by the number of the sample: a seed would change nothing there, and seem to."""
        sampled = next(
            (measurement.name for measurement in self.measurements if measurement.draws == "by sample"), None
        )
        if sampled is None or self.seeds == (0,):
            return
        for spec in dict.fromkeys(self.tasks):
            if not form_of(spec, sampled).random:
                raise InputError(
                    f"seeds {list(self.seeds)}: {spec} draws nothing at random, and answers are drawn by samples: leave seeds "
                    f"out and give samples, or ask {spec} in another sweep"
                )


def form_of(spec: str, measurement: str) -> Task | CollapseTask:
    """The task of a name as a measurement takes it: one of pairs knows more, prompts that end in what is repeated.

    Raises `InputError` for an unknown name, and for one that the measurement cannot ask.
    """
    if MEASUREMENTS[measurement].pairs and spec in tasks.COLLAPSE_TASKS:
        return tasks.task(spec, CollapseTask)
    if spec in tasks.COLLAPSE_TASKS and spec not in tasks.names():
        raise InputError(
            f"{measurement} of {spec!r}: expected a task with an answer; known are {', '.join(tasks.names())}"
        )
    return tasks.task(spec)


@checked_arguments(InputError)
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


@checked_arguments(InputError)
def sweep_of(values: dict[Any, Any]) -> Sweep:
    """The sweep that a mapping describes, checked."""
    try:
        return Sweep.model_validate(values).checked()
    except ValidationError as error:
        raise InputError(_in_words(error)) from error


def _in_words(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    # An unknown key before one that is missing: it is most often the missing one, misspelled.
    first = min(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"] if part not in MEASUREMENTS) or "the sweep"
    if first["type"] == "extra_forbidden":
        measurement_names = [part for part in first["loc"] if part in MEASUREMENTS]
        owner = f"the measurement {measurement_names[0]}" if measurement_names else "a sweep"
        schema = MEASUREMENTS[measurement_names[0]].options if measurement_names else Sweep
        return str(unknown_name(f"key of {owner}", first["loc"][-1], schema.model_fields))
    if first["type"] == "missing":
        return f"expected the key {where!r}, found none"
    cause = first.get("ctx", {}).get("error")
    reason = str(cause) if cause is not None else f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"{where}: {reason}; found {str(first['input'])[:60]!r}"
