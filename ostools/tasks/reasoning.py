"""The paper's requests to reason before answering (Appendix C.1): chain of thought, without and with worked examples.

The opening and the two worked sums are the paper's, with its line breaks; its first sum stands without its question, which
`tidy` adds. Of the other tasks the paper says "similar strategies": their examples are ours, one of twelve ones and one of six.
The zero-shot request is ours too: the opening without its announcement of examples. So is the instruction to answer only,
which Section 3.2 mentions and C.1 does not print (docs/fidelity.md has a row for each).
"""

from __future__ import annotations

from functools import cache

ANSWER_ONLY = " Please output only the answer."
ZERO_SHOT = " Let's think step by step, showing me your reasoning."
_OPENING = "Let's think step by step, showing me your reasoning. Here are a few examples:"
_QUESTIONS = {
    "sum-ones": "Please perform the following sum: {}",
    "count-ones": "Please count the number of ones in the following sequence:{}",
    "count-ones-bernoulli": "Please count the number of ones in the following sequence:{}",
    "count-word": "Please count the number of times 'car' appears in the following sentence: '{}'",
}
_SEQUENCES = {
    "sum-ones": (" + ".join("1" * 12), " + ".join("1" * 6)),
    "count-ones": ("1" * 12, "1" * 6),
    "count-ones-bernoulli": ("1101110111101101", "10111011"),
    "count-word": (
        "car tree car car lamp car car car blue car car car door car car car",
        "car road car car car car stone car",
    ),
}
_GROUP = 5


@cache
def few_shot(name: str, tidy: bool = False) -> str:
    """The request with the two worked examples of a task. Raises `KeyError` for a task that has none."""
    first, second = (_example(name, sequence) for sequence in _SEQUENCES[name])
    if name == "sum-ones" and not tidy:
        # As in C.1: the first sum without its question, its terms on the line of the first sentence.
        first = first[1:]
        first = [" ".join(first[:2]), *first[2:]]
    return "\n".join([_OPENING, *first, *second])


def _example(name: str, sequence: str) -> list[str]:
    """The question, the ones in groups of five, their sum, and the answer line."""
    ones = sequence.split(" ").count("car") if name == "count-word" else sequence.count("1")
    groups, remainder = divmod(ones, _GROUP)
    terms = ["(" + " + ".join("1" * _GROUP) + ")"] * groups + ["1"] * remainder
    return [
        _QUESTIONS[name].format(sequence),
        f"We divide the sum into groups of {_GROUP}.",
        " + ".join(terms),
        f"The answer is then {groups} * {_GROUP} + {remainder} = {ones}",
        f"The final answer to your maths question is: {ones}",
    ]
