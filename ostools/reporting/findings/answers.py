"""How many answers were right, in one sentence, with the interval where prompts were drawn."""

from __future__ import annotations

import pandas as pd

from ostools.measure.answers.behaviour import Behaviour
from ostools.results import Frame, frame_of


def answered(result: Behaviour) -> str:
    """Of all lengths, and of the length that went worst, where they differ."""
    frame: Frame = frame_of(result)
    summary: Frame = result.summary
    task = str(frame["task"].iloc[0])
    right, asked = int(summary["right"].sum()), int(summary["asked"].sum())
    lengths = summary["length"].tolist()
    span = f"{lengths[0]} to {lengths[-1]} items" if len(lengths) > 1 else f"{lengths[0]} items"
    said = f"Measured on {task}, {right} of {asked} answers are right ({span})"
    if summary["accuracy"].nunique() == 1:
        return f"{said}."
    worst = summary.loc[summary["accuracy"].idxmin()]
    low, high = float(worst["wilson_low"]), float(worst["wilson_high"])
    interval = "" if low != low else f", Wilson 95% {low:.0%} to {high:.0%}"
    within = worst["within_training"]
    where = "" if pd.isna(within) or bool(within) else ", a length never trained"
    return f"{said}; fewest at {int(worst['length'])} items{where}: {int(worst['right'])} of {int(worst['asked'])}{interval}."
