"""Registry of classes by name, with options in one word: `separator:every=3`, and third parties'
beside the built-in ones.

A distribution adds its own by an entry point; nothing of it is imported until its name is used or
the names are listed. Its options are the fields of its dataclass, read by their types (pydantic).
The same grammar serves the tasks of `ostools`.
"""

import dataclasses
import hashlib
import inspect
import itertools
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from ostools.ground import nearest, parts_of

Thing = TypeVar("Thing")
Product = TypeVar("Product")
Point: TypeAlias = Any
"""An entry point: importlib.metadata's, or its backport's, which takes over the search in a process
that imports it.
"""


_FOLDER = 5  # how modulefinder marks a package, in a constant of its own (`_PKG_DIRECTORY`)
_OF_A_FILE = re.compile(r"\s*(.+\.py):([^\W\d]\w*)(?::(.*))?", re.DOTALL)
LOADED: dict[str, str] = {}
"""The files of the user's own that ran in this process, and those that they import, each with the
SHA-256 of what ran: a provenance names them.
"""


def file_spec(spec: str) -> tuple[str, str, str] | None:
    """Path, name and options of PATH.py:NAME or PATH.py:NAME:OPTIONS; None of another text."""
    match = _OF_A_FILE.fullmatch(spec)
    return None if match is None else (match[1], match[2], match[3] or "")


def _loaded_from(path: str, name: str) -> Any:
    """What a file of the user's own calls `name`, once it has run. Raises whatever the file raises.

    The module is called by the path as it was typed, and so is what it defines (`Registry.label`).
    What it imports runs once in a process: where that has changed since, it is refused.
    """
    for file in own_files(path)[1:]:
        if LOADED.get(file, now := _hash(file)) != now:
            raise ImportError(f"{file} has changed since it was imported: start a new process")
    loader = SourceFileLoader(path, path)
    module = module_from_spec(ModuleSpec(path, loader, origin=path))
    sys.modules[path] = module  # where dataclasses look up what annotations name
    loader.exec_module(module)
    # Asked again: the file itself may have put folders into `sys.path`.
    LOADED.update((file, _hash(file)) for file in own_files(path))
    return getattr(module, name)


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class _OwnImports(ModuleFinder):
    """It follows folders without an `__init__.py` too, which Python's own ends in an error at."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        spec = PathFinder.find_spec(name, self.path if path is None else path)
        if spec is None or spec.origin is not None or not spec.submodule_search_locations:
            return super().find_module(name, path, parent)  # pyright: ignore
        return None, next(iter(spec.submodule_search_locations)), ("", "", _FOLDER)

    def load_package(self, fqname: str, pathname: str) -> Any:
        if Path(pathname, "__init__.py").exists():
            return super().load_package(fqname, pathname)  # pyright: ignore
        package: Any = self.add_module(fqname)  # pyright: ignore
        package.__path__ = [pathname]
        return package


def own_files(path: str) -> list[str]:
    """A file of the user's own, and those that it imports, and they: by their import statements, of
    what lies in no environment of Python's."""
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    folders = [
        folder
        for folder in sys.path
        if prefixes.isdisjoint(Path(folder).resolve().parents)
        and Path(folder).name not in ("site-packages", "dist-packages")  # a user's, outside of both
    ]
    finder = _OwnImports(folders, excludes=["ostools"])
    finder.run_script(path)
    modules: Any = finder.modules.values()
    files = {module.__file__ for module in modules} - {path, None}
    return [path, *sorted(map(str, files))]


class Listed(NamedTuple):
    """One line of a listing. `options` as one would write them; `summary` the first sentence of its
    docstring, or what is wrong.
    """

    name: str
    owner: str
    options: str
    summary: str
    usable: bool


