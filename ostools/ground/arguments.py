"""Arguments of a call against the annotations of its function: what is none of them is refused
before anything is done.
"""

from __future__ import annotations

import abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from ostools.ground.errors import did_you_mean, short_repr

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind", bound=type)

_FUNCTION: Any = Callable
_CLASSES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (PathLike, "a path"),
    PathLike: (PathLike, "a path"),
    types.NoneType: (types.NoneType, "None"),
}
"""Of a class in an annotation: what an argument is an instance of, and how a message calls it.
Numbers of numpy are numbers.
"""


def checked_arguments(
    error: type[Exception],
    class_words: Mapping[type, str] | None = None,
    advice: Callable[[object, Sequence[type]], str] | None = None,
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Decorate a function so that it raises `error` for an argument that its annotation does not
    allow.

    Checked are classes, words (`Literal`), lists of words, and unions of them; a list of words is
    handed on as a list. Lists of numbers, and tensors, are the function's own to check, but no text
    is one. This decorator has to stand outside of any that checks types, so that the message is
    this one.

    class_words: how a message calls a class. advice: the end of the message, by the argument and
    the classes that were expected; empty where there is none.
    """

    def checking(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        signature = full_signature(function)
        # At the first call all that the annotations name is there.
        hints_of = functools.cache(full_hints)

        def checked_value(name: str, value: Any) -> Any:
            hint = hints_of(function).get(name, Any)
            try:
                return allowed(hint, value, class_words)
            except ValueError as wrong:
                classes = list(filter(_is_class, parts_of(hint)))
                end = "" if advice is None else advice(value, classes)
                raise error(f"{name}: {wrong}{end}") from None

        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
            try:
                bound = signature.bind(*args, **options)
            except TypeError as wrong:
                names = list(signature.parameters)
                strange = [did_you_mean(name, names) for name in options if name not in names]
                suggestion = strange[0] if strange else ""
                raise error(
                    f"{function.__name__}: {wrong}; {suggestion}it takes {', '.join(names)}"
                ) from None
            for name, value in bound.arguments.items():
                kind = signature.parameters[name].kind
                if kind is inspect.Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(checked_value(name, item) for item in value)
                elif kind is not inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = checked_value(name, value)
            return function(*bound.args, **bound.kwargs)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return checking


def typed_fields(error: type[Exception]) -> Callable[[Kind], Kind]:
    """Let a dataclass raise `error` for a field that its annotation does not allow."""

    def checking(kind: Kind) -> Kind:
        kind.__init__ = checked_arguments(error)(kind.__init__)
        return kind

    return checking


def allowed(hint: Any, value: Any, class_words: Mapping[type, str] | None = None) -> Any:
    """The value, where an annotation allows it; a list of words as a list. Raises `ValueError`,
    which says what is expected and what is found.
    """
    for part in parts_of(hint):
        if is_list(part) and (items := _items(part, value)) is not None:
            return items
        if not is_list(part) and _is_one(part, value):
            return value
    raise ValueError(_expected(hint, value, class_words or {}))


def _items(hint: Any, value: Any) -> Any:
    """What a list of the annotation holds: words, and tuples of one length, as a list, others as
    they are; None for no list. Numbers and tensors in it are the function's own to check."""
    item = typing.get_args(hint)[0]
    fields = _fields(item)
    is_text = item is str or any(isinstance(word, str) for word in words_of(item))
    if isinstance(value, str):
        value = [value] if is_text else None  # a text is one word
    if not _has_items(value):
        return None
    if fields:
        return _rows_of(value, len(fields))
    if not is_text:
        return value
    words = list(value)
    return words if all(_is_one(item, word) for word in words) else None


def _rows_of(value: Iterable[Any], length: int) -> list[Any] | None:
    """The tuples, where all are of that length."""
    rows = list(value)
    are_of_one_length = all(isinstance(row, Sized) and len(row) == length for row in rows)
    return rows if are_of_one_length else None


def _fields(item: Any) -> tuple[Any, ...]:
    """The annotations of a tuple of one length; none of anything else."""
    fields = typing.get_args(item) if typing.get_origin(item) is tuple else ()
    return () if fields and fields[-1] is Ellipsis else fields


def _has_items(value: object) -> bool:
    """Whether a value is a list of any kind: no mapping, and no array without an axis."""
    is_list_like = isinstance(value, Iterable) and not isinstance(value, Mapping)
    return is_list_like and getattr(value, "ndim", 1) != 0


def _is_one(hint: Any, value: Any) -> bool:
    """Whether a value is one of the words, an instance of the class, or what nobody can tell."""
    if len(parts := parts_of(hint)) > 1:
        return any(_is_one(part, value) for part in parts)
    kind = typing.get_origin(hint) or hint
    if kind is Literal:
        # To Python True and 1.0 are 1.
        words = typing.get_args(hint)
        return any(type(value) is type(word) and value == word for word in words)
    if kind is _FUNCTION:
        return callable(value)
    if not _is_class(kind) or kind is tuple:
        return True
    is_truth = isinstance(value, bool) and hint in (int, float)  # numbers to Python only
    return isinstance(value, _CLASSES.get(kind, (kind,))[0]) and not is_truth


def words_of(hint: Any) -> tuple[Any, ...]:
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
    parameters = []
    for parameter in signature.parameters.values():
        group = _group(function, parameter)
        hints = {} if group is None else typing.get_type_hints(group)
        parameters += (
            [parameter]
            if group is None
            else [
                inspect.Parameter(
                    name,
                    parameter.KEYWORD_ONLY,
                    default=False if hint is bool else None,
                    annotation=hint,
                )
                for name, hint in hints.items()
            ]
        )
    return signature.replace(parameters=parameters)


def full_hints(
    function: Callable[..., object], names: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The type hints of every parameter of `full_signature`; `names` are what annotations name
    beside the module's own.
    """
    inner = inspect.unwrap(function)
    hints = typing.get_type_hints(inner, localns=names)
    for parameter in inspect.signature(inner).parameters.values():
        if (group := _group(inner, parameter)) is not None:
            hints |= typing.get_type_hints(group)
            del hints[parameter.name]
    return hints


def _group(function: Callable[..., object], parameter: inspect.Parameter) -> type | None:
    """The TypedDict of `**options: Unpack[...]`; None for any other parameter."""
    annotation: Any = parameter.annotation
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD or "Unpack[" not in str(annotation):
        return None
    if isinstance(
        annotation, str
    ):  # "Unpack[Name]": only this one is looked up, as the others cost time at import
        return inspect.unwrap(function).__globals__[
            annotation.removeprefix("Unpack[").removesuffix("]")
        ]
    return typing.get_args(annotation)[0]


def parts_of(hint: Any) -> tuple[Any, ...]:
    """The annotations of a union; of anything else itself."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def is_list(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return (
        isinstance(origin, type)
        and issubclass(origin, Iterable)
        and not issubclass(origin, Mapping | tuple)
    )


def _is_class(hint: Any) -> bool:
    """Whether it is a class that an argument is an instance of; a protocol and a tensor's axes are
    none.
    """
    is_class = type(hint) is type or (
        isinstance(hint, abc.ABCMeta) and not getattr(hint, "_is_protocol", False)
    )
    return is_class and hint is not object


def _expected(hint: Any, value: Any, class_words: Mapping[type, str]) -> str:
    """What is expected and what is found, as a message says it, with the nearest word; of a list
    the first wrong item.
    """
    words = words_of(hint)
    items = value if words and isinstance(value, list | tuple) else [value]
    wrong = next((item for item in items if item not in words), value)
    question = (
        f": {did_you_mean(wrong, list(map(str, words))).rstrip()}"
        if words and isinstance(wrong, str)
        else ""
    )
    expected = [", ".join(map(repr, words))] * bool(words) + _in_words(hint, class_words)
    return f"expected {' or '.join(dict.fromkeys(expected))}, found {short_repr(wrong)}{question.removesuffix(': ')}"


def _in_words(hint: Any, class_words: Mapping[type, str]) -> list[str]:
    """What an annotation allows beside words."""
    texts = []
    for part in parts_of(hint):
        kind = typing.get_origin(part) or part
        if is_list(part):
            (item, *_) = typing.get_args(part)
            of_numbers = "whole numbers" if item is int else "a list"
            rows = f"a list of ({', '.join(map(_name, typing.get_args(item)))})"
            noun = rows if typing.get_origin(item) is tuple else of_numbers
            texts += [] if words_of(part) else [noun]
        elif kind is _FUNCTION:
            texts.append("a function")
        elif _is_class(kind):
            article = "an" if kind.__name__[0] in "AEIOU" else "a"
            of_class = _CLASSES.get(kind, (kind, f"{article} {kind.__name__}"))[1]
            texts.append(class_words.get(kind) or of_class)
    return texts


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", "...")
