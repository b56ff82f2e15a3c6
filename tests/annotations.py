"""While tests run, every function of ours is held to its annotations: types by beartype, the axes
of tensors by jaxtyping.

jaxtyping's plugin for pytest puts its decorator on each function of ours. That decorator checks
arguments twice, binds them at every call, and writes its two checks when the function is defined, a
closure's too. Here one check is written at the first call, and a closure is checked the first times
that it is made: over 40% of the tests' time was spent there.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, get_type_hints

import jaxtyping
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError
from jaxtyping._storage import pop_shape_memo, push_shape_memo

_whole = jaxtyping.jaxtyped
CLOSURES = 3
"""How many of the functions that one place makes when another runs are checked: all are the same
code.
"""
_MADE: Counter[CodeType] = Counter()


def install() -> None:
    """Before anything of ours is imported: jaxtyping's hook asks for the decorator by this name."""
    jaxtyping.jaxtyped = _jaxtyped  # pyright: ignore[reportAttributeAccessIssue]


def _jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    return functools.partial(_checked, typechecker=typechecker)


def _checked(function: Any, typechecker: Any) -> Any:
    # A generator's own frames come later; classes hand their __init__ on to jaxtyping.
    if type(function) is not FunctionType or inspect.isgeneratorfunction(function):
        return _whole(function, typechecker=typechecker)
    if "<locals>" in function.__qualname__:
        _MADE[function.__code__] += 1
        if _MADE[function.__code__] > CLOSURES:
            return function
    check: Any = None

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        nonlocal check
        if check is None:
            check = typechecker(_with_its_hints(function))
        push_shape_memo({})
        try:
            return check(*arguments, **named)
        except BeartypeCallHintViolation as error:
            raise TypeCheckError(str(error)) from None
        finally:
            pop_shape_memo()

    return checked


def _with_its_hints(function: FunctionType) -> FunctionType:
    """A copy whose annotations are no texts any more; what only a type checker imports may be
    anything.
    """
    arguments = (function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy = FunctionType(*arguments, function.__closure__)
    for name in ("__kwdefaults__", "__module__", "__qualname__"):
        setattr(copy, name, getattr(function, name))
    copy.__annotations__ = {name: _hint(function, name) for name in function.__annotations__}
    return copy


def _hint(function: FunctionType, name: str) -> Any:
    def asked() -> None: ...

    asked.__annotations__ = {name: function.__annotations__[name]}
    try:
        return get_type_hints(asked, function.__globals__, include_extras=True)[name]
    except Exception:
        return Any
