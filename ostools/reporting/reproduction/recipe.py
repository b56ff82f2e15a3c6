"""A recipe file: which model, and other arguments of the parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ostools.experiments.reproduce.parts import Arguments, checked_arguments
from ostools.ground.errors import InputError
from ostools.runs.sweep_file import read_yaml


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    parts: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Recipe:
    """model, device, dtype: what is loaded, None where the file does not say. arguments: of every part."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    arguments: dict[str, Arguments] = field(default_factory=lambda: checked_arguments({}))


def read_recipe(path: str | Path) -> Recipe:
    """The recipe of a YAML file. Raises `InputError` for what cannot be read, unknown keys, parts and arguments."""
    held = read_yaml(Path(path))
    if not isinstance(held, dict):
        raise InputError(f"{path}: expected the keys model, device, dtype and parts, found {type(held).__name__}")
    try:
        asked = _File(**{str(key): value for key, value in held.items()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {where}: {first['msg']}; expected the keys model, device, dtype and parts"
        ) from error
    try:
        return Recipe(asked.model, asked.device, asked.dtype, checked_arguments(asked.parts))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
