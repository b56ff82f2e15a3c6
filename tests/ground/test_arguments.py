"""Lengths and seeds are refused in the same words, whoever asks for them; what an annotation allows
at the door: words of their own class, lists, and no mapping for a list.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

from ostools.ground.arguments import (
    allowed,
    checked_lengths,
    checked_seeds,
    parse_lengths,
    whole_number,
    whole_numbers,
)
from ostools.ground.errors import InputError
from tests.checkpoints import refused


@pytest.mark.parametrize("found", [1.5, True, np.bool_(True), None, "a", 1j])
def test_what_is_no_whole_number_is_refused_in_one_line(found: object) -> None:
    for given in ([1, found], [found], iter([found]), found):
        with pytest.raises(
            InputError, match=f"^depths: .*s of at least 1, found {re.escape(repr(found))}$"
        ):
            whole_numbers("depths", given, 1)
    with pytest.raises(
        InputError, match=f"^top: .*a whole number of at least 1, found {re.escape(repr(found))}$"
    ):
        whole_number("top", found, 1)


@pytest.mark.parametrize(
    ("what", "given", "message"),
    [
        ("numbers of items", "1:64", "at least 1, found '1:64'"),
        ("numbers of items", [], "at least 1, found none"),
        ("numbers of items", range(3), "at least 1, found 0"),
        ("numbers of items", [1, 2**31], "at most 2,147,483,647, found 2147483648"),
        ("seeds", (), "at least 0, found none"),
        ("seeds", -1, "at least 0, found -1"),
    ],
)
def test_lengths_and_seeds_out_of_range_are_refused(what: str, given: Any, message: str) -> None:
    check = {"numbers of items": checked_lengths, "seeds": checked_seeds}[what]
    refused(f"^{what}: expected whole numbers of {re.escape(message)}$", check, given)


def test_lengths_ascend_and_seeds_keep_their_order_each_once_as_plain_numbers() -> None:
    assert checked_lengths([3, np.int64(2), 3]) == [2, 3]
    assert checked_seeds(iter([3, np.int64(2), 3])) == [3, 2]
    assert checked_seeds(4) == [4]
    assert all(
        type(number) is int
        for number in (*checked_seeds(np.arange(2)), whole_number("top", np.int32(1)))
    )


def test_a_range_may_have_a_step() -> None:
    assert parse_lengths("4:16:4,1") == [1, 4, 8, 12, 16]
    refused("found '4:16:0'", parse_lengths, "4:16:0")


Word = Literal["full", "frozen"]


@pytest.mark.parametrize(
    ("hint", "value", "handed_on"),
    [
        (Word, "full", "full"),
        (Word | Sequence[Word] | None, ("full", "frozen"), ["full", "frozen"]),
        (Word | Sequence[Word] | None, None, None),
        (Sequence[str], np.array(["a", "b"]), ["a", "b"]),
        (Word | Sequence[int], iter([0, 2]), [0, 2]),
        (Literal[2, 3], 3, 3),
        (Literal[True], True, True),
    ],
)
def test_what_is_allowed_is_handed_on(hint: Any, value: Any, handed_on: Any) -> None:
    assert allowed(hint, value) == handed_on


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Word, "ful"),
        (Word | Sequence[Word], ["full", "frozn"]),
        (Word | Sequence[Word], {"full": 1}),
        (Sequence[str], {"a": 1}),
        (Literal[1, 2], True),
        (Literal[1, 2], 1.0),
        (Literal[True], 1),
        (Sequence[int], "12"),
        (Sequence[int] | None, 3),
        (int, True),
        (float, False),
        (str, None),
    ],
)
def test_what_is_not_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected .*found"):
        allowed(hint, value)
