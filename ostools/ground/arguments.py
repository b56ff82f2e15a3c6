"""Arguments of a call against the annotations of its function: what is none of them is refused
before anything is done.

pydantic decides, by an adapter of each annotation, which is made at the first call.
"""

from __future__ import annotations

import abc
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from ostools.ground.errors import did_you_mean, short_repr

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

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
        hints_of = functools.cache(
            full_hints
        )  # at the first call all that the annotations name is there

        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
            try:
                bound = signature.bind(*args, **options)
            except TypeError as wrong:
                names = signature.parameters
                strange = next((name for name in options if name not in names), None)
                suggestion = "" if strange is None else did_you_mean(strange, list(names))
                raise error(
                    f"{function.__name__}: {wrong}; {suggestion}it takes {', '.join(names)}"
                ) from None
            for name, value in bound.arguments.items():
                hint, kind = hints_of(function).get(name, Any), signature.parameters[name].kind
                items = () if kind is inspect.Parameter.VAR_KEYWORD else (value,)
                for item in value if kind is inspect.Parameter.VAR_POSITIONAL else items:
                    try:
                        checked_item = allowed(hint, item, class_words)
                    except ValueError as wrong:
                        end = (
                            ""
                            if advice is None
                            else advice(item, list(filter(_is_class, parts_of(hint))))
                        )
                        raise error(f"{name}: {wrong}{end}") from None
                    bound.arguments[name] = value if item is not value else checked_item
            return function(*bound.args, **bound.kwargs)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return checking


def allowed(hint: Any, value: Any, class_words: Mapping[type, str] | None = None) -> Any:
    """The value, where an annotation allows it. Raises `ValueError`, which says what is expected
    and what is found.
    """
    try:
        return _validator(hint)(value)
    except ValueError:
        raise ValueError(_expected(hint, value, class_words or {})) from None


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


@functools.cache
def _validator(hint: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(_schema(hint)).validate_python


def _schema(hint: Any) -> Any:
    """The annotation as pydantic is to read it."""
    from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema
    from pydantic_core import core_schema

    parts = parts_of(hint)
    if len(parts) > 1:
        return Annotated[
            functools.reduce(operator.or_, map(_schema, parts)), Field(union_mode="left_to_right")
        ]
    if typing.get_origin(hint) is Literal:
        return Annotated[hint, BeforeValidator(functools.partial(_word, typing.get_args(hint)))]
    if is_list(hint):
        item = typing.get_args(hint)[0]
        is_text = item is str or (
            bool(words_of(item)) and all(isinstance(word, str) for word in words_of(item))
        )
        return (
            Annotated[list[_schema(item)], BeforeValidator(_listed)]
            if is_text
            else Annotated[Any, AfterValidator(_items)]
        )
    if _FUNCTION in (typing.get_origin(hint), hint):
        return Callable
    kind = typing.get_origin(hint) or hint
    if not _is_class(kind) or kind is tuple:
        return Any
    instance = core_schema.is_instance_schema(
        _CLASSES.get(kind, (kind,))[0]
    )  # not InstanceOf: that reads dataclasses
    checks = [AfterValidator(_no_truth)] if hint in (int, float) else []
    return Annotated[Any, GetPydanticSchema(lambda _source, _handler: instance), *checks]


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


def _listed(value: Any) -> Any:
    """The list of what can be gone through; a text is one word."""
    if isinstance(value, Mapping):
        raise ValueError
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value] if isinstance(value, str) else value
    try:
        return list(value)
    except TypeError:  # an array without an axis
        raise ValueError from None


def _word(words: tuple[Any, ...], value: Any) -> Any:
    """The value, where it is one of the words and of its class: to Python True and 1.0 are 1."""
    if not any(
        isinstance(value, type(word)) and isinstance(value, bool) == isinstance(word, bool)
        for word in words
    ):
        raise ValueError
    return value


def _items(value: Any) -> Any:
    """The value, where it has items; a text counts as one value."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError
    return value


def _no_truth(value: Any) -> Any:
    """True and False are numbers to Python only."""
    if isinstance(value, bool):
        raise ValueError
    return value


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
            texts += (
                []
                if words_of(part)
                else ["whole numbers" if int in typing.get_args(part) else "a list"]
            )
        elif kind is _FUNCTION:
            texts.append("a function")
        elif _is_class(kind):
            texts.append(
                class_words.get(kind) or _CLASSES.get(kind, (kind, f"a {kind.__name__}"))[1]
            )
    return texts
