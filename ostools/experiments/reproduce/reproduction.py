"""The outcome of a reproduction: the claims with their verdicts, and what they were judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ostools.experiments.reproduce.claim import OUTCOMES
from ostools.results import Frame, Result, frame_of


@dataclass(frozen=True, eq=False)
class Reproduction(Result):
    """`frame`: one row a claim of the paper. Columns: claim (its name), place, words (the paper's own), rule (when it agrees),
    outcome (agrees | holds by construction | does not agree | could not be tested), measured (what was found, or why nothing
    was), numbers, parts (what it was judged by), figures.

    `results`: the measurements of each part, by their names. `refused`: why a part could not be measured. `seconds`: what each
    part took when it was measured. `page`: the HTML report.
    """

    results: Mapping[str, Mapping[str, Result]]
    refused: Mapping[str, str]
    seconds: Mapping[str, float]
    page: Path

    @property
    def outcomes(self) -> dict[str, int]:
        """How many claims have each outcome."""
        frame: Frame = frame_of(self)
        return {name: int((frame["outcome"] == name).sum()) for name in OUTCOMES}
