"""What an annotation allows at the door: words of their own class, lists, and no mapping for a
list.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

from ostools.ground.arguments import allowed

Word = Literal["full", "frozen"]


@pytest.mark.parametrize(
    ("hint", "value", "handed_on"),
    [
        (Word, "full", "full"),
        (Word | Sequence[Word] | None, ("full", "frozen"), ["full", "frozen"]),
        (Word | Sequence[Word] | None, None, None),
        (Sequence[str], np.array(["a", "b"]), ["a", "b"]),
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
