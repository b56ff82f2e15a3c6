"""Answers in numbers: how many were right at each length, with an interval that says what it is of."""

from __future__ import annotations

import math
from typing import Any, cast

import pandas as pd

from ostools.theory.statistics.intervals import wilson

LEVEL = 0.95
PROMPTS, SAMPLES, NOTHING = "prompts", "samples of one prompt", "nothing was drawn"


def summarise(frame: pd.DataFrame, random: bool, drawn: bool) -> pd.DataFrame:
    """One row a length: how many answers were right, with Wilson's interval, and how far and how likely.

    Columns: length, prompts, asked (answers), right, accuracy, wilson_low and wilson_high (95%), trials and interval_of,
    unparsable (neither right nor an error), mean_absolute_error (of the parsable; NaN: none, or not a number), probability (of
    the right line, mean over prompts), active (answers on which the mitigation acted), within_training.

    random, drawn: whether the prompts were drawn, and whether the answers were, at a temperature.

    An interval needs something that was drawn, and its trials have to be independent. `interval_of` "prompts": the prompts
    were, and each is one trial, with the share of its samples that are right; samples behind one prompt are not independent of
    each other. "samples of one prompt": of the one prompt, which is all that there is. "nothing was drawn": the greedy answer
    to the one prompt, which has no interval (NaN).
    """
    rows = [
        _summary(int(cast(Any, length)), here, random, drawn) for length, here in cast(Any, frame).groupby("length")
    ]
    return pd.DataFrame(rows).astype({"within_training": "boolean"})


def _summary(length: int, here: Any, random: bool, drawn: bool) -> dict[str, Any]:
    each = here.groupby("seed")
    shares = each["correct"].mean().astype(float)
    samples = len(here) // len(shares)
    of_prompts = random and (len(shares) > 1 or samples == 1)
    trials = len(shares) if of_prompts else samples if drawn else 0
    accuracy = float(shares.mean())
    low, high = wilson(accuracy * trials, trials, LEVEL) if trials else (math.nan, math.nan)
    errors = here["absolute_error"].dropna().astype(float)
    return {
        "length": length,
        "prompts": len(shares),
        "asked": len(here),
        "right": int(here["correct"].sum()),
        "accuracy": accuracy,
        "wilson_low": low,
        "wilson_high": high,
        "trials": trials,
        "interval_of": PROMPTS if of_prompts else SAMPLES if trials else NOTHING,
        "unparsable": int((~here["parsable"]).sum()),
        "mean_absolute_error": math.nan if errors.empty else float(errors.mean()),
        "probability": float(each["log_probability"].first().map(math.exp).mean(skipna=False)),
        "active": int(here["status"].eq("active").sum()),
        "within_training": here["within_training"].iloc[0],
    }
