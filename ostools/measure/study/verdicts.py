"""Effects with intervals from paired measurements, and a verdict for each mitigation.

A pair is one question with a mitigation and without. Seeds of one length belong together, so
lengths are what is resampled. An interval says how the effect varies over lengths such as these, on
this model and task; nothing about others.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from ostools.ground import number
from ostools.measure.answers.result import SMALL
from ostools.measure.mitigated_prompts import ACTIVE, INACTIVE, REFUSED
from ostools.results import Column, Frame
from ostools.theory.statistics.answers import paired_difference
from ostools.theory.statistics.intervals import (
    FEWEST,
    bootstrap_mean,
    expanded,
    fewest_at,
    require_level,
    sign_flip,
)

HELPS, HURTS, NO_EFFECT, UNCHANGED, UNDECIDED = (
    "helps",
    "hurts",
    "no measurable effect",
    "inactive",
    "not decided",
)
LARGER, SMALLER, NOT_MEASURED = "larger", "smaller", "not measured"
"""A verdict on a number that is no answer: a mitigation helps or hurts answers alone."""
About = Literal["answers", "log_probability", "collapse", "sensitivity"]
ABOUT_WORDS: dict[str, str] = {
    "answers": "answers",
    "log_probability": "log p of the right line",
    "collapse": "distance of the pair",
    "sensitivity": "sensitivity",
}
ABOUT: tuple[About, ...] = get_args(About)
"""Quantities that a verdict is given on."""
RESAMPLES = 20_000


ABOUT_BY_QUANTITY = {
    "correct": "answers",
    "log_probability": "log_probability",
    "collapse_distance": "collapse",
    "sensitivity": "sensitivity",
}
"""On what the effect on a number (in float64, where there are dtypes) is the verdict."""
_RATIOS = ("collapse_distance", "sensitivity")
"""Numbers of which an effect is log10(value / baseline), and of the others value - baseline."""
MARGINS = {"correct": SMALL, "log_probability": 0.1} | dict.fromkeys(_RATIOS, math.log10(1.1))
"""An effect that is smaller counts as none: on answers 5 points, on log p 0.1 nats, of a ratio
x1.1.
"""


def effects(frame: Frame, level: float, verdict_level: float) -> pd.DataFrame:
    """The effect of each mitigation on each quantity: the mean over lengths of the mean over seeds,
    where it acted.

    Columns: mitigation, quantity, dtype, kind, scale, about ("" where no verdict is read from it);
    effect with its interval low to high at `level`; with a verdict, verdict_low to verdict_high at
    `verdict_level` and p_value, of a sign-flip test; value and baseline (means over the same
    pairs); lengths and pairs that it rests on; value_floored and baseline_floored (pairs in a ratio
    of which rounding stands in place of what is below it: the effect is a bound); active, inactive,
    refused (pairs); reason (of the first refusal); beyond_training (whether every length is, and so
    none is left out). Intervals are NaN for fewer than `fewest_at` lengths (six at 95%):
    percentile bootstrap over lengths, expanded for few (`theory.intervals`); of answers whose mean
    effect is the same at every one of three lengths or more, where the bootstrap would be empty,
    the exact paired interval over the questions (`theory.statistics.answers`).
    """
    keys = ["mitigation", "quantity", "dtype"]
    rows = [
        dict(zip(keys, key, strict=True)) | _effect(str(key[1]), group, level, verdict_level)
        for key, group in frame.groupby(keys, sort=False, dropna=False)
    ]
    return pd.DataFrame(rows)


def _effect(quantity: str, group: Frame, level: float, verdict_level: float) -> dict[str, object]:
    status, dtype = group["status"], group["dtype"].iloc[0]
    used, beyond = _used(group)
    change, is_ratio = _changes(quantity, used), quantity in _RATIOS
    of_length = change.groupby(used["length"]).mean().to_numpy(dtype=float)
    changed = None
    if quantity == "correct":
        changed = int((change == 1).sum()), int((change == -1).sum()), len(used)
    judged = bool(pd.isna(dtype) or dtype == "float64")
    low, high = _interval(of_length, changed, level)
    verdict_low, verdict_high, p_value = np.nan, np.nan, np.nan
    if judged and len(of_length):
        verdict_low, verdict_high = _interval(of_length, changed, verdict_level)
        p_value = sign_flip(torch.tensor(of_length))
    floored = {name: used[name] < used["rounding"] for name in ("value", "baseline")}
    return {
        "kind": group["kind"].iloc[0],
        "scale": "log10 ratio" if is_ratio else "difference",
        "about": ABOUT_BY_QUANTITY[quantity] if judged else "",
        "effect": float(of_length.mean()) if len(of_length) else np.nan,
        "low": low,
        "high": high,
        "verdict_low": verdict_low,
        "verdict_high": verdict_high,
        "p_value": p_value,
        "value": float(used["value"].mean()),
        "baseline": float(used["baseline"].mean()),
        "lengths": len(of_length),
        "pairs": len(used),
        **{f"{name}_floored": is_ratio * int(below.sum()) for name, below in floored.items()},
        **{name: int((status == name).sum()) for name in (ACTIVE, INACTIVE, REFUSED)},
        "reason": next(iter(group["reason"][status == REFUSED]), ""),
        "beyond_training": beyond,
    }


def _used(group: Frame) -> tuple[Frame, bool]:
    """The active pairs that count, and whether every length is beyond training.

    A failure at a length never trained says nothing of over-squashing: left out, unless nothing
    else was asked.
    """
    within = group["within_training"].astype("boolean").fillna(True).astype(bool)
    beyond = not bool(within.any())
    return group[(group["status"] == ACTIVE) & (within | beyond)], beyond


def _changes(quantity: str, used: Frame) -> Column:
    """Effect on each pair. A value smaller than its own rounding counts as that: a ratio to it
    would be one of rounding.
    """
    if quantity not in _RATIOS:
        return used["value"] - used["baseline"]
    value, baseline = (np.maximum(used[name], used["rounding"]) for name in ("value", "baseline"))
    return np.log10(value / baseline)


def _interval(
    samples: np.ndarray, changed: tuple[int, int, int] | None, level: float
) -> tuple[float, float]:
    """Interval of the mean over lengths. `changed`, of answers alone: questions gained, lost, and
    all of them.
    """
    if changed is not None and len(samples) >= FEWEST and bool((samples == samples[0]).all()):
        return paired_difference(*changed, level)
    if len(samples) < fewest_at(level):
        return np.nan, np.nan
    wide_level = expanded(level, len(samples))
    # A level that float64 rounds to 1 asks for the extreme resampled means.
    low, high = bootstrap_mean(
        torch.tensor(samples), level=min(wide_level, 1 - 1e-12), resamples=RESAMPLES
    )
    return float(low), float(high)


def corrected(level: float, verdict_count: int) -> float:
    """The level of each verdict's interval, so that all of them hold together at `level`
    (Bonferroni). Raises `InputError` for a level that is not between 0 and 1.
    """
    require_level("study", level)
    return 1 - (1 - level) / verdict_count


def verdicts(effect_table: Frame, verdict_level: float) -> pd.DataFrame:
    """One row a mitigation: its verdict on each of `ABOUT`, and a sentence that says why.

    "helps" or "hurts" (of answers), "larger" or "smaller" (of the others) where the effect's
    interval at `verdict_level` leaves 0 out and a sign-flip test, which few lengths do not mislead,
    rejects at that level too, on at least `fewest_at(verdict_level)` lengths; "no measurable
    effect" where the whole interval is within the quantity's `MARGINS` of 0, on as many lengths;
    "inactive" where the mitigation changed no prompt and no logit; "not decided" otherwise: what
    the interval leaves room for was neither shown nor ruled out; "not measured" of what was not
    asked for.
    """
    rows = []
    for mitigation, group in effect_table.groupby("mitigation", sort=False):
        row: dict[str, Any] = {"mitigation": mitigation} | dict.fromkeys(ABOUT, NOT_MEASURED)
        words = []
        for effect in group[group["about"] != ""].to_dict("records"):
            about = str(effect["about"])
            row[about] = _verdict(effect, verdict_level)
            why = _reasons(effect, row[about], fewest_at(verdict_level))
            words.append(f"{ABOUT_WORDS[about]}: {row[about]}{f' ({why})' if why else ''}")
        beyond = bool(group["beyond_training"].any())
        words += ["every length is beyond the trained ones"] * beyond
        rows.append(row | {"sentence": f"{mitigation}: {'; '.join(words)}."})
    return pd.DataFrame(rows, columns=["mitigation", *ABOUT, "sentence"])


def _verdict(row: Mapping[Any, Any], verdict_level: float) -> str:
    """Verdict on one effect by its interval and its sign-flip test."""
    if not row["pairs"]:
        return UNCHANGED if row[INACTIVE] and not row[REFUSED] else UNDECIDED
    if row["lengths"] < fewest_at(verdict_level):
        return UNDECIDED
    low, high = row["verdict_low"], row["verdict_high"]
    if (low > 0 or high < 0) and row["p_value"] <= (1 - verdict_level) * (1 + 1e-9):
        larger, smaller = (HELPS, HURTS) if row["quantity"] == "correct" else (LARGER, SMALLER)
        return larger if low > 0 else smaller
    margin = MARGINS[row["quantity"]]
    is_small = -margin <= low and high <= margin and not bound(row)
    return NO_EFFECT if is_small else UNDECIDED


def _reasons(row: Mapping[Any, Any], verdict: str, fewest: int) -> str:
    """The effect of a verdict; and where no answer could be gained or lost, where the lengths are
    fewer than a verdict needs, and where the sign-flip test alone kept it from a direction.
    """
    words = in_words(row, "verdict_low", "verdict_high")
    if not words:
        return row["reason"] or "it changed nothing within training" * bool(row[ACTIVE])
    if row["quantity"] == "correct" and row["baseline"] in (0, 1):
        right, change = (row["pairs"], "gained") if row["baseline"] else (0, "lost")
        limit = f"{right} of {row['pairs']} right without it: no question could be {change}"
        words = f"{limit}; {words.replace(' [', ', of further questions [')}"
    if row["lengths"] < fewest:
        return f"{words}, on {row['lengths']} lengths, and a verdict needs {fewest}"
    leaves_0_out = row["verdict_low"] > 0 or row["verdict_high"] < 0
    if leaves_0_out and verdict in (NO_EFFECT, UNDECIDED) and not bound(row):
        words += "; the interval excludes zero, a sign-flip test did not confirm it"
    return words


def bound(row: Mapping[Any, Any]) -> str:
    """Bound that an effect is where some of its pairs are ratios to a rounding, in words; "" where
    it is itself.
    """
    if row["value_floored"] and row["baseline_floored"]:
        return "rounding on both sides,"
    return "at most" if row["value_floored"] else "at least" if row["baseline_floored"] else ""


def in_words(row: Mapping[Any, Any], lower: str = "low", upper: str = "high") -> str:
    """A row of `effects` with its interval: percentage points of answers, factors of a ratio, else
    plain numbers; nothing where no pair counts.

    A bound has no interval: its would be that of the rounding.
    """
    if not row["pairs"]:
        return ""
    if limit := bound(row):
        return f"{limit} ×{number(10 ** row['effect'])}"
    values = [row[name] for name in ("effect", lower, upper)]
    unit = " points" if row["quantity"] == "correct" else ""
    if unit:
        words = [f"{100 * value:+.1f}" for value in values]
    elif row["quantity"] in _RATIOS:
        words = [f"×{number(10**value)}" for value in values]
    else:
        words = [f"{value:+.3g}" for value in values]
    interval = f" [{words[1]}, {words[2]}]" if np.isfinite(row[lower]) else ""
    return words[0] + unit + interval
