"""A YAML file as plain values, read as hostile input: no tags that make objects, no aliases, no key twice, no gigabytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from ostools.ground.errors import InputError
from ostools.ground.files.reading import read_text

LARGEST = 1 << 20
"""Bytes of a sweep file at most: one of thousands of cells has a few hundred."""


class _Plain(yaml.SafeLoader):
    """YAML without aliases (a few lines of them expand to gigabytes) and without a key that stands twice.

    Only decimal numbers are numbers: YAML 1.1 reads the range 4:8 as 248, in base sixty, and 010 as 8. `no` and `on` are words.
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


_Plain.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|)$"), ["~", "n", ""])
_Plain.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$"), ["t", "f"])
_Plain.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"(?:0|-?[1-9][0-9]*)$"), list("-0123456789"))
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:e[-+]?[0-9]+)?$"), list("-0123456789")
)


def read_yaml(path: Path) -> Any:
    """The values of a file. Raises `InputError` with the file, the line and the column for what cannot be read."""
    try:
        text = read_text(path, LARGEST)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, found other bytes at offset {error.start}") from error
    try:
        return yaml.load(text, Loader=_Plain)  # _Plain is a SafeLoader: it makes no objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InputError(
            f"{path}{where}: not valid YAML: {getattr(error, 'problem', None) or 'a character that YAML cannot hold'}"
        ) from error
    except (ValueError, RecursionError) as error:  # 2026-13-45 as a date; brackets ten thousand deep
        raise InputError(f"{path}: not valid YAML: {type(error).__name__}") from error
