"""Whether sensitivity is use, in sentences."""

from __future__ import annotations

from typing import Any

from ostools.measure import Faithfulness
from ostools.measure.faithfulness.faithfulness import BETWEEN
from ostools.results import Frame

_SURE = 0.05


def faithfulness_findings(result: Faithfulness) -> list[str]:
    """How the first profile ranks what each way changes, and whether its order loses the answer sooner than a random one: three
    sentences a way."""
    name = str(result.provenance.parameters["profiles"][0])
    lines = [answer_finding(result)]
    for way in result.provenance.parameters["ways"]:
        moved, lost = (_rank(result, way, name, effect) for effect in ("y_change", "log_prob_drop"))
        lines.append(
            f"Tokens {way}: the rank correlation of {name} with the change of y is {moved}. With the "
            f"change of log p it is {lost}."
        )
        lines.append(_area(result, way, name))
    note = "as of independent tokens. Neighbouring tokens are alike, so it is too narrow."
    return [*lines, f"In brackets: the 95% interval, {note}"]


def answer_finding(result: Faithfulness) -> str:
    """Of which answer the losses are."""
    said = result.provenance.parameters
    return f"The answer is {said['token']!r}: log p {said['log_prob']:.3g} with every token in place."


def _rank(result: Faithfulness, way: str, name: str, effect: str) -> str:
    table: Frame = result.correlations
    asked = (table["way"] == way) & (table["profile"] == name) & (table["effect"] == effect)
    row: Any = table[asked & (table["kept"] == BETWEEN)].iloc[0]
    return f"{row['spearman']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def _area(result: Faithfulness, way: str, name: str) -> str:
    table: Frame = result.areas
    row: Any = table[(table["way"] == way) & (table["order"] == name)].iloc[0]
    sooner = (
        "the answer is lost sooner than in random order"
        if row["p"] <= _SURE
        else "it is not shown that the answer is lost sooner than in random order"
    )
    return (
        f"Tokens {way} in the order of {name}, largest first: {sooner} (AOPC {row['aopc']:.3g}, random {row['random']:.3g}, "
        f"p {row['p']:.2g})."
    )
