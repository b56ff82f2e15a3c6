"""Registry of classes by name, with options in one word: `separator:every=3`, and third parties'
beside the built-in ones.

A distribution adds its own by an entry point; nothing of it is imported until its name is used or
the names are listed. Its options are the fields of its dataclass, read by their types. The same
grammar serves the tasks of `ostools`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ostools.ground.errors import nearest
from ostools.mitigations.own_file import file_spec, loaded_from

Thing = TypeVar("Thing")
Point: TypeAlias = Any
"""An entry point: importlib.metadata's, or its backport's, which takes over the search in a process
that imports it.
"""
_PAIR = re.compile(r"(\w+)=(.*)", re.DOTALL)


class Listed(NamedTuple):
    """One line of a listing. `options` as one would write them; `summary` the first line of its
    docstring, or what is wrong.
    """

    name: str
    owner: str
    options: str
    summary: str
    usable: bool


class _Option(NamedTuple):
    """An option's type and its default; `MISSING` where it has to be given."""

    kind: Any
    default: Any


@dataclasses.dataclass(frozen=True)
class Registry(Generic[Thing]):
    """The built-in and the third-party classes of one kind of thing.

    kind: what they are called in messages ("mitigation"). base: the class that each is a subclass
    of. built_in: where each is found, "module:Class" by name. group: the entry-point group of third
    parties. error: what a refusal raises.
    """

    kind: str
    base: type[Thing]
    built_in: Mapping[str, str]
    group: str
    error: type[ValueError]

    def names(self) -> tuple[str, ...]:
        """The built-in names in their order, then those of other distributions. Imports none of
        them.
        """
        return (
            *self.built_in,
            *sorted(
                {point.name for point in _installed(self.group, tuple(sys.path))}
                - set(self.built_in)
            ),
        )

    def make(self, spec: str) -> Thing:
        """The thing that `NAME:key=value,key=value` describes; a class with a field `name` gets the
        name.

        Raises `error` for an unknown name or option (with the nearest), a value of the wrong type,
        and a distribution that cannot be imported, offers something else, or uses a name that is
        taken.
        """
        name, _, text = spec.partition(":")
        name = name.strip()
        return self._made(spec, name, self._class(name), text)

    def make_from_file(self, spec: str) -> Thing:
        """The thing of `PATH.py:NAME` or `PATH.py:NAME:key=value,key=value`, where NAME is a class,
        or a function that returns a thing; its options are the fields of the dataclass, or the
        parameters of the function.

        It runs the file: what it names has to be typed by the user, and come from nowhere else.
        Raises `error` for a file that cannot be read, raises, or has no such name, and for what is
        or gives none of this kind.
        """
        parts = file_spec(spec)
        if parts is None:
            raise self.error(
                f"{self.kind} {spec!r}: expected FILE.py:NAME, such as ./mine.py:AskAgain"
            )
        try:
            maker = loaded_from(parts.path, parts.name)
        except Exception as error:  # the user's own program
            raise self.error(
                f"{self.kind} {spec!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not callable(maker) or (isinstance(maker, type) and not issubclass(maker, self.base)):
            raise self.error(
                f"{self.kind} {spec!r}: expected a subclass of {self.base.__name__}, or a function that returns one's object, "
                f"found {maker!r:.60}"
            )
        thing: Any = self._made(spec, f"{parts.path}:{parts.name}", maker, parts.options)
        if not isinstance(thing, self.base):
            raise self.error(
                f"{self.kind} {spec!r}: expected a {self.base.__name__}, found that it gives {thing!r:.60}"
            )
        return thing

    def _made(self, spec: str, name: str, maker: Any, text: str) -> Thing:
        known_options = self._known_options(name, maker)
        options = self._options(
            name, {key: option for key, option in known_options.items() if key != "name"}, text
        )
        if "name" in known_options:
            options["name"] = name
        missing = [
            key
            for key, option in known_options.items()
            if key not in options and option.default is MISSING
        ]
        if missing:
            key = missing[0]
            raise self.error(
                f"{self.kind} {name!r} needs {key}, {_in_words(known_options[key].kind)}: write {name}:{key}=..."
            )
        try:
            return maker(**options)
        except self.error:
            raise
        except Exception as error:  # a plugin's, no refusal of ours
            raise self.error(
                f"{self.kind} {spec!r} of {self._owner(name)}: {type(error).__name__}: {error}"
            ) from error

    def listing(self) -> list[Listed]:
        """Listing of every name for people: its owner, its options, its summary; what cannot be
        used says why.
        """
        rows = []
        for name in self.names():
            owner = self._owner(name)
            try:
                maker = self._class(name)
                known_options = self._known_options(name, maker)
            except self.error as error:
                rows.append(Listed(name, owner, "", str(error), False))
                continue
            words = [
                key if option.default is MISSING else f"{key}={_as_text(option.default)}"
                for key, option in known_options.items()
                if key != "name"
            ]
            rows.append(
                Listed(
                    name,
                    owner,
                    ", ".join(words),
                    (inspect.getdoc(maker) or "").split("\n")[0],
                    True,
                )
            )
        return rows

    def label(self, thing: Thing) -> str:
        """Text of which `make` would make it, with every option that is not the default; its repr
        where no text makes it.
        """
        place = f"{type(thing).__module__}:{type(thing).__qualname__}"
        if file_spec(place) is not None:  # of a file of the user's own
            return self._with_options(place, thing)
        for name in (getattr(thing, "name", None), *self.names()):
            if any(point.value == place for point in self._points(name)):
                try:
                    text = self._with_options(str(name), thing)
                    # An option may hold what looks like another option.
                    return text if self.make(text) == thing else repr(thing)
                except self.error:
                    return repr(thing)
        return repr(thing)

    def _with_options(self, name: str, thing: Thing) -> str:
        stated = [
            f"{key}={_as_text(value)}"
            for key, option in self._known_options(name, type(thing)).items()
            if key != "name" and (value := getattr(thing, key)) != option.default
        ]
        return f"{name}:{','.join(stated)}" if stated else name

    def _points(self, name: str | None) -> list[Point]:
        """Entry points of one name: ours, and any distribution's."""
        built_in = (
            [EntryPoint(name, self.built_in[name], self.group)]
            if name is not None and name in self.built_in
            else []
        )
        return built_in + [
            point for point in _installed(self.group, tuple(sys.path)) if point.name == name
        ]

    def _owner(self, name: str) -> str:
        """Owner of a name: another distribution where one has it, or a file of the user's own."""
        if (parts := file_spec(name)) is not None:
            return parts.path
        return next(
            (point.dist.name for point in self._points(name) if point.dist is not None), "ostools"
        )

    def _class(self, name: str) -> type[Thing]:
        points = self._points(name)
        if not points:
            raise self.error(f"unknown {self.kind} {name!r}: {nearest(name, self.names())}")
        owners = [point.dist.name if point.dist is not None else "ostools" for point in points]
        if len(points) > 1:
            raise self.error(
                f"{self.kind} {name!r} is offered by {' and by '.join(owners)}: uninstall one, or rename its entry point"
            )
        try:
            loaded = points[0].load()
        except (
            Exception
        ) as error:  # a plugin is somebody else's program: whatever it raises is told in one line
            raise self.error(
                f"{self.kind} {name!r} of {owners[0]} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, self.base)):
            raise self.error(
                f"{self.kind} {name!r} of {owners[0]}: expected a subclass of {self.base.__name__}, found {loaded!r}"
            )
        return loaded

    def _known_options(self, name: str, maker: Any) -> dict[str, _Option]:
        """The options that a class takes: the fields of its dataclass; of a function its
        parameters.
        """
        try:
            return _fields(maker)
        except Exception as error:  # a plugin's annotations can name what is not there
            raise self.error(
                f"{self.kind} {name!r} of {self._owner(name)} cannot be used: {type(error).__name__}: {error}"
            ) from error

    def _options(
        self, name: str, known_options: Mapping[str, _Option], text: str
    ) -> dict[str, Any]:
        options: dict[str, Any] = {}
        # A comma may be a value (a separator's text): only one before another `key=` parts two
        # options.
        for pair in re.split(r",(?=\s*\w+=)", text) if text else []:
            match = _PAIR.fullmatch(pair.lstrip(" "))
            if match is None:
                raise self.error(
                    f"{self.kind} {name!r}: expected options such as key=value, found {pair!r}"
                )
            key, value = match[1], match[2]
            if key not in known_options:
                option_names = (
                    nearest(key, tuple(known_options)) if known_options else "it has none"
                )
                raise self.error(f"{self.kind} {name!r} has no option {key!r}: {option_names}")
            if key in options:
                raise self.error(f"{self.kind} {name!r}: option {key!r} is given twice")
            try:
                options[key] = _read(value, known_options[key].kind)
            except (ValueError, KeyError):
                raise self.error(
                    f"{self.kind} {name!r}: expected {key} to be {_in_words(known_options[key].kind)}, found {value!r}"
                ) from None
        return options


@cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[Point, ...]:
    """Entry points of the distributions on the path. Reads every one's metadata (tens of
    milliseconds), so once for a path.
    """
    return tuple(entry_points(group=group))


def _fields(maker: Any) -> dict[str, _Option]:
    if inspect.isfunction(maker):
        hints = typing.get_type_hints(maker)
        parameters = inspect.signature(maker).parameters.values()
        defaults = {
            one.name: MISSING if one.default is one.empty else one.default for one in parameters
        }
        return {name: _Option(hints.get(name, str), default) for name, default in defaults.items()}
    if not dataclasses.is_dataclass(maker):
        return {}
    hints = typing.get_type_hints(maker)
    return {
        field.name: _Option(hints[field.name], field.default if factory is MISSING else factory())
        for field in dataclasses.fields(maker)
        if field.init
        for factory in (field.default_factory,)
    }


def _read(text: str, kind: Any) -> Any:
    """The value of an option as its type wants it; the first of several types that takes it. Raises
    ValueError.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for choice in sorted(inside, key=lambda choice: choice is str):  # any text is a text: last
            try:
                return _read(text, choice)
            except (ValueError, KeyError):
                continue
        raise ValueError
    if origin is Literal:
        for choice in inside:
            if str(choice) == text:
                return choice
        raise ValueError
    if origin is not None and issubclass(origin, typing.Iterable) and origin is not str:
        return tuple(
            _read(word, inside[0]) for word in re.split(r"[+/ ]", text.strip("()[]")) if word
        )
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
            text.lower()
        ]
    if kind is type(None):
        if text.lower() == "none":
            return None
        raise ValueError
    if kind in (int, float, str):
        return kind(text)
    raise ValueError


def _in_words(kind: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "none",
    }
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return ", or ".join(_in_words(kind_argument) for kind_argument in typing.get_args(kind))
    if typing.get_args(kind):
        return "several of them joined by +"
    return words.get(kind, str(kind))


def _as_text(value: Any) -> str:
    """An option's value as `_read` takes it."""
    return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
