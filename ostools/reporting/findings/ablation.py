"""What an ablation found, in sentences: the greatest real effect, and how well first order predicted them all."""

from __future__ import annotations

from typing import Any

from ostools.experiments.ablation.ablation import Ablation

WORDS = {
    "frobenius_norm": "sensitivity (Frobenius)",
    "operator_norm": "sensitivity (operator)",
    "pair_distance": "collapse distance",
    "log_probability": "log p of the answer",
}
# Of the prediction: from these on it ranks parts as the real effects do, or at least not at random.
_RANKS, _HARDLY = 0.8, 0.5


def ablation_findings(result: Ablation) -> list[str]:
    """A sentence a prompt and quantity, and one on what a prediction is."""
    frame: Any = result.frame
    return [
        *(_sentence(row, frame) for row in result.agreement.to_dict("records")),
        "Predicted effects are first order, from one backward pass. Real effects are measured with the part taken out.",
    ]


def beliefs(result: Ablation) -> list[str]:
    """Whether first order may be believed, of each prompt and quantity; what is not believed first."""
    rows = sorted(result.agreement.to_dict("records"), key=lambda row: {False: 0, True: 1}.get(row["believed"], 2))
    return [f"First order of {WORDS[row['quantity']]}{_where(row)} is {row['words']}." for row in rows]


def _where(row: dict[Any, Any]) -> str:
    return "" if _missing(row["length"]) else f", n = {row['length']}, seed {row['seed']}"


def _sentence(row: dict[Any, Any], frame: Any) -> str:
    chosen = frame[(frame["quantity"] == row["quantity"]) & (frame["target"] == row["largest"])]
    for column in ("task", "length", "seed"):
        here = frame.loc[chosen.index, column]
        chosen = chosen[here.isna() if _missing(row[column]) else here == row[column]]
    greatest = chosen.iloc[0]
    moved, rank = row["moved"], row["spearman"]
    found = (
        f"{WORDS[row['quantity']]}{_where(row)}: {greatest['value']:.4g} with nothing taken out; the greatest real effect is "
        f"that of {row['largest']}, {greatest['effect']:+.3g} (predicted {greatest['predicted_effect']:+.3g}). The first order "
        f"{_verdict(rank)}"
    )
    if not moved:
        return f"{found}: the parts do not have any effect."
    return (
        f"{found}: {round(row['same_sign'] * moved)} of {moved} signs right, {round(row['within_factor_2'] * moved)} "
        f"within a factor of 2" + ("." if rank != rank else f", rank correlation {rank:.2f}.")
    )


def _verdict(rank: float) -> str:
    if rank != rank:
        return "does not give a rank correlation"
    if rank >= _RANKS:
        return "ranks the parts as the real effects do"
    return "ranks them roughly" if rank >= _HARDLY else "does not rank them"


def _missing(value: Any) -> bool:
    return value is None or value != value or str(value) == "<NA>"
