"""Every lemma of the paper on numbers: pass or fail, with the figure and what was required of it.

Purpose: to know that a statement holds before a measurement leans on it, under which hypotheses, and how it breaks without
each of them. A check that could not fail would say nothing: every lemma has rows that take one hypothesis away, or put one
thing back, and pass only if the statement then breaks. Cost: seconds on one core; no model.

Source: Barbero et al. 2024 (arXiv 2406.04267), sections 4 to 6 and appendix B; windows are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ostools.experiments.lemmas import decoders, softmax, stochastic
from ostools.experiments.lemmas.check import LENGTHS, Check, Checked
from ostools.ground.errors import InputError
from ostools.ground.names import checked_names
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.measurement import measurement
from ostools.results import Provenance, Result

Run = Callable[[int, Sequence[int]], Checked]


@dataclass(frozen=True)
class Lemma:
    """`name`: by what one asks for it, either side of a slash will do. `by_length`: whether it is run at chosen lengths n."""

    name: str
    statement: str
    run: Run
    by_length: bool = False


LEMMAS = (
    Lemma(
        "B.1",
        "one more token takes softmax weight from the last one; where scores are bounded, it takes ever less",
        softmax.last_weight,
        by_length=True,
    ),
    Lemma(
        "4.1/B.2",
        "bounded scores whose difference x_n - x*_n tends to 0 have softmax with delta = sum |y - y*| -> 0",
        softmax.vanishing_noise,
        by_length=True,
    ),
    Lemma(
        "B.4",
        "at every even n, delta of 1010... and 0101... is 2 (e - 1) / (e + 1) = 0.924...",
        lambda seed, lengths: softmax.alternation(lengths),
        by_length=True,
    ),
    Lemma(
        "B.6",
        "a row-stochastic triangular matrix has largest eigenvalue 1, simple if each row but the first has two non-zero "
        "entries (and here: if and only if A_ii < 1 for i >= 2)",
        lambda seed, lengths: stochastic.largest_eigenvalue(seed),
    ),
    Lemma(
        "B.7",
        "products of row-stochastic triangular matrices are row-stochastic and triangular",
        lambda seed, lengths: stochastic.products(seed),
    ),
    Lemma(
        "5.2/B.8",
        "((Λ + I) / 2)^L, which is Theorem 5.1's bound for equal layers, tends to all mass on token 1 if each row but "
        "the first has two non-zero entries (and here: if Λ_ii < 1 for i >= 2)",
        lambda seed, lengths: stochastic.limit(seed),
    ),
    Lemma(
        "6.1/B.9",
        "without positions and without the causal mask, sequences with the same ratio of types have one representation "
        "per type",
        lambda seed, lengths: decoders.same_ratio(seed),
    ),
    Lemma(
        "6.2/B.10",
        "counts whose prompts have the same last representation in a dtype get the same answer (first generated token)",
        lambda seed, lengths: decoders.answers(seed),
    ),
    Lemma(
        "windows",
        "under a window w in every layer, v^(l) on a repeated token is constant from l (w - 1) + 1 copies on",
        lambda seed, lengths: decoders.windowed(seed),
    ),
)
_ALIASES = {alias: lemma for lemma in LEMMAS for alias in (lemma.name, *lemma.name.split("/"))}


@dataclass(frozen=True, eq=False)
class TheoryChecks(Result):
    """The lemmas, checked.

    `frame`, one row a check: lemma, statement, hypotheses ("as stated", or which one was taken away, when the row passes only
    if the statement breaks), computed (what the figure is), figure, relation (<=, >=, >, =), required, tolerance (what
    rounding may add), passed.

    `curves`, one row a point of the curves behind them: lemma, series, kind ("measured", "certified": a bound, "predicted":
    what the statement says), x (n, tokens, L, depth, copies), value.
    """

    curves: pd.DataFrame

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.frame["passed"].all())


@measurement
def theory(
    seed: int = 0,
    lemmas: Iterable[str] | None = None,
    lengths: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> TheoryChecks:
    """Run every lemma, or those named in `lemmas` ("B.1", "4.1/B.2", "B.2", "windows", ...), on numbers drawn from `seed`.

    Args:
        lengths: the n at which B.1, 4.1 / B.2 and B.4 are run; the default is `LENGTHS`. The other lemmas do not take lengths.
        progress: called with the number of lemmas that are done, and of all.

    A lemma that fails is a row with passed = False; an exception is not raised. Raises `InputError` for unknown lemmas, for
    lengths below 1, for odd lengths of B.4 (its two sequences then hold different numbers of ones), and for lengths if none of
    the lemmas that were asked for takes them.
    """
    chosen = _chosen(lemmas)
    whole_number("seed", seed)
    if lengths is not None:
        lengths = checked_lengths(lengths)
        _require_lengths(lengths, chosen)
    frames, curves = [], []
    for done, lemma in enumerate(chosen):
        tell(progress, done, len(chosen))
        found = lemma.run(seed, _lengths(lemma, lengths))
        frames.append(_frame(lemma, found.checks))
        curves.append(found.curves.assign(lemma=lemma.name))
    provenance = Provenance.without_model(
        seed=seed, lemmas=[lemma.name for lemma in chosen], lengths=list(LENGTHS if lengths is None else lengths)
    )
    return TheoryChecks(pd.concat(frames, ignore_index=True), provenance, pd.concat(curves, ignore_index=True))


def _chosen(names: Iterable[str] | None) -> list[Lemma]:
    """In the paper's order, each once."""
    if names is None:
        return list(LEMMAS)
    wanted = checked_names("lemma", names, _ALIASES)
    return [lemma for lemma in LEMMAS if any(_ALIASES[name] is lemma for name in wanted)]


def _require_lengths(lengths: Sequence[int], chosen: Sequence[Lemma]) -> None:
    by_length = [lemma.name for lemma in LEMMAS if lemma.by_length]
    if not any(lemma.by_length for lemma in chosen):
        raise InputError(f"theory: lengths belong to the lemmas {', '.join(by_length)}; none of them was asked for")
    odd = [n for n in lengths if n % 2]
    if odd and any(lemma.name == "B.4" for lemma in chosen):
        raise InputError(
            f"Lemma B.4 is about even lengths, found {odd[0]}: at odd ones one of the two sequences holds one more 1; leave "
            f"odd lengths out, or ask for other lemmas"
        )


def _lengths(lemma: Lemma, lengths: Sequence[int] | None) -> Sequence[int]:
    if lengths is not None:
        return lengths
    return [n for n in LENGTHS if n % 2 == 0] if lemma.name == "B.4" else LENGTHS


def _frame(lemma: Lemma, checks: Sequence[Check]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "lemma": lemma.name,
            "statement": lemma.statement,
            "hypotheses": check.hypotheses,
            "computed": check.computed,
            "figure": float(check.figure),
            "relation": check.relation,
            "required": float(check.required),
            "tolerance": float(check.tolerance),
            "passed": bool(check.passed),
        }
        for check in checks
    ]
    return pd.DataFrame(rows)