Options: TypeAlias = Mapping[str, inspect.Parameter]
"""The options of a class or a function by their names, each with its type and its default."""


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
        third_party = {point.name for point in _installed(self.group, tuple(sys.path))}
        return (*self.built_in, *sorted(third_party - set(self.built_in)))

    def make(self, spec: str) -> Thing:
        """The thing that `NAME:key=value,key=value` describes; a class with a field `name` gets the
        name.

        Raises `error` for an unknown name or option (with the nearest), a value of the wrong type,
        and a distribution that cannot be imported, offers something else, or uses a name that is
        taken.
        """
        name, _, text = spec.partition(":")
        return self._construct(name.strip(), self._class(name.strip()), text)

    def make_from_file(self, spec: str) -> Thing:
        """The thing of `PATH.py:NAME` or `PATH.py:NAME:key=value,key=value`, where NAME is a class,
        or a function that returns a thing; its options are the fields of the dataclass, or the
        parameters of the function.

        It runs the file: what it names has to be typed by the user, and come from nowhere else.
        Raises `error` for a file that cannot be read, raises, or has no such name, and for what is
        or gives none of this kind.
        """
        path, name, options = file_spec(spec) or ("", "", "")
        with self._running(spec, "cannot be loaded: "):
            maker = _loaded_from(path, name)
        thing = self._construct(f"{path}:{name}", maker, options) if callable(maker) else maker
        if not isinstance(thing, self.base):
            raise self.error(
                f"{self.kind} {spec!r}: expected a subclass of {self.base.__name__}, or a function "
                f"that returns one's object, found {thing!r:.60}"
            )
        return thing

    def listing(self) -> list[Listed]:
        """Listing of every name for people: its owner, its options, its summary; what cannot be
        used says why.
        """
        rows = []
        for name in self.names():
            try:
                maker = self._class(name)
                options = self._options(name, maker)
            except self.error as error:
                rows.append(Listed(name, self._owner(name), "", str(error), False))
                continue
            words = ", ".join(
                key if option.default is option.empty else f"{key}={_as_text(option.default)}"
                for key, option in options.items()
                if key != "name"
            )
            paragraph = (inspect.getdoc(maker) or "").split("\n\n")[0].replace("\n", " ")
            summary = re.split(r"(?<=\.)\s", paragraph)[0]
            rows.append(Listed(name, self._owner(name), words, summary, True))
        return rows

    def label(self, thing: Thing) -> str:
        """Text of which `make` would make it, with every option that is not the default; its repr
        where no text makes it.
        """
        place = f"{type(thing).__module__}:{type(thing).__qualname__}"
        if file_spec(place) is not None:  # of a file of the user's own
            return self._with_options(place, thing)
        for name in (str(getattr(thing, "name", "")), *self.names()):
            if any(point.value == place for point in self._points(name)):
                text = self._with_options(name, thing)
                try:  # an option may hold what looks like another option
                    return text if self.make(text) == thing else repr(thing)
                except self.error:
                    break
        return repr(thing)

    def _with_options(self, name: str, thing: Thing) -> str:
        stated = [
            f"{key}={_as_text(value)}"
            for key, option in self._options(name, type(thing)).items()
            if key != "name" and (value := getattr(thing, key)) != option.default
        ]
        return f"{name}:{','.join(stated)}" if stated else name

    def _points(self, name: str) -> list[Point]:
        """Entry points of one name: ours, and any distribution's."""
        ours = [EntryPoint(name, self.built_in[name], self.group)] if name in self.built_in else []
        installed = _installed(self.group, tuple(sys.path))
        return ours + [point for point in installed if point.name == name]

    def _owner(self, name: str) -> str:
        """Owner of a name: another distribution where one has it, or a file of the user's own."""
        if (parts := file_spec(name)) is not None:
            return parts[0]
        return next((point.dist.name for point in self._points(name) if point.dist), "ostools")

    def _class(self, name: str) -> type[Thing]:
        points = self._points(name)
        if not points:
            raise self.error(f"unknown {self.kind} {name!r}: {nearest(name, self.names())}")
        if len(points) > 1:
            owners = [point.dist.name if point.dist is not None else "ostools" for point in points]
            raise self.error(
                f"{self.kind} {name!r} is offered by {' and by '.join(owners)}: uninstall one, or "
                "rename its entry point"
            )
        with self._running(name, "cannot be imported: "):
            loaded = points[0].load()
        if not (isinstance(loaded, type) and issubclass(loaded, self.base)):
            raise self.error(
                f"{self.kind} {name!r} of {self._owner(name)}: expected a subclass of "
                f"{self.base.__name__}, found {loaded!r}"
            )
        return loaded

    def _construct(self, name: str, maker: Callable[..., Product], text: str) -> Product:
        """The thing with the options of a text; a field `name` gets the name."""
        options = self._given_options(name, self._options(name, maker), text)
        with self._running(name):
            return maker(**options)

    def _given_options(self, name: str, known_options: Options, text: str) -> dict[str, object]:
        """The options of a text, read by their types, and the name where it is a field."""
        options: dict[str, object] = {"name": name} if "name" in known_options else {}
        # A comma may be a value (a separator's text): only one before another `key=` parts two
        # options.
        for pair in re.split(r",(?=\s*\w+=)", text) if text else []:
            key, _, value = pair.lstrip().partition("=")
            if key not in known_options:
                names = [option for option in known_options if option != "name"]
                raise self.error(
                    f"{self.kind} {name!r} has no option {key!r}: {nearest(key, names)}"
                )
            if key in options:
                raise self.error(f"{self.kind} {name!r}: option {key!r} is given twice")
            try:
                options[key] = _read(value, known_options[key].annotation)
            except ValueError as error:
                remedy = f"; give another {self.kind} by itself" if "," in value else ""
                raise self.error(
                    f"{self.kind} {name!r}: {key}: {error}, found {value!r}{remedy}"
                ) from None
        return options

    def _options(self, name: str, maker: Callable[..., object]) -> Options:
        """The options that a class takes, the fields of its dataclass; of a function its
        parameters. A class of several names says by `takes` which of them a name has.
        """
        if not any((dataclasses.is_dataclass(maker), inspect.isfunction(maker))):
            return {}
        with self._running(name, "cannot be used: "):  # annotations can name what is not there
            hints = typing.get_type_hints(maker)
        takes = getattr(maker, "takes", lambda *_: True)
        return {
            key: parameter.replace(annotation=hints.get(key, str))
            for key, parameter in inspect.signature(maker).parameters.items()
            if takes(name, key)
        }

    @contextmanager
    def _running(self, name: str, how: str = "") -> Iterator[None]:
        """Refuse what somebody else's program raises, in one line with its owner; as it is, where
        it is a refusal of ours and `how` says nothing more.
        """
        try:
            yield
        except Exception as error:
            if not how and isinstance(error, self.error):
                raise
            owner = f"{self.kind} {name!r} of {self._owner(name)}"
            raise self.error(f"{owner}: {how}{type(error).__name__}: {error}") from error


@cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[Point, ...]:
    """Entry points of the distributions on the path. Reads every one's metadata (tens of
    milliseconds), so once for a path.
    """
    return tuple(entry_points(group=group))


def _read(text: str, kind: Any) -> object:
    """The value of an option as its type wants it: None for "none", the text itself, or several
    values joined by +; of several types the first that takes it. Raises `ValueError`, which says
    what is wrong.
    """
    reasons = []
    values = (None, text) if text.lower() == "none" else (text, tuple(text.split("+")))
    for value, choice in itertools.product(values, parts_of(kind)):
        try:
            option = TypeAdapter(cast(Any, choice)).validate_python(value)
        except ValidationError as error:
            reasons.append(error.errors()[0]["msg"])
            continue
        # A whole number only of a text that is one: 1.0 may mean a share.
        if type(option) is not int or re.fullmatch(r"\s*[+-]?\d+\s*", text):
            return option
        reasons.append("expected a whole number")
    raise ValueError(reasons[0])


def _as_text(value: object) -> str:
    """An option's value as `_read` takes it."""
    return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
