"""Arguments of a call against the annotations of its function: another type is refused before the function does anything."""

from __future__ import annotations

import abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ostools.ground.errors import did_you_mean, short_repr

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

_FUNCTION: Any = Callable
_TYPES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (PathLike, "a path"),
    _FUNCTION: (_FUNCTION, "a function"),
    types.NoneType: (types.NoneType, "None"),
}
"""Of the types that are checked: what an argument is an instance of, and how a message calls it."""


def checked_arguments(
    error: type[Exception],
    class_words: Mapping[type, str] | None = None,
    advice: Callable[[object, Sequence[type]], str] | None = None,
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """The function, which raises `error` for an argument that is not what its annotation says, before it does anything.

    Checked are parameters of one class (a number, a text, a model), or of several with `|`. Others, such as lists, are the
    function's own to check. `class_words`: how a message calls a class. `advice`: the end of the message, by what was given
    and the classes that were expected; empty where there is none.
    """

    def checking(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        signature = full_signature(function)
        kinds_of = functools.cache(_kinds)  # asked at the first call, when all that the annotations name is there

        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
            kinds = kinds_of(function)
            try:
                arguments = signature.bind(*args, **options).arguments
            except TypeError as wrong:
                names = signature.parameters
                strange = next((name for name in options if name not in names), None)
                suggestion = "" if strange is None else did_you_mean(strange, list(names))
                raise error(f"{function.__name__}: {wrong}; {suggestion}it takes {', '.join(names)}") from None
            for name, value in _bound_arguments(signature, arguments):
                if name in kinds and not any(_is(value, kind) for kind in kinds[name]):
                    end = "" if advice is None else advice(value, kinds[name])
                    raise error(
                        f"{name}: expected {_words(kinds[name], class_words or {})}, found {short_repr(value)}{end}"
                    )
            return function(*args, **options)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return checking


def full_signature(function: Callable[..., object]) -> inspect.Signature:
    """The function's signature, with the keywords of `**options: Unpack[SomeTypedDict]` written out as parameters.

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
                    name, parameter.KEYWORD_ONLY, default=False if hint is bool else None, annotation=hint
                )
                for name, hint in hints.items()
            ]
        )
    return signature.replace(parameters=parameters)


def full_hints(function: Callable[..., object]) -> dict[str, Any]:
    """The type hints of every parameter of `full_signature`."""
    inner = inspect.unwrap(function)
    hints = typing.get_type_hints(inner)
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
    if isinstance(annotation, str):  # "Unpack[Name]": only this one is looked up, as the others cost time at import
        return inspect.unwrap(function).__globals__[annotation.removeprefix("Unpack[").removesuffix("]")]
    return typing.get_args(annotation)[0]


def _bound_arguments(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Bound arguments with their names; those of `*names` one by one."""
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((name, element) for element in value)
        elif kind is not inspect.Parameter.VAR_KEYWORD:
            yield name, value


def _kinds(function: Callable[..., object]) -> dict[str, list[type]]:
    """The classes of each parameter that is checked: what may also be a name (a task, a prompt) the function looks up."""
    kinds_by_name = {}
    for name, hint in full_hints(function).items():
        parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else [hint]
        kinds = [_kind(part) for part in parts]
        if None not in kinds and (str not in kinds or set(kinds) <= _TYPES.keys()):
            kinds_by_name[name] = kinds
    return kinds_by_name


def _kind(part: Any) -> type | None:
    """The class of one part of an annotation; None for lists, tensors, and whatever else a class does not say."""
    origin = typing.get_origin(part)
    if origin is typing.Literal:
        kinds = {type(value) for value in typing.get_args(part)}
        return kinds.pop() if kinds in ({str}, {bool}, {int}) else None
    if _FUNCTION in (origin, part):
        return _FUNCTION
    is_class = type(part) is type or (isinstance(part, abc.ABCMeta) and not getattr(part, "_is_protocol", False))
    return part if is_class and origin is None and part is not object else None


def _is(value: object, kind: type) -> bool:
    """Numbers of numpy are numbers; True and False are none."""
    of = _TYPES.get(kind, (kind, ""))[0]
    return isinstance(value, of) and (kind is bool or not isinstance(value, bool) or kind not in (int, float))


def _words(kinds: Iterable[type], class_words: Mapping[type, str]) -> str:
    words = (class_words.get(kind) or _TYPES.get(kind, (kind, f"a {kind.__name__}"))[1] for kind in kinds)
    return " or ".join(dict.fromkeys(words))
