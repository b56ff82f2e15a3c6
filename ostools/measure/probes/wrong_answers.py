"""Do a model's wrong answers fall where collapse would put them? The one rule for the report's
first screen and for pages.

Corollary 6.2 says of n and n + 1 items that rounding hides from each other at the token from which
the answer is predicted that at least one of the two is answered wrong. So an error at a length n
may be collapse where either of its pairs is hidden, n and n + 1 or n - 1 and n, and is none where
both are told apart. Where only the first was measured, the rule is of that one. It counts lengths,
as all answers of one length share its pair's distance.

A distance below the noise is not yet "unreadable": the noise is spread over all directions, and a
probe may read one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.lib.stride_tricks import sliding_window_view

from ostools.ground import InputError
from ostools.measure.answers.result import Evaluation
from ostools.measure.collapse.result import Collapse
from ostools.measure.position import ANSWER
from ostools.theory.statistics.intervals import wilson

NONE_WRONG = "no answer is wrong"
WRONG_APART = "wrong where the last token still tells n from n + 1"
HIDDEN = "wrong where the last token no longer tells n from n + 1"
UNTOLD = "cannot be told"
_PLACES = 20
"""At one place of so many hidden pairs may fit wrong answers by chance: a level of 0.05."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ErrorVerdict:
    """Where wrong answers fall. verdict: `NONE_WRONG`, `WRONG_APART`, `HIDDEN` or `UNTOLD`.
    told_apart, hidden: at how many lengths with a wrong answer its pairs are told apart, and one is
    hidden.
    reason: why it cannot be told; else ""."""

    verdict: str
    told_apart: int
    hidden: int
    reason: str = ""

    @property
    def sentence(self) -> str:
        lengths = self.told_apart + self.hidden
        where = (
            f"of {lengths} lengths with a wrong answer the pair is told apart at {self.told_apart}"
        )
        if self.verdict == NONE_WRONG:
            return "No answer is wrong."
        if self.verdict == UNTOLD:
            question = "Whether wrong answers come from hidden pairs"
            return f"{question} cannot be told: {self.reason} ({where})."
        return f"The answers are {self.verdict}: {where}."


def explain_wrong_answers(answers: Evaluation, pairs: Collapse) -> ErrorVerdict:
    """Say whether wrong answers fall where rounding hides n from n + 1: `explain_errors` of an
    `ost.evaluate` and an `ost.collapse` of the same questions, at y and in the dtype of the
    answers.

    Raises `InputError` for results of two models, tasks, mitigations or seeds, of questions that
    were encoded in two ways, for worked examples (which a pair has not), for distances that were
    not measured where the answer is predicted, or not in the dtype of the answers.
    """
    of_answers, of_pairs = _question_of(answers), _question_of(pairs)
    for name, value in of_answers.items():
        if value != of_pairs[name]:
            raise InputError(
                f"explain_wrong_answers: expected answers and pairs of one {name}, found {value!r} "
                f"and {of_pairs[name]!r}: measure both with the same"
            )
    if answers.provenance.parameters["elicitation"] == "few-shot":
        raise InputError(
            "explain_wrong_answers: expected answers without worked examples, which a pair has "
            "not, found few-shot ones: evaluate with elicitation='zero-shot' or 'chat'"
        )
    if (place := pairs.provenance.parameters["read_at"]["position"]) != ANSWER:
        raise InputError(
            f"explain_wrong_answers: expected distances at the token before the answer, found them "
            f"at {place!r}: leave `position` of collapse out"
        )
    counts, hidden = answers.summary.set_index("length"), _hidden_at_y(answers, pairs)
    if not counts[["right", "wrong"]].to_numpy().any():
        return ErrorVerdict(UNTOLD, 0, 0, "no answer was read")
    return explain_errors(counts["right"].to_dict(), counts["wrong"].to_dict(), hidden)


def _hidden_at_y(answers: Evaluation, pairs: Collapse) -> dict[int, bool]:
    """Whether the pair is hidden, by length, at y and in the dtype of the answers."""
    dtype = answers.provenance.model["dtype"]
    by_dtype = {
        curve.key["dtype"]: dict(zip(curve.lengths, curve.hidden, strict=True))
        for curve in pairs.verdicts_over_seeds().values()
        if curve.finite and curve.key["site"] == "y"
    }
    if dtype not in by_dtype:
        raise InputError(
            f"explain_wrong_answers: expected answers and pairs in one dtype that rounds, found "
            f"{dtype} and {', '.join(by_dtype) or 'float64'}: give collapse the dtype of the "
            "answers"
        )
    return by_dtype[dtype]


