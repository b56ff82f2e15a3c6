"""Every claim of the paper that is judged, in the paper's order, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ostools.experiments.reproduce import collapse, copying, counting, induction, squashing, statements
from ostools.experiments.reproduce.claim import Claim, ResultsByPart, numbers_in_words
from ostools.ground.errors import InputError

CLAIMS: tuple[Claim, ...] = (
    *copying.CLAIMS,
    *counting.CLAIMS,
    *collapse.CLAIMS,
    *induction.CLAIMS,
    *squashing.CLAIMS,
    *statements.CLAIMS,
)
FIGURES = (2, 3, 4, 5, 6, 7, 8, 9)
COLUMNS = ("claim", "place", "words", "rule", "outcome", "measured", "numbers", "parts", "figures")


def chosen_claims(figures: Iterable[int] | None = None) -> list[Claim]:
    """All claims, or those of some figures. Raises `InputError` for a number that is no figure with a claim."""
    if figures is None:
        return list(CLAIMS)
    wanted_figures = list(figures) if isinstance(figures, Iterable) else [figures]
    for figure in wanted_figures:
        if type(figure) is not int or figure not in FIGURES:
            raise InputError(
                f"figure {figure!r}: expected one of {', '.join(map(str, FIGURES))} (Figure 1 is a drawing)"
            )
    if not wanted_figures:
        raise InputError("figures: expected at least one, found none; leave them out for all")
    return [claim for claim in CLAIMS if set(claim.figures) & set(wanted_figures)]


def judged(claims: Iterable[Claim], results: ResultsByPart, refused: Mapping[str, str]) -> pd.DataFrame:
    """A row a claim: `COLUMNS`. `refused`: why a part was not measured."""
    rows: list[dict[str, Any]] = []
    for claim in claims:
        verdict = claim.verdict(results, refused)
        rows.append(
            {
                "claim": claim.id,
                "place": claim.place,
                "words": claim.words,
                "rule": claim.rule,
                "outcome": verdict.outcome,
                "measured": verdict.sentence,
                "numbers": numbers_in_words(verdict.numbers),
                "parts": ", ".join(claim.needs),
                "figures": ", ".join(map(str, claim.figures)),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))
