"""Arguments of a call against the annotations of its function: what is none of them is refused
before anything is done.

An annotation may bring a reader of its own: of `Annotated[int, AtLeast(1)]` the function gets what
`AtLeast(1)` makes of the number.

The whole numbers that a caller gives: lengths, seeds, counts; and lengths as users write them,
on the command line and in sweep files. One refusal for what is none, whoever asked for it.
"""

import functools
import inspect
import re
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeGuard, TypeVar, get_args

from ostools.ground.errors import InputError, did_you_mean, short_repr
from ostools.ground.lens import TransformerBridge

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind", bound=type)

_CLASSES: dict[object, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (PathLike, "a path"),
    types.NoneType: (types.NoneType, "None"),
    Callable: (Callable, "a function"),
    TransformerBridge: (TransformerBridge, "a model, as ostools.load_model gives it"),
}
"""Of a class in an annotation: what an argument is an instance of, and how a message calls it.
Numbers of numpy are numbers.
"""
_REFUSED = object()


def checked_arguments(
    error: type[Exception],
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Decorate a function so that it raises `error` for an argument that its annotation does not
    allow.

    Checked are classes, words (`Literal`), lists of words, unions of them, and what an `Annotated`
    brings; a list of words is handed on as a list. Lists of numbers, and tensors, are the
    function's own to check, but no text is one. This decorator has to stand outside of any that
    checks types, so that the message is this one.
    """

    def checking(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        signature = full_signature(function)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
            try:
                bound = signature.bind(*args, **options)
            except TypeError as wrong:
                # A name that is misspelt also leaves another one without a value.
                names = [name for name in signature.parameters if name != "self"]
                what = str(wrong)
                for unknown in options.keys() - set(names):
                    what = f"unexpected keyword argument {unknown!r}; "
                    what += did_you_mean(unknown, names)
                owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                raise error(f"{owner}: {what.rstrip('; ')}; it takes {', '.join(names)}") from None
            for name, value in bound.arguments.items():
                if signature.parameters[name].kind not in variadic:
                    bound.arguments[name] = read_argument(function, name, value, error)
            return function(*bound.args, **bound.kwargs)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return checking


def read_argument(
    function: Callable[..., object], name: str, value: object, error: type[Exception]
) -> object:
    """What a function gets of an argument of that name, by its annotation; raises `error` where
    that does not allow it.
    """
    try:
        return allowed(_hints(function).get(name, object), value)
    except ValueError as wrong:
        raise error(f"{name}: {wrong}") from None


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, object]:
    """The function's annotations. At the first call all that they name is there."""
    return full_hints(function, include_extras=True)


def typed_fields(error: type[Exception]) -> Callable[[Kind], Kind]:
    """Let a dataclass raise `error` for a field that its annotation does not allow."""

    def checking(kind: Kind) -> Kind:
        kind.__init__ = checked_arguments(error)(kind.__init__)
        return kind

    return checking


def allowed(hint: object, value: object) -> object:
    """The value, where an annotation allows it; a list of words as a list, and of an `Annotated`
    what its reader makes of it. Raises `ValueError`, which says what is expected and what is found.
    """
    result = _read(hint, value)
    if result is _REFUSED:
        raise ValueError(_expected(hint, value))
    return result


def _read(hint: object, value: object) -> object:
    """`allowed`, and `_REFUSED` for what is not."""
    parts, kind, inner = parts_of(hint), typing.get_origin(hint) or hint, typing.get_args(hint)
    if len(parts) > 1:
        results = (_read(part, value) for part in parts)
        return next((result for result in results if result is not _REFUSED), _REFUSED)
    if kind is Annotated:
        result = _read(inner[0], value)
        return result if result is _REFUSED else inner[1](result)
    if is_list(hint):
        return _items(inner[0], value)
    return value if _is_allowed(kind, inner, value) else _REFUSED


def _is_allowed(kind: object, words: tuple[object, ...], value: object) -> bool:
    """Whether a value is one of the words of a `Literal`, or of an annotation's class."""
    if kind is Literal:  # to Python True and 1.0 are 1
        return any(type(value) is type(word) and value == word for word in words)
    if kind is tuple or not (type(kind) is type or isinstance(kind, ABCMeta)):
        return True  # a tensor's axes, and what else nobody can tell
    is_truth = isinstance(value, bool) and kind in (int, float)  # numbers to Python only
    return isinstance(value, _CLASSES.get(kind, (kind,))[0]) and not is_truth


def _items(item: object, value: object) -> object:
    """What a list holds, of items of that annotation: words as a list; numbers and tensors as they
    are, the function's own to check, but an iterator as a list: it may be read more than once."""
    is_text = item is str or bool(words_of(item))
    if isinstance(value, str):
        value = [value] if is_text else None  # a text is one word
    # A mapping is no list, and neither is an array without an axis.
    if (
        not isinstance(value, Iterable)
        or isinstance(value, Mapping)
        or getattr(value, "ndim", 1) == 0
    ):
        return _REFUSED
    if isinstance(value, Iterator):
        value = list(value)
    if not is_text:
        return _records(item, value)
    items = list(value)
    return items if all(_read(item, element) is not _REFUSED for element in items) else _REFUSED


def _records(item: object, listed: Iterable[object]) -> Iterable[object]:
    """Records such as (layer, head) as a list, each of its length; other items as they are."""
    fields = typing.get_args(item) if typing.get_origin(item) is tuple else ()
    if not fields or Ellipsis in fields:
        return listed
    records = list(listed)
    for record in records:
        if not isinstance(record, Sized) or len(record) != len(fields):
            raise ValueError(f"expected {len(fields)} numbers each, found {short_repr(record)}")
    return records


def words_of(hint: object) -> tuple[object, ...]:
    """The words that an annotation allows, by themselves or in a list: those of its `Literal`s."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(dict.fromkeys(word for part in typing.get_args(hint) for word in words_of(part)))


def full_signature(function: Callable[..., object]) -> inspect.Signature:
    """The function's signature, with the keywords of `**options: Unpack[SomeTypedDict]` written out
    as parameters.

    A keyword that is left out is False where it is a flag, else None.
    """
    signature = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if typing.get_origin(parameter.annotation) is not typing.Unpack:
            parameters.append(parameter)
            continue
        (group,) = typing.get_args(parameter.annotation)
        for name, hint in typing.get_type_hints(group).items():
            default = False if hint is bool else None
            parameters.append(
                parameter.replace(
                    name=name, kind=parameter.KEYWORD_ONLY, default=default, annotation=hint
                )
            )
    return signature.replace(parameters=parameters)


def defaults_of(function: Callable[..., object]) -> dict[str, Any]:
    """The default of every parameter of `full_signature` that has one."""
    return {
        name: parameter.default
        for name, parameter in full_signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }


def full_hints(
    function: Callable[..., object],
    names: dict[str, object] | None = None,
    include_extras: bool = False,
) -> dict[str, object]:
    """The type hints of every parameter of `full_signature`; `names` are what annotations name
    beside the module's own. `include_extras`: with what an `Annotated` brings.
    """
    inner = inspect.unwrap(function)
    hints = typing.get_type_hints(inner, localns=names, include_extras=include_extras)
    for name, hint in list(hints.items()):
        if typing.get_origin(hint) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(hint)[0])
            del hints[name]
    return hints


def parts_of(hint: object) -> tuple[object, ...]:
    """The annotations of a union; of anything else itself."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def is_list(hint: object) -> bool:
    origin = typing.get_origin(hint)
    if not isinstance(origin, type) or issubclass(origin, Mapping | tuple):
        return False
    return issubclass(origin, Iterable)


def _expected(hint: object, value: object) -> str:
    """What is expected and what is found, as a message says it, with the nearest word; of a list
    the first wrong item.
    """
    words = words_of(hint)
    items = value if words and isinstance(value, list | tuple) else [value]
    wrong = next((item for item in items if item not in words), value)
    suggestion = did_you_mean(wrong, [*map(str, words)]) if isinstance(wrong, str) else ""
    kinds = [", ".join(map(repr, words))] if words else []
    kinds += [_kind_word(part) for part in parts_of(hint) if not words_of(part)]
    expected = f"expected {' or '.join(kinds)}, found {short_repr(wrong)}: {suggestion}"
    return expected.rstrip(": ")


def _kind_word(hint: object) -> str:
    """What an annotation that is no union expects, in words."""
    kind = typing.get_origin(hint) or hint
    if kind is Annotated:
        return _kind_word(typing.get_args(hint)[0])
    if is_list(hint):
        return "a list"
    name = getattr(kind, "__name__", str(kind))
    return _CLASSES.get(kind, (object, f"a {name}"))[1]


_LONGEST = 2**31 - 1
_LAST_SEED = 2**62
_LARGEST = 2**63 - 1  # the largest that torch takes
LONGEST = 1_000_000
"""The largest length that can be written."""
_PART = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?(?::\s*(\d{1,9})\s*)?", re.ASCII)


def whole_numbers(what: str, values: object, least: int = 0, most: int = _LAST_SEED) -> list[int]:
    """Each once, in the order given; a number by itself is a list of one.

    Raises `InputError`, which calls them `what`, for none, for what is no whole number, and for one
    out of range.
    """
    # A number by itself may also be an array without an axis.
    is_one = isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0
    numbers = list(values) if isinstance(values, Iterable) and not is_one else [values]
    if not numbers:
        raise InputError(f"{what}: expected whole numbers of at least {least}, found none")
    checked = [whole_number(what, n, least, most, "whole numbers") for n in numbers]
    return list(dict.fromkeys(checked))


def whole_number(
    what: str, value: object, least: int = 0, most: int = _LARGEST, noun: str = "a whole number"
) -> int:
    """One such number."""
    if not is_whole(value) or not least <= value <= most:
        bound = f"at most {most:,}" if is_whole(value) and value > most else f"at least {least}"
        name = f"{what}: " if what else ""
        raise InputError(f"{name}expected {noun} of {bound}, found {short_repr(value)}")
    return int(value)


@dataclass(frozen=True)
class AtLeast:
    """The reader of an annotation (`ground.arguments`) that takes whole numbers from `least` on."""

    least: int

    def __call__(self, value: object) -> int:
        return whole_number("", value, least=self.least)


def checked_lengths(lengths: object) -> list[int]:
    """Numbers of items, ascending and without doubles."""
    return sorted(whole_numbers("numbers of items", lengths, 1, _LONGEST))


def checked_seeds(seeds: object) -> list[int]:
    """Seeds in their order, without doubles."""
    return whole_numbers("seeds", seeds)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, also one of numpy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_lengths(text: str, what: str = "--lengths", least: int = 1) -> list[int]:
    """`1:512` (both ends included), `4:48:4` (every fourth), `8,16,32`, or these joined by commas,
    as increasing lengths without repeats.

    Raises `InputError`, which calls them `what`, for anything else.
    """
    lengths: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        low, high, step = 0, -1, 1
        if match is not None:
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not least <= low <= high <= LONGEST or not step:
            raise InputError(
                f"{what} {text[:60]!r}: expected a range such as 1:512 or 4:48:4, or a list such "
                f"as 8,16,32, of numbers from {least} to {LONGEST}, found {part.strip()[:20]!r}"
            )
        lengths.update(range(low, high + 1, step))
    return sorted(lengths)


Seed = Annotated[int, AtLeast(0)]
Count = Annotated[int, AtLeast(1)]
Lengths = Annotated[Iterable[int], checked_lengths]

# ---- words that options of several rooms take

Linearisation = Literal["full", "frozen", "frozen-attention", "frozen-norm", "detached"]
"""What is held constant in a derivative: nothing, patterns and norm scales, one of the two, or the
MLPs' activations too.
"""
LINEARISATIONS: tuple[Linearisation, ...] = get_args(Linearisation)
SketchedMethod = Literal["exact", "sketch", "estimate"]
Method = Literal["auto", SketchedMethod]
"""How the norms of a Jacobian are taken; "auto" decides by the model's size and the free memory."""
Norm = Literal["operator", "frobenius"]
Position = Literal["answer", "prompt-end", "last-item"]
"""Where a task's prompt is read (`measure.position`)."""

METHOD_KINDS: dict[str, str] = {"exact": "measured", "sketch": "estimated", "estimate": "estimated"}
"""What a sensitivity's numbers are, by its column `method`."""


def known_norm(methods: Iterable[str]) -> Norm:
    """The norm that every row has: the operator norm, Theorem 5.1's, of exact rows; of others a
    bound of it alone is known.
    """
    return "operator" if all(method == "exact" for method in methods) else "frobenius"