def _question_of(result: Evaluation | Collapse) -> dict[str, object]:
    """What two results of the same questions have in common."""
    how, provenance = result.provenance.parameters, result.provenance
    names = ("task", "mitigation", "seeds", "bos", "system", "thinking")
    question = {name: how.get(name) for name in names}
    chat = how.get("read_at", how).get("chat")
    model = provenance.model.get("weight_hash")
    return question | {"chat": chat, "edits": provenance.edits, "model": model}


def explain_errors(
    right: Mapping[int, int],
    wrong: Mapping[int, int],
    hidden: Mapping[int, bool],
    probe_reads: bool | None = None,
) -> ErrorVerdict:
    """Say whether wrong answers fall where the last token still tells n from n + 1, where it does
    not, or neither.

    Args:
        right, wrong: answers that were read, right and not, by length.
        hidden: by length, whether rounding hides n from n + 1 at the token from which the answer is
            predicted: the distance is below the noise of the difference, in every sequence that was
            measured. Lengths without an entry do not count.
        probe_reads: whether a probe reads the count at the hidden lengths by more than its
            controls; None: not tried.

    A verdict needs more than half of the lengths with a wrong answer on its side, with the whole
    95% interval (Wilson): all of four, 7 of 8. "No longer tells" needs as well that no probe reads
    the count there, and that chance does not do as well: moved along the lengths, the pattern of
    hidden pairs fits the wrong answers as well at one of 20 places at most, its own among them
    (`_places`). So it needs lengths with and without a hidden pair: 21 where the pairs are hidden
    from one length on, 12 where hidden ones come and go. Raises `InputError` where no length has
    both answers and a distance.
    """
    lengths = [
        n for n in sorted({*right, *wrong} & set(hidden)) if right.get(n, 0) + wrong.get(n, 0)
    ]
    if not lengths:
        raise InputError(
            "explain_errors: expected lengths with answers and with a distance, found none"
        )
    shares = np.array([wrong.get(n, 0) / (right.get(n, 0) + wrong.get(n, 0)) for n in lengths])
    touched = np.array([hidden[n] or hidden.get(n - 1, False) for n in lengths])
    with_errors = touched[shares > 0]
    if not len(with_errors):
        return ErrorVerdict(NONE_WRONG, 0, 0)
    among = int(with_errors.sum())
    told_apart = len(with_errors) - among
    low, high = wilson(told_apart, len(with_errors))
    if low > 0.5:
        return ErrorVerdict(WRONG_APART, told_apart, among)
    reason = _why_untold(high, probe_reads, *_places(shares, touched))
    return ErrorVerdict(UNTOLD if reason else HIDDEN, told_apart, among, reason)


def _places(
    shares: Float[np.ndarray, " length"], touched: Bool[np.ndarray, " length"]
) -> tuple[int, int]:
    """At how many places along the lengths the pattern of hidden pairs correlates with the shares
    of wrong answers as well as at its own, and how many places there are, its own among them.

    Moved, the pattern repeats what stands at its end. A place at which every length or none would
    be hidden does not count. It is not Fisher's exact test of the lengths: that takes them as
    independent, but errors come in runs, and they and hidden pairs increase with the length.
    """
    length_count = len(touched)
    if touched.all() or not touched.any():
        return 0, 0
    patterns = sliding_window_view(np.pad(touched, length_count - 1, mode="edge"), length_count)
    patterns = np.stack([touched, *patterns[patterns.any(1) & ~patterns.all(1)]])
    fits = (patterns - patterns.mean(1, keepdims=True)) @ shares / patterns.std(1)
    as_well = fits[1:] >= fits[0] - _ROUNDING
    return int(as_well.sum()), len(as_well)


def _why_untold(most_told_apart: float, probe_reads: bool | None, as_well: int, places: int) -> str:
    """Why errors where pairs are hidden are no evidence; empty where they are. `as_well`, `places`:
    of `_places`.
    """
    if most_told_apart >= 0.5:
        return "errors fall on both kinds of pairs, or on few lengths"
    if probe_reads:
        return "the pairs are below the noise, and a probe still reads the count there"
    if places < _PLACES:
        return "too few lengths with a hidden pair, or without, to tell it from chance"
    if _PLACES * as_well > places:
        return (
            "moved along the lengths, the hidden pairs fit the wrong answers as well at "
            f"{as_well} of {places} places"
        )
    return ""
