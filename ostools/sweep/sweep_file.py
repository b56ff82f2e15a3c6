"""A sweep file: plain values in YAML, and what it may ask for, checked before anything is
loaded; and the cells that it asks for.

An unknown key or name is refused.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, Union

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from ostools import mitigations, tasks
from ostools.ground import (
    InputError,
    checked_arguments,
    checked_name,
    nearest,
    parse_lengths,
    refusal,
    short_repr,
)
from ostools.measure.mitigated_prompts import of_the_pass
from ostools.measure.passes.precisions import PRECISIONS
from ostools.measure.swept import TEXT_TASK, Cell, Text
from ostools.mitigations import Mitigation
from ostools.mitigations.named import NONE, typed
from ostools.sweep.cells import MEASUREMENTS, Names, Options, Strict, listed, to_load
from ostools.tasks import Task

_PARTED = re.compile(r"\n(?:[ \t]*\n)+")


def read_texts(texts: object) -> tuple[Text, ...]:
    """Read the texts of a list, of a .jsonl file (an object a line), or of a file of plain text,
    whose texts are parted by empty lines. An object has a `text` and may have an `id`; without one
    a text's id is its place, from 0.

    Raises `InputError` for what cannot be read, for what is no text, and for an id that is there
    twice.
    """
    where, items = "texts", texts
    if isinstance(texts, str | Path):
        where, items = str(texts), _items_of(Path(texts))
    if not isinstance(items, list | tuple) or not items:
        raise InputError(f"{where}: expected texts or a file of texts, found {short_repr(items)}")
    read = tuple(_text_of(item, number, where) for number, item in enumerate(items))
    name, count = Counter(text.id for text in read).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where}: expected an id of its own for each text, found {name!r} twice")
    return read


def _text_of(item: object, number: int, where: str) -> Text:
    """A text, or an object with one, as the text of that number. Raises `InputError` for
    another.
    """
    fields = item if isinstance(item, dict) else {"text": item}
    text, name = fields.get("text"), fields.get("id", number)
    is_named = isinstance(name, str | int) and not isinstance(name, bool)
    if not isinstance(text, str) or not text.strip() or not is_named:
        raise InputError(f"{where}: expected texts, found {short_repr(item)} at {number}")
    return Text(str(name), number, text)


def _items_of(path: Path) -> list[object]:
    with refusal(f"plain text, or an object with a text in each line of a .jsonl file, at {path}"):
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".jsonl":
            return [json.loads(line) for line in content.split("\n") if line.strip()]
    return [part for part in _PARTED.split(content) if part.strip()]


def _lengths(value: object) -> tuple[int, ...]:
    parts = listed(value)
    if not all(isinstance(part, int | str) and not isinstance(part, bool) for part in parts):
        raise ValueError("expected lengths such as 4:64 or [8, 16, 32]")
    return tuple(parse_lengths(",".join(map(str, parts)), "lengths"))


def _measurement(value: object) -> object:
    spec = {"name": value} if isinstance(value, str) else value
    if isinstance(spec, dict):
        checked_name("measurement", spec.get("name"), MEASUREMENTS)
    return spec


def _schema_by_name(_: object, handler: GetCoreSchemaHandler) -> Any:
    kinds = tuple(measurement.options for measurement in MEASUREMENTS.values())
    union = Union[kinds]  # noqa: UP007 (of a tuple)
    return handler.generate_schema(Annotated[union, Field(discriminator="name")])


AnyOptions: TypeAlias = Annotated[
    Options, GetPydanticSchema(_schema_by_name), BeforeValidator(_measurement)
]
"""The options of a measurement, whose name says which."""


class Sweep(Strict):
    """Models x (tasks and texts) x dtypes x mitigations x seeds x measurements, at all lengths.

    texts: a list of texts, or a file of them (`read_texts`). Of each, one window of every length in
        tokens is drawn by the seed.
    A measurement may name its own dtypes: `collapse` knows more of them (bfloat16-kv) than a model
    can be loaded in.
    `device`: a kind of device, with or without a number; the executor says whether it is there, as
        workers have their own.
    """

    models: Names = ("embedded",)
    tasks: Names = ()
    texts: Annotated[tuple[Text, ...], BeforeValidator(read_texts)] = ()
    lengths: Annotated[tuple[int, ...], BeforeValidator(_lengths)]
    dtypes: Names = ("float32",)
    mitigations: Names = ("none",)
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**31)], ...],
        BeforeValidator(listed),
        Field(min_length=1),
    ] = (0,)
    measurements: Annotated[tuple[AnyOptions, ...], BeforeValidator(listed), Field(min_length=1)]
    device: Annotated[str, Field(pattern=r"^(auto|(cpu|cuda)(:\d{1,3})?)$")] = "auto"
    _typed: tuple[str, ...] = PrivateAttr(())  # no file sets it: what it names may run

    @property
    def typed(self) -> tuple[str, ...]:
        """The mitigations that the command line adds, by the texts that make them."""
        return self._typed

    def with_typed(self, added: Sequence[Mitigation | str]) -> "Sweep":
        """Return the sweep with more mitigations, also ones of a file of the user's own, which
        runs. Raises `InputError` for an object that no text makes again."""
        definitions = [typed(spec) if isinstance(spec, str) else spec for spec in added]
        self._require_for_texts(definitions)
        sweep = self.model_copy()
        sweep._typed = tuple(map(mitigations.label, definitions))
        for definition, label in zip(definitions, sweep._typed, strict=True):
            if label == repr(definition):
                raise InputError(
                    "mitigations: expected one that a text makes, such as './mine.py:AskAgain', "
                    f"found {label:.60}"
                )
        return sweep

    @model_validator(mode="after")
    def _names_exist(self) -> "Sweep":
        """Refuse tasks, mitigations and dtypes that do not exist or do not fit."""
        if not self.tasks and not self.texts:
            raise InputError("expected tasks or texts, found neither")
        specs = [spec for spec in self.mitigations if spec != NONE]
        for spec in specs:
            mitigations.mitigation(spec)
        self._require_for_texts(specs)
        for measurement in self.measurements:
            self._check_dtypes_and_texts(measurement)
            self._check_tasks(measurement)
        return self

    def _check_dtypes_and_texts(self, measurement: Options) -> None:
        swept = MEASUREMENTS[measurement.name].swept
        dtypes = [name for name, kind in PRECISIONS.items() if swept.casts or kind.part is None]
        for name in measurement.dtypes or self.dtypes:
            checked_name(f"dtype of {measurement.name}", name, dtypes)
        if self.texts and swept.of_texts is None:
            raise InputError(f"texts: expected another measurement, found {measurement.name}")

    def _check_tasks(self, measurement: Options) -> None:
        for spec in self.tasks:
            # Answers to one prompt are drawn by the number of the sample: a seed would seem to
            # act there, and would not.
            is_drawn = tasks.task(spec).random
            if measurement.draws == "by sample" and self.seeds != (0,) and not is_drawn:
                raise InputError(
                    f"seeds {list(self.seeds)}: {spec} draws nothing at random, and answers are "
                    f"drawn by samples: leave seeds out and give samples, or ask {spec} in another "
                    "sweep"
                )

    def _require_for_texts(self, specs: Sequence[Mitigation | str]) -> None:
        for spec in specs if self.texts else ():
            of_the_pass("texts", spec, "the windows of texts are tokens, which it cannot rewrite")


@checked_arguments(InputError)
def read_sweep(path: str | Path, *, mitigations: Sequence[Mitigation | str] = ()) -> Sweep:
    """The sweep of a YAML file, with more mitigations than it names. Raises `InputError` that names
    the file, the key and the nearest right name.
    """
    values = read_yaml(Path(path))
    try:
        return sweep_of(values, mitigations=mitigations)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


@checked_arguments(InputError)
def sweep_of(values: object, *, mitigations: Sequence[Mitigation | str] = ()) -> Sweep:
    """The sweep that a mapping describes, checked. `mitigations`: more of them, also of a file of
    your own (`./mine.py:AskAgain`), which runs."""
    try:
        return Sweep.model_validate(values).with_typed(mitigations)
    except ValidationError as error:
        raise InputError(_in_words(error)) from error


def _in_words(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in MEASUREMENTS)
    if first["type"] == "extra_forbidden":
        kinds = [MEASUREMENTS[str(part)].options for part in first["loc"] if part in MEASUREMENTS]
        keys = (kinds or [Sweep])[0].model_fields
        return f"{where}: no such key: {nearest(first['loc'][-1], keys)}"
    reason = str(first.get("ctx", {}).get("error") or first["msg"])
    end = "" if ", found " in reason else f"; found {str(first['input'])[:60]!r}"
    return f"{where}: {reason}{end}" if where else reason


def cells_of(sweep: Sweep) -> list[Cell]:
    """Every cell, ordered so that each model is loaded once in a dtype. What is asked twice is one
    cell.
    """
    cells: dict[Cell, None] = {}
    mitigation_labels = [(_mitigation_label(spec), False) for spec in sweep.mitigations]
    mitigation_labels += [(spec, True) for spec in sweep.typed]
    for measurement, task in itertools.product(sweep.measurements, (*sweep.tasks, *sweep.texts)):
        name, text, seeds = _prompts_of(task, measurement, sweep.seeds)
        dtypes, options = measurement.dtypes or sweep.dtypes, measurement.as_json
        for model, (label, is_typed), dtype, seed in itertools.product(
            sweep.models, mitigation_labels, dtypes, seeds
        ):
            which = model, name, dtype, label, seed, measurement.name
            cells[Cell(*which, options, sweep.lengths, text, is_typed)] = None
    # Of the file's order only: each model in a dtype once, and the models as they are listed.
    order = list(dict.fromkeys(map(to_load, cells)))
    return sorted(
        cells, key=lambda cell: (sweep.models.index(cell.model), order.index(to_load(cell)))
    )


def _prompts_of(
    task: str | Text, measurement: Options, seeds: tuple[int, ...]
) -> tuple[str, Text | None, tuple[int, ...]]:
    """The task's name, the text, and the seeds. What draws nothing is the same under every seed."""
    if isinstance(task, Text):
        return TEXT_TASK, task, seeds
    form = tasks.task(task)
    name = _same_text(form, tasks.label(form), task) if isinstance(form, Task) else task
    return name, None, seeds if form.random or measurement.draws == "by seed" else (0,)


def _mitigation_label(spec: str) -> str:
    mitigation = None if spec == NONE else mitigations.mitigation(spec)
    return _same_text(mitigation, mitigations.label(mitigation), spec)


def _same_text(definition: Task | Mitigation | None, label: str, spec: str) -> str:
    """Return the text by which a cell makes its task or mitigation again.

    Its label, so that two spellings are one cell; the text as it was given where the label is only
    the `repr` of an object, which no text makes again.
    """
    return spec if label == repr(definition) else label


class _Plain(yaml.SafeLoader):
    """YAML without a key that stands twice, in which only decimal numbers are numbers: YAML 1.1
    reads the range 4:8 as 248, in base sixty, and 010 as 8. `no` and `on` are words.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[object]]] = {}

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"(?:true|false)$", ["t", "f"]),
    ("int", r"(?:0|-?[1-9][0-9]*)$", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:e[-+]?[0-9]+)?$", list("-0123456789")),
):
    _Plain.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def read_yaml(path: Path) -> object:
    """The plain values of a YAML file. Raises `InputError` with the file, the line and
    the column.
    """
    with refusal(f"YAML in UTF-8 at {path}"):
        # _Plain is a SafeLoader: it makes no objects.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Plain)  # noqa: S506
