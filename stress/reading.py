"""Texts of a few pieces, again and again: an answer is read in a time that grows as the text does,
whatever the pieces are.

A case draws what stands before the pieces, the pieces, and what stands behind them. Ten times the
text may take 30 times as long; a reader that takes the square of the length takes a hundred times
as long.
"""

from __future__ import annotations

import random

from tests.measure.answers.test_content import MATHS, seconds
from tests.measure.answers.test_reading import PIECES

CASES = 150
_SHORT, _LONG, _TIMES = 4_000, 40_000, 30
_SIGNS = (
    *"x1-<>(){}[]*#_$`'\"\\|.,;:!?=+/&~^%\t\v\f\u00a0\u2028\u200b\u201c\u00e9\u0661\u2212",
    *("\\(", "\\)", "\\[", "\\text{", "\\boxed{", "</answer>", "<answer>", "</s>", "<|eot_id|>", "<think>", "[THINK]"),
    *("The ", "answer ", "is ", "final ", "1,000", "1 1 ", "\r\n", "\r", "**", "zero", "total ", "count: ", "sum = ", "12. "),
    *("</think>", "e1", "0x", "1.", "-1 "),
)  # fmt: skip


def run(cases: int, seed: int) -> int:
    """How many texts took longer."""
    chosen, failures = random.Random(seed), 0
    parts = (*_SIGNS, *PIECES)
    for case in range(cases):
        before, behind = (chosen.choice(("", MATHS, *parts)) for _ in range(2))
        piece = "".join(chosen.choices(parts, k=chosen.randint(1, 3))) or "x"
        short, long = (
            seconds(before + piece * (size // len(piece)) + behind) for size in (_SHORT, _LONG)
        )
        if long > _TIMES * max(short, 1e-3):
            print(
                f"reading, case {case}: {piece!r} between {before!r} and {behind!r}: {short:.3f} s, then {long:.3f} s"
            )
            failures += 1
    return failures
