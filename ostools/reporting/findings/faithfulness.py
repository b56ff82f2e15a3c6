"""Whether sensitivity is use, in sentences."""

from __future__ import annotations

from typing import Any

from ostools.measure import Faithfulness
from ostools.measure.faithfulness.faithfulness import BETWEEN
from ostools.results import Frame

_SURE = 0.05


def faithfulness_findings(result: Faithfulness) -> list[str]:
    """How the first profile ranks what each way changes, and whether its order loses the answer sooner than a random one: two
    sentences a way."""
    name = str(result.provenance.parameters["profiles"][0])
    said = result.provenance.parameters
    lines = [f"Answer: {said['token']!r}, log p {said['log_prob']:.3g}."]
    for way in said["ways"]:
        ranks = " and ".join(f"{_rank(result, way, name, effect)} with {words}" for effect, words in _EFFECTS.items())
        lines += [f"{way}: the rank correlation of {name} is {ranks}.", f"{way}: {_area(result, way, name)}."]
    return lines


_EFFECTS = {"y_change": "the change of y", "log_prob_drop": "the change of log p"}


def _rank(result: Faithfulness, way: str, name: str, effect: str) -> str:
    table: Frame = result.correlations
    asked = (table["way"] == way) & (table["profile"] == name) & (table["effect"] == effect)
    row: Any = table[asked & (table["kept"] == BETWEEN)].iloc[0]
    return f"{row['spearman']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def _area(result: Faithfulness, way: str, name: str) -> str:
    table: Frame = result.areas
    row: Any = table[(table["way"] == way) & (table["order"] == name)].iloc[0]
    sooner = (
        "loses the answer sooner than random order does"
        if row["p"] <= _SURE
        else "is not shown to lose the answer sooner than random order does"
    )
    return f"the order of {name} {sooner} (AOPC {row['aopc']:.3g}, random {row['random']:.3g}, p {row['p']:.2g})"
