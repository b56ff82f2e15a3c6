"""All claims of the paper that are judged, in the paper's order, the verdicts on them, and a whole
reproduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from ostools.ground.errors import InputError
from ostools.paper.claims import answers, collapse, squashing, statements
from ostools.paper.claims.claim import OUTCOMES, PaperClaim, ResultsByPart
from ostools.paper.drawn_result import PaperResult
from ostools.results import Frame, Result, TableHead, frame_of

CLAIMS: tuple[PaperClaim, ...] = (
    *answers.CLAIMS,
    *collapse.CLAIMS,
    *statements.SYNTHETIC,
    *collapse.INDUCTION,
    *squashing.CLAIMS,
    *statements.CLAIMS,
)
FIGURES = (2, 3, 4, 5, 6, 7, 8, 9)
COLUMNS = ("claim", "place", "words", "rule", "outcome", "measured", "parts", "figures")


@dataclass(frozen=True, eq=False)
class Reproduction(PaperResult):
    """`frame`: one row a claim of the paper. Columns: claim (its name), place, words (the paper's
    own), rule (when it agrees), outcome (agrees | holds by construction | does not agree | could
    not be tested), measured (what was found, or why nothing was), parts (what it was judged by),
    figures.

    `results`: the measurements of each part, by their names. `refused`: why a part could not be
    measured. `seconds`: what each part took when it was measured. `page`: the HTML report.
    """

    tables: ClassVar = (TableHead(columns="claim place outcome measured"),)

    results: Mapping[str, Mapping[str, Result]]
    refused: Mapping[str, str]
    seconds: Mapping[str, float]
    page: Path

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of claims by outcome."""
        frame: Frame = frame_of(self)
        return {name: int((frame["outcome"] == name).sum()) for name in OUTCOMES}


def chosen_claims(figures: Iterable[int] | None = None) -> list[PaperClaim]:
    """All claims, or those of some figures. Raises `InputError` for a number that is no figure with
    a claim.
    """
    if figures is None:
        return list(CLAIMS)
    numbers = list(figures)
    if not numbers or any(type(number) is not int or number not in FIGURES for number in numbers):
        raise InputError(
            f"figures: expected some of {', '.join(map(str, FIGURES))} (Figure 1 is a drawing), "
            f"found {numbers}"
        )
    return [claim for claim in CLAIMS if set(claim.figures) & set(numbers)]


def judged(
    claims: Iterable[PaperClaim], results: ResultsByPart, refused: Mapping[str, str]
) -> pd.DataFrame:
    """Table of `COLUMNS`, a row a claim. `refused`: why a part was not measured."""
    rows = []
    for claim in claims:
        verdict = claim.verdict(results, refused)
        values = (claim.id, claim.place, claim.words, claim.rule, verdict.outcome, verdict.sentence)
        rows.append((*values, ", ".join(claim.needs), ", ".join(map(str, claim.figures))))
    return pd.DataFrame(rows, columns=list(COLUMNS))
