"""The paper's requests to reason before answering (Appendix C.1): chain of thought, without and with worked examples.

Word for word where the source was at hand: the opening of the few-shot prompt and its worked sum of twelve ones. Its other
examples follow that pattern (groups of five, the rest counted singly), and the zero-shot request is the few-shot opening
without its announcement of examples.
"""

from __future__ import annotations

from functools import cache

ZERO_SHOT = " Let's think step by step, showing me your reasoning."
_OPENING = " Let's think step by step, showing me your reasoning. Here are a few examples:"
_ANSWER = "The final answer to your maths question is: {answer}"
_GROUP = 5

_SEQUENCES = {
    "sum-ones": ("1+1+1+1+1+1+1+1+1+1+1+1", "1+1+1+1+1+1+1", "1+1+1"),
    "count-ones": ("111111111111", "1111111", "111"),
    "count-ones-bernoulli": ("1101110111101101", "1011101", "101"),
    "count-word": ("car tree car lamp car car blue car door car car", "road car car", "bird stone"),
}
"""The examples of each task: twelve, seven and three items to add; others near those."""


@cache
def few_shot(name: str) -> str:
    """The request with the worked examples of one task; empty for a task that has none."""
    if name not in _SEQUENCES:
        return ""
    return _OPENING + "".join(f"\n{sequence}\n{_worked(name, sequence)}" for sequence in _SEQUENCES[name])


def _worked(name: str, sequence: str) -> str:
    """The sum of the ones in groups of five, and the answer line."""
    ones = sequence.split(" ").count("car") if name == "count-word" else sequence.count("1")
    groups, rest = divmod(ones, _GROUP)
    if not ones:
        return f"There are none. The answer is then 0 {_ANSWER.format(answer=0)}"
    terms = ["(" + " + ".join("1" * _GROUP) + ")"] * groups + ["1"] * rest
    sum_ = " + ".join(terms)
    return (
        f"We divide the sum into groups of {_GROUP}. {sum_} The answer is then {groups} * {_GROUP} + {rest} = {ones} "
        f"{_ANSWER.format(answer=ones)}"
    )
