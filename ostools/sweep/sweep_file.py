"""A sweep file: YAML read as hostile input, and what it may ask for, checked before anything is
loaded.

An unknown key or name is refused with the nearest right one.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidationError,
)

from ostools import mitigations, tasks
from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.files import read_text
from ostools.ground.names import checked_name
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.passes.precisions import PRECISIONS
from ostools.mitigations.named import NONE
from ostools.sweep.measurements import MEASUREMENTS, Names, Options, Strict, listed
from ostools.tasks import CollapseTask, Task

MOST_CELLS = 100_000
"""The most cells that a sweep may ask for. At a second each, they take more than a day."""
_MOST_BYTES = 1 << 20  # of a sweep file: one of thousands of cells has a few hundred


def _lengths(value: Any) -> Any:
    parts = listed(value)
    if not parts or not all(
        isinstance(part, int | str) and not isinstance(part, bool) for part in parts
    ):
        raise ValueError("expected lengths such as 4:64 or [8, 16, 32]")
    return tuple(parse_lengths(",".join(map(str, parts)), "lengths"))


def _measurement(value: Any) -> Any:
    spec = {"name": value} if isinstance(value, str) else value
    if (
        isinstance(spec, dict)
        and isinstance(spec.get("name"), str)
        and spec["name"] not in MEASUREMENTS
    ):
        raise unknown_name("measurement", spec["name"], MEASUREMENTS)
    return spec


def _schema_by_name(_: Any, handler: GetCoreSchemaHandler) -> Any:
    kinds = tuple(measurement.options for measurement in MEASUREMENTS.values())
    return handler.generate_schema(Annotated[Union[kinds], Field(discriminator="name")])  # noqa: UP007 (of a tuple)


AnyOptions: TypeAlias = Annotated[
    Options, GetPydanticSchema(_schema_by_name), BeforeValidator(_measurement)
]
"""The options of a measurement, whose name says which."""
_Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


class Sweep(Strict):
    """Models x tasks x dtypes x mitigations x seeds x measurements, each at all lengths.

    A measurement may name its own dtypes: `collapse` knows more of them (bfloat16-kv) than a model
    can be loaded in.
    `device`: a kind of device, with or without a number; the executor says whether it is there, as
        workers have their own.
    `device_map`: "auto" or "disk", for models that are larger than the memory (`load_model`).
    """

    models: Names = ("embedded",)
    tasks: Names
    lengths: Annotated[tuple[int, ...], BeforeValidator(_lengths)]
    dtypes: Names = ("float32",)
    mitigations: Names = ("none",)
    seeds: Annotated[tuple[_Seed, ...], BeforeValidator(listed), Field(min_length=1)] = (0,)
    measurements: Annotated[tuple[AnyOptions, ...], BeforeValidator(listed), Field(min_length=1)]
    device: Annotated[str, Field(pattern=r"^(auto|(cpu|cuda|mps)(:\d{1,3})?)$")] = "auto"
    device_map: Literal["auto", "disk"] | None = None

    def checked(self) -> Sweep:
        """The sweep, if every task, mitigation and dtype exists and fits. Raises `InputError` or
        `MitigationError`.
        """
        cells_per_dtype = (
            len(self.models) * len(self.tasks) * len(self.mitigations) * len(self.seeds)
        )
        cells = cells_per_dtype * sum(
            len(measurement.dtypes or self.dtypes) for measurement in self.measurements
        )
        if (
            cells > MOST_CELLS
        ):  # before anything is done for each: a small file names more than a memory holds
            raise InputError(
                f"expected at most {MOST_CELLS} cells, found {cells}; split the sweep into several"
            )
        names = dict.fromkeys(measurement.name for measurement in self.measurements)
        for spec, name in itertools.product(dict.fromkeys(self.tasks), names):
            form_of(spec, name)
        self._require_seeds_that_act()
        for spec in dict.fromkeys(
            self.mitigations
        ):  # in their order: every process names the same one
            if spec != NONE:
                mitigations.mitigation(spec)
        for measurement in self.measurements:
            casts = MEASUREMENTS[measurement.name].swept.casts
            dtype_names = [name for name, kind in PRECISIONS.items() if casts or kind.part is None]
            for name in measurement.dtypes or self.dtypes:
                checked_name(f"dtype of {measurement.name}", name, dtype_names)
        return self

    def _require_seeds_that_act(self) -> None:
        """Answers to one prompt are drawn by the number of the sample: a seed would seem to act
        there, and would not.
        """
        sampled = next(
            (options.name for options in self.measurements if options.draws == "by sample"), None
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
    """The task of a name as a measurement takes it; one that compares pairs knows more tasks.

    Raises `InputError` for an unknown name, and for one that the measurement cannot ask.
    """
    if MEASUREMENTS[measurement].swept.pairs and spec in tasks.COLLAPSE_TASKS:
        return tasks.task(spec, CollapseTask)
    if spec in tasks.COLLAPSE_TASKS and spec not in tasks.names():
        raise InputError(
            f"{measurement} of {spec!r}: expected a task with an answer; known are {', '.join(tasks.names())}"
        )
    return tasks.task(spec)


@checked_arguments(InputError)
def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a YAML file. Raises `InputError` that names the file, the key and the nearest
    right name.
    """
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
    first = min(
        error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden"
    )
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
    end = "" if ", found " in reason else f"; found {str(first['input'])[:60]!r}"
    return f"{where}: {reason}{end}"


class _Plain(yaml.SafeLoader):
    """YAML without tags, without aliases (a few lines of them expand to gigabytes) and without a
    key that stands twice.

    Only decimal numbers are numbers: YAML 1.1 reads the range 4:8 as 248, in base sixty, and 010 as
    8. `no` and `on` are words.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise _refused("expected no alias (*name)", self.peek_event())
        tag = getattr(self.peek_event(), "tag", None)
        if tag is not None:
            raise _refused(f"expected no tag, found {tag}", self.peek_event())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen_keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen_keys:
                raise _refused(f"the key {key.value!r} stands twice", key)
            seen_keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def _refused(why: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


for _kind, _pattern, _first in (
    ("null", r"(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"(?:true|false)$", ["t", "f"]),
    ("int", r"(?:0|-?[1-9][0-9]*)$", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:e[-+]?[0-9]+)?$", list("-0123456789")),
):
    _Plain.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML file. Raises `InputError` with the file, the line and the column."""
    try:
        text = read_text(path, _MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected UTF-8 text, found other bytes at offset {error.start}"
        ) from error
    try:
        return yaml.load(text, Loader=_Plain)  # _Plain is a SafeLoader: it makes no objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InputError(
            f"{path}{where}: not valid YAML: {getattr(error, 'problem', None) or 'a character that YAML cannot hold'}"
        ) from error
    except (ValueError, RecursionError) as error:  # brackets ten thousand deep
        raise InputError(f"{path}: not valid YAML: {type(error).__name__}") from error
