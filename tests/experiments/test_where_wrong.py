"""Where wrong answers stand: the three conclusions from planted fields, and the fields out of a failure stage."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from ostools.experiments.where_wrong import (
    CANNOT_BE_TOLD,
    DOES_NOT_TELL,
    TELLS,
    of_failure_stage,
    where_wrong,
)
from tests.reporting import every


def rows(right_apart: int, right_hidden: int, wrong_apart: int, wrong_hidden: int, decoded: Any = None) -> pd.DataFrame:
    """So many right answers at lengths apart and not, and so many wrong ones, all of them decoded or not (None: no probe)."""
    counts = {(True, True): right_apart, (True, False): right_hidden, (False, True): wrong_apart}
    counts[False, False] = wrong_hidden
    answers = [{"correct": correct, "apart": apart} for (correct, apart), n in counts.items() for _ in range(n)]
    return pd.DataFrame(answers).assign(decoded=pd.array([decoded] * len(answers), dtype="boolean"))


@pytest.mark.parametrize(
    ("counts", "decoded", "conclusion", "reason"),
    [
        ((5, 0, 10, 0), None, TELLS, ""),
        ((5, 0, 10, 0), False, TELLS, ""),
        ((5, 0, 9, 1), True, TELLS, ""),
        ((5, 0, 8, 2), None, CANNOT_BE_TOLD, "8 of 10 wrong answers are where it does, the others where it does not"),
        ((5, 0, 2, 8), None, CANNOT_BE_TOLD, "2 of 10 wrong answers are where it does, the others where it does not"),
        ((5, 0, 1, 9), False, DOES_NOT_TELL, ""),
        ((5, 0, 0, 10), None, DOES_NOT_TELL, ""),
        ((5, 0, 0, 10), True, CANNOT_BE_TOLD, "below the noise, and a probe still says the right answer to 10 of 10"),
        ((5, 5, 0, 10), None, CANNOT_BE_TOLD, "right answers are below the noise too"),
        ((5, 0, 5, 0), None, CANNOT_BE_TOLD, "5 of 10 answers are wrong, 6 are needed"),
        ((10, 0, 0, 0), None, CANNOT_BE_TOLD, "0 of 10 answers are wrong, 6 are needed"),
        ((0, 0, 10, 0), None, CANNOT_BE_TOLD, "none of 10 answers is right"),
    ],
)
def test_the_conclusion_follows_the_fields(counts: tuple[int, ...], decoded: Any, conclusion: str, reason: str) -> None:
    found = where_wrong(rows(*counts, decoded=decoded))
    right_apart, right_hidden, wrong_apart, wrong_hidden = counts
    wrong = wrong_apart + wrong_hidden
    assert (found.conclusion, bool(found.reason)) == (conclusion, bool(reason))
    assert reason in found.reason
    assert (found.asked, found.wrong, found.apart) == (right_apart + right_hidden + wrong, wrong, wrong_apart)
    assert (found.probed, found.decoded) == (0 if decoded is None else wrong, wrong if decoded else 0)


def test_the_fields_are_those_of_the_failure_stage() -> None:
    """Beside a plain loop over its answers, on a tiny model."""
    result = every._failure_stage()
    answers, stages = result.answers, result.frame.set_index("length")
    place, said = stages.iloc[0], result.probes.predictions
    said = said[(said["control"] == "none") & (said["site"] == place["site"]) & (said["layer"] == place["layer"])]
    wrong = apart = probed = decoded = 0
    for answer in answers.to_dict("records"):
        if answer["correct"]:
            continue
        wrong += 1
        apart += not stages.loc[answer["length"], "indistinguishable"]
        of_prompt = said[(said["length"] == answer["length"]) & (said["seed"] == answer["seed"])]
        of_prompt = of_prompt[of_prompt["test"] == stages.loc[answer["length"], "test"]]
        probed += len(of_prompt)
        decoded += int(of_prompt["right"].sum())
    found = of_failure_stage(result, "float32")
    assert wrong >= probed > 0
    assert (found.asked, found.wrong, found.apart) == (len(answers), wrong, apart)
    assert (found.probed, found.decoded) == (probed, decoded)
