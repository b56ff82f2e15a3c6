"""Arguments of another type than the annotation says are refused by name, before anything is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import pytest

from hooks import HookError
from hooks.errors import checked_arguments


@checked_arguments(HookError, {dict: "a table"})
def taken(
    number: int,
    share: float | None = None,
    *names: str,
    on: bool = True,
    way: Literal["up", "down"] = "up",
    told: Callable[[int], None] | None = None,
    table: dict | None = None,  # pyright: ignore[reportMissingTypeArgument]
    rest: list[int] | int = 0,
    either: str | dict = "",  # pyright: ignore[reportMissingTypeArgument]
    **more: int,
) -> str:
    return "taken"


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (("1",), {}, "number: expected a whole number, found '1'"),
        ((True,), {}, "number: expected a whole number, found True"),
        ((1.0,), {}, "number: expected a whole number, found 1.0"),
        ((1, "half"), {}, "share: expected a number or None, found 'half'"),
        ((1, None, "a", 3), {}, "names: expected a text, found 3"),
        ((1,), {"on": 1}, "on: expected True or False, found 1"),
        ((1,), {"way": 3}, "way: expected a text, found 3"),
        ((1,), {"told": "x"}, "told: expected a function or None, found 'x'"),
        ((1,), {"table": [1]}, r"table: expected a table or None, found \[1\]"),
        ((), {}, "taken: missing a required argument: 'number'; it takes number, share, names, on"),
    ],
)
def test_anything_else_is_refused_by_name(args: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(HookError, match=f"^{message}"):
        taken(*args, **options)


def test_a_name_that_it_does_not_take_is_answered_with_the_nearest() -> None:
    @checked_arguments(HookError)
    def plain(model: str, variants: str = "") -> None: ...

    message = "plain: got an unexpected keyword argument 'variant'; did you mean 'variants'? it takes model, variants"
    with pytest.raises(HookError, match=f"^{re.escape(message)}$"):
        plain("a", variant="b")  # pyright: ignore[reportCallIssue]
