"""The trained laboratory in tables: how fast models collapse, what they answer, what predicts it,
and what bfloat16 costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ostools.results import Frame, frame_of
from ostools.theory.profiles import rank_correlation
from ostools.theory.statistics.fits import over_seeds
from ostools.theory.statistics.intervals import spearman_interval
from studies.laboratory.prompts import TASKS
from studies.laboratory.trained_lab import KEYS, TrainedLab

FIT_FROM = 32
"""Longest trained length; the rate is of the lengths beyond."""
PREDICTED_AT = (64, 128)
PREDICTORS = {
    "distance": "ones",
    "last_share": "lab-count",
    "effective_tokens": "lab-count",
    "decodable": None,
}
"""Quantities that are held against the answers, and the prompts that it was measured on; None:
those that were answered.
"""
_FLOOR = 1e-6  # of a float64 distance of y, whose norm is some 8: rotary angles are float32, whatever the model is cast to
_KIND = [key for key in KEYS if key != "seed"]


def trained_summary(result: TrainedLab) -> Frame:
    """One row a kind of model (encoding, depth, window, sinks, place of the norms, arithmetic of
    training; a window forced or trained in) and state of the weights.

    seeds (models); rate, rate_low, rate_high (k of the power law n^-k of the float64 distance at y,
    least squares in the log from `FIT_FROM` on; mean over seeds with its 95% Student interval; NaN
    where the distance of one is rounding); collapse_reached (models whose distance stays below
    bfloat16's noise), collapse_first and collapse_last (the least and the largest such length; NA:
    none); variation (total variation of the deepest layer's attention at the longest length, mean
    over seeds); and for each question of random bits in float32 the share of right answers, on
    trained lengths and beyond, each a mean over lengths, then over seeds, with its 95% Student
    interval: first_seen, first_seen_low, first_seen_high, first_unseen, ... The lengths are those
    of `ANSWER_LENGTHS`. With fewer than two seeds an interval is NaN.
    """
    rows = []
    for keys, group in frame_of(result).groupby(_KIND, sort=False):
        row: dict[str, Any] = dict(zip(_KIND, keys, strict=True)) | {
            "seeds": group["seed"].nunique()
        }
        row |= _interval("rate", [_rate(model) for _, model in group.groupby("seed")])
        lengths = _of(group, "collapse_length", "bfloat16")["value"].dropna()
        row |= {
            "collapse_reached": len(lengths),
            "collapse_first": lengths.min(),
            "collapse_last": lengths.max(),
        }
        variation = _of(group, "total_variation", "float64")
        deepest = variation[(variation["layer"] == variation["layer"].max())]
        row["variation"] = deepest[deepest["length"] == deepest["length"].max()]["value"].mean()
        for name, answers in _by_question(_of(group, "accuracy", "float32")):
            row |= _interval(name, list(answers.groupby("seed")["value"].mean()))
        rows.append(row)
    return pd.DataFrame(rows).astype({"collapse_first": "Int64", "collapse_last": "Int64"})


def trained_prediction(result: TrainedLab) -> Frame:
    """Rank correlation of what is measured of a representation with the answers beyond the trained
    lengths, over models.

    One row a question, length of `PREDICTED_AT` and quantity: `correlation` (Spearman's, over the
    trained models without a forced window, of the quantity at that length with the share of right
    answers in float32 at the same length), low, high (95%, Bonett and Wright), models, apart (how
    many different shares there are). The distance is of n ones without a question, the profile
    (`last_share`, `effective_tokens`) of a prompt that asks for a count, `probe` of the prompts
    that were answered. NaN where all models answer alike, or are measured alike. Models of one cell
    differ in their seed alone, so that they are fewer than as many independent ones: the interval
    is too narrow.
    """
    frame = frame_of(result)
    frame = frame[
        (frame["weights"] == "trained") & ~frame["forced"] & (frame["precision"] != "bfloat16")
    ]
    kind = [*_KIND, "seed"]
    rows = []
    for question in TASKS:
        answers = _of(frame[frame["task"] == f"lab-{question}"], "accuracy", "float32")
        for length in PREDICTED_AT:
            right = answers[answers["length"] == length].set_index(kind)["value"]
            for quantity, prompts in PREDICTORS.items():
                measured = frame[
                    (frame["quantity"] == quantity)
                    & (frame["task"] == (prompts or f"lab-{question}"))
                ]
                at_length = measured[measured["length"] == length].set_index(kind)["value"]
                pairs: Any = pd.concat({"right": right, "measured": at_length}, axis=1).dropna()
                shares = int(pairs["right"].nunique())
                correlation = np.nan
                if shares > 1:
                    correlation = rank_correlation(
                        pairs["right"].to_numpy(), pairs["measured"].to_numpy()
                    )
                low, high = spearman_interval(correlation, len(pairs))
                row = {
                    "question": question,
                    "length": length,
                    "quantity": quantity,
                    "correlation": correlation,
                }
                rows.append(row | {"low": low, "high": high, "models": len(pairs), "apart": shares})
    return pd.DataFrame(rows)


def trained_decodable(result: TrainedLab) -> Frame:
    """Share of prompts whose answer is in y, and whose answer is given: one row a kind of trained
    model, question and length of `PREDICTED_AT`.

    In float32: right (share of right answers), decodable (share that a linear probe at y says
    right, of the same prompts), before (decodable of the same models before training): means over
    seeds. in_bfloat16: decodable of what bfloat16 leaves of y. surplus (decodable minus right) and
    lost (decodable minus in_bfloat16) with their 95% Student intervals over seeds; NaN with fewer
    than two. A probe is trained on sequences of these lengths, which the models are not.
    """
    frame = frame_of(result)
    frame = frame[frame["length"].isin(PREDICTED_AT)]
    trained, before = (frame[frame["weights"] == state] for state in ("trained", "untrained"))
    kind = [key for key in _KIND if key != "weights"]
    by = [*kind, "seed", "task", "length"]
    columns = {
        "right": _of(trained, "accuracy", "float32").set_index(by)["value"],
        "decodable": _of(trained, "decodable", "float32").set_index(by)["value"],
        "before": _of(before, "decodable", "float32").set_index(by)["value"],
        "in_bfloat16": _of(trained, "decodable", "bfloat16").set_index(by)["value"],
    }
    models: Any = pd.concat(columns, axis=1).dropna(subset=["right", "decodable"]).reset_index()
    rows = []
    for keys, group in models.groupby([*kind, "task", "length"], sort=False):
        row: dict[str, Any] = dict(zip([*kind, "question", "length"], keys, strict=True))
        row |= {"question": str(row["question"]).removeprefix("lab-"), "seeds": len(group)}
        row |= {name: group[name].mean() for name in columns}
        for name, subtracted in (("surplus", "right"), ("lost", "in_bfloat16")):
            row |= _interval(name, list(group["decodable"] - group[subtracted]))
        rows.append(row)
    return pd.DataFrame(rows)


def trained_precisions(result: TrainedLab) -> Frame:
    """Cost of running in bfloat16 for models that were trained in float32: one row a question, on
    trained lengths and beyond.

    float32, bfloat16 (share of right answers to random bits, mean over models and lengths),
    difference (bfloat16 minus float32, mean over seeds of the mean over that seed's models) with
    its 95% Student interval, low and high.
    """
    frame = frame_of(result)
    frame = frame[
        (frame["weights"] == "trained") & ~frame["forced"] & (frame["quantity"] == "accuracy")
    ]
    frame = frame[frame["trained_in"] == "float32"]
    rows = []
    for name, answers in _by_question(frame):
        question, _, word = name.partition("_")
        by_seed = answers.pivot_table(index="seed", columns="precision", values="value")
        row = {"question": question, "seen": word == "seen"}
        row |= {precision: by_seed[precision].mean() for precision in ("float32", "bfloat16")}
        middle, low, high = over_seeds(list(by_seed["bfloat16"] - by_seed["float32"]))
        rows.append(row | {"difference": middle, "low": low, "high": high})
    return pd.DataFrame(rows)


def trained_changes(result: TrainedLab) -> Frame:
    """Effect of one change (trained in bfloat16, norms after the additions, sinks): one row a
    changed kind of model and number.

    number: rate (k of `trained_summary`), collapse_length (bfloat16's noise hides n ones from n + 1
    from there on; a missing value where that of one model is not shown), or the share of right
    answers to random bits, by question, on trained lengths ("seen") and beyond. precision: what the
    model is run in. without, changed: means over seeds, and difference (changed minus without, of
    models of one seed, which saw the same prompts) with its 95% Student interval, low and high; NaN
    with fewer than two pairs. pairs: how many seeds have both models.
    """
    frame = frame_of(result)
    frame = frame[(frame["weights"] == "trained") & ~frame["forced"]]
    kind = [key for key in _KIND if key not in ("forced", "weights")]
    numbers = {keys: _numbers(group) for keys, group in frame.groupby([*kind, "seed"], sort=False)}
    rows, unchanged = [], {"sinks": 0, "norm": "pre", "trained_in": "float32"}
    for changed in dict.fromkeys(keys[:-1] for keys in numbers):
        plain = tuple(unchanged.get(key, value) for key, value in zip(kind, changed, strict=True))
        seeds = [
            keys[-1] for keys in numbers if keys[:-1] == changed and (*plain, keys[-1]) in numbers
        ]
        if changed == plain or not seeds:
            continue
        for name in numbers[*changed, seeds[0]]:
            after, before = (
                [numbers[*keys, seed][name] for seed in seeds] for keys in (changed, plain)
            )
            low_high = _interval("difference", list(np.subtract(after, before)))
            row = dict(zip(kind, changed, strict=True)) | dict(
                zip(("number", "precision"), name, strict=True)
            )
            row |= {
                "without": np.mean(before),
                "changed": np.mean(after),
                "difference": low_high["difference"],
            }
            row |= {
                "low": low_high["difference_low"],
                "high": low_high["difference_high"],
                "pairs": len(seeds),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _numbers(group: Frame) -> dict[tuple[str, str], float]:
    """The numbers of one model that a change is judged by, by name and precision."""
    lengths = _of(group, "collapse_length", "bfloat16")["value"]
    numbers = {
        ("rate", "float64"): _rate(group),
        ("collapse_length", "bfloat16"): float(lengths.mean()),
    }
    for name, answers in _by_question(group[group["quantity"] == "accuracy"]):
        for precision in ("float32", "bfloat16"):
            numbers[name, precision] = float(
                answers[answers["precision"] == precision]["value"].mean()
            )
    return numbers


def _by_question(answers: Frame) -> Iterator[tuple[str, Frame]]:
    """Answers to each question on trained lengths and beyond, with names such as "first_unseen"."""
    for question in TASKS:
        for word in ("seen", "unseen"):
            rows = (answers["task"] == f"lab-{question}") & (answers["seen"] == (word == "seen"))
            yield f"{question}_{word}", answers[rows]


def _of(group: Frame, quantity: str, precision: str) -> Frame:
    return group[(group["quantity"] == quantity) & (group["precision"] == precision)]


def _rate(group: Frame) -> float:
    """k of d = a n^-k; NaN where the distance is rounding at one of the lengths."""
    curve = _of(group, "distance", "float64")
    curve = curve[curve["length"] >= FIT_FROM]
    if len(curve) < 3 or (curve["value"] <= _FLOOR).any():
        return np.nan
    return float(-np.polyfit(np.log(curve["length"]), np.log(curve["value"]), 1)[0])


def _interval(name: str, values: list[float]) -> dict[str, float]:
    middle, low, high = over_seeds(values) if values else (np.nan, np.nan, np.nan)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
