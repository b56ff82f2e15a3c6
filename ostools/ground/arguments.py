"""Arguments of a call against the annotations of its function: what is none of them is refused
before anything is done.

An annotation may bring a reader of its own: of `Annotated[int, at_least(1)]` the function gets what
`at_least(1)` makes of the number.
"""

from __future__ import annotations

import abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sized
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal, ParamSpec, TypeGuard, TypeVar

from ostools.ground.errors import did_you_mean, short_repr
from ostools.ground.lens import TransformerBridge

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind", bound=type)

_CLASSES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (PathLike, "a path"),
    PathLike: (PathLike, "a path"),
    types.NoneType: (types.NoneType, "None"),
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

        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
            names = list(signature.parameters)
            try:
                bound = signature.bind(*args, **options)
            except TypeError as wrong:
                # A name that is misspelt also leaves another one without a value.
                what, suggestion = str(wrong), ""
                for unknown in options.keys() - set(names):
                    what = f"got an unexpected keyword argument {unknown!r}"
                    suggestion = did_you_mean(unknown, names)
                raise error(
                    f"{function.__name__}: {what}; {suggestion}it takes {', '.join(names)}"
                ) from None
            for name, value in bound.arguments.items():
                kind = signature.parameters[name].kind
                if kind is inspect.Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(
                        read_argument(function, name, item, error) for item in value
                    )
                elif kind is not inspect.Parameter.VAR_KEYWORD:
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
    what its readers make of it. Raises `ValueError`, which says what is expected and what is found.
    """
    result = _read(hint, value)
    if result is _REFUSED:
        raise ValueError(_expected(hint, value))
    return result


def _read(hint: object, value: object) -> object:
    """`allowed`, and `_REFUSED` for what is not."""
    parts, kind = parts_of(hint), typing.get_origin(hint) or hint
    if len(parts) > 1:
        results = (_read(part, value) for part in parts)
        return next((result for result in results if result is not _REFUSED), _REFUSED)
    if kind is Annotated:
        inner, *readers = typing.get_args(hint)
        result = _read(inner, value)
        for read in readers if result is not _REFUSED else ():
            result = read(result)
        return result
    if is_list(hint):
        return _items(hint, value)
    return value if _is_one(hint, kind, value) else _REFUSED


def _items(hint: object, value: object) -> object:
    """What a list of the annotation holds: words, and tuples of one length, as a list, others as
    they are. Numbers and tensors in it are the function's own to check."""
    item = typing.get_args(hint)[0]
    is_text = item is str or any(isinstance(word, str) for word in words_of(item))
    if isinstance(value, str):
        value = [value] if is_text else None  # a text is one word
    # A mapping is no list, and neither is an array without an axis.
    is_listed = isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0
    if not is_listed or isinstance(value, Mapping):
        return _REFUSED
    if not (is_text or _tuple_length(item)):
        return value
    items = list(typing.cast(Iterable[object], value))
    return items if all(_is_item(item, element) for element in items) else _REFUSED


def _tuple_length(hint: object) -> int:
    """The length of the tuples that an annotation allows; 0 for any length, and for anything
    else.
    """
    fields = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
    return 0 if Ellipsis in fields[-1:] else len(fields)


def _is_item(hint: object, value: object) -> bool:
    """Whether a value is one of the words, or has the length of the tuple."""
    if length := _tuple_length(hint):
        return isinstance(value, Sized) and len(value) == length
    return _read(hint, value) is not _REFUSED


def _is_one(hint: object, kind: object, value: object) -> bool:
    """Whether a value is one of the words, an instance of the class, or what nobody can tell."""
    if kind is Literal:
        # To Python True and 1.0 are 1.
        words = typing.get_args(hint)
        return any(type(value) is type(word) and value == word for word in words)
    if kind is Callable:
        return callable(value)
    if not _is_class(kind) or kind is tuple:
        return True
    is_truth = isinstance(value, bool) and kind in (int, float)  # numbers to Python only
    return isinstance(value, _CLASSES.get(kind, (kind,))[0]) and not is_truth


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
        group = _group(function, parameter)
        if group is None:
            parameters.append(parameter)
            continue
        parameters += [
            inspect.Parameter(
                name,
                parameter.KEYWORD_ONLY,
                default=False if hint is bool else None,
                annotation=hint,
            )
            for name, hint in typing.get_type_hints(group).items()
        ]
    return signature.replace(parameters=parameters)


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
    for parameter in inspect.signature(inner).parameters.values():
        if (group := _group(inner, parameter)) is not None:
            hints |= typing.get_type_hints(group)
            del hints[parameter.name]
    return hints


def _group(function: Callable[..., object], parameter: inspect.Parameter) -> type | None:
    """The TypedDict of `**options: Unpack[...]`; None for any other parameter."""
    annotation = parameter.annotation
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD or "Unpack[" not in str(annotation):
        return None
    if isinstance(annotation, str):
        # "Unpack[Name]": only this one is looked up, as the others cost time at import
        name = annotation.removeprefix("Unpack[").removesuffix("]")
        return inspect.unwrap(function).__globals__[name]
    return typing.get_args(annotation)[0]


def parts_of(hint: object) -> tuple[object, ...]:
    """The annotations of a union; of anything else itself."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def is_list(hint: object) -> bool:
    origin = typing.get_origin(hint)
    return (
        isinstance(origin, type)
        and issubclass(origin, Iterable)
        and not issubclass(origin, Mapping | tuple)
    )


def _is_class(hint: object) -> TypeGuard[type]:
    """Whether it is a class that an argument is an instance of; a protocol and a tensor's axes are
    none.
    """
    is_class = type(hint) is type or (
        isinstance(hint, abc.ABCMeta) and not getattr(hint, "_is_protocol", False)
    )
    return is_class and hint is not object


def _expected(hint: object, value: object) -> str:
    """What is expected and what is found, as a message says it, with the nearest word; of a list
    the first wrong item.
    """
    words = words_of(hint)
    items = value if words and isinstance(value, list | tuple) else [value]
    wrong = next((item for item in items if item not in words), value)
    suggestion = did_you_mean(wrong, [*map(str, words)]) if isinstance(wrong, str) else ""
    kinds = [", ".join(map(repr, words)), *map(_kind_word, parts_of(hint))]
    if words:
        kinds = [kind for kind in kinds if kind != "a list"]
    expected = " or ".join(dict.fromkeys(filter(None, kinds)))
    return f"expected {expected}, found {short_repr(wrong)}: {suggestion}".rstrip(": ")


def _kind_word(hint: object) -> str:
    """What an annotation that is no union expects, in words; empty for words and for what nobody
    can tell.
    """
    kind = typing.get_origin(hint) or hint
    if kind is Annotated:
        kind = typing.get_args(hint)[0]
    if is_list(hint):
        return "a list"
    if kind is Callable:
        return "a function"
    return _CLASSES.get(kind, (kind, f"a {kind.__name__}"))[1] if _is_class(kind) else ""
