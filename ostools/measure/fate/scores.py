"""What probes said of prompts that they had not seen, and how often that was right, with intervals over sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from ostools.measure.fate.captured import LOGITS, Captured, Place
from ostools.measure.fate.probes import fitted
from ostools.measure.fate.splits import Split, splits
from ostools.results import Frame
from ostools.theory.statistics.bootstrap import bootstrap_share, widened

LENGTH = Place(-1, "length", 0)
"""The number of items and its square, in the place of a representation."""
DECODABLE = "decodable"
_PLACE = ["dtype", "depth", "site", "layer", "test", "control"]
_SHUFFLED = 0  # the seed of the permuted labels


@dataclass(frozen=True)
class Labelled:
    """Prompts by number: their lengths, seeds and groups, and what a probe is to say of each."""

    lengths: Int[np.ndarray, " prompt"]
    seeds: Int[np.ndarray, " prompt"]
    groups: Int[np.ndarray, " prompt"]
    labels: Int[np.ndarray, " prompt"]
    target: str
    splits: Sequence[Split]

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        seeds: Sequence[int],
        groups: Sequence[int],
        labels: Sequence[int],
        target: str,
        drawn: bool,
    ) -> Labelled:
        """Raises `InputError` for too few lengths or groups."""
        n, drawn_by, group, label = (np.array(column, dtype=np.int64) for column in (lengths, seeds, groups, labels))
        return cls(n, drawn_by, group, label, target, splits(n, group, drawn))

    def of_length(self) -> Float[torch.Tensor, "prompt 2"]:
        """n and n^2, each of spread 1."""
        n = torch.from_numpy(self.lengths).double()
        both = torch.stack([n, n**2], dim=1)
        return (both - both.mean(0)) / both.std(0)


def said_by_probes(given: Labelled, found: Captured, controls: Sequence[str]) -> pd.DataFrame:
    """A row per prompt, place, test and control ("none", "shuffled"): what the probe said that had not seen it."""
    permuted = given.labels[np.random.default_rng(_SHUFFLED).permutation(len(given.labels))]
    labels = {"none": given.labels, "shuffled": permuted}
    tables = []
    for place, rows in found.items():
        x = rows.double().numpy()
        for control in controls:
            for split in given.splits:
                tables.append(_said(given, x, labels[control], split).assign(control=control, **_named(place)))
    return pd.concat(tables, ignore_index=True)


def _named(place: Place) -> dict[str, Any]:
    layer = place.layer if place != LENGTH else pd.NA
    return {"depth": place.depth, "site": place.site, "layer": pd.array([layer], dtype="Int64")[0]}


def _said(given: Labelled, x: np.ndarray, labels: np.ndarray, split: Split) -> pd.DataFrame:
    """One probe."""
    train, held = split.train, split.held
    probe = fitted(given.target, x[train], labels[train], given.groups[train])
    said = probe.said(x[held])
    known, counts = np.unique(labels[train], return_counts=True)
    common = known[counts.argmax()]
    return pd.DataFrame(
        {
            "test": split.test,
            "length": given.lengths[held],
            "seed": given.seeds[held],
            "group": given.groups[held],
            "label": labels[held],
            "said": said,
            "right": np.rint(said) == labels[held],
            "common": labels[held] == common,
            "trained": len(train),
            "penalty": probe.penalty,
        }
    )


def rows_of(predictions: pd.DataFrame, target: str, drawn: bool = True) -> pd.DataFrame:
    """One row per place, test and control; the columns are those of `Decodable`. `drawn`: of one length answers differ."""
    whole: Any = predictions
    by_length = whole[whole["site"] == LENGTH.site].groupby("test")["right"].mean().to_dict() if drawn else {}
    shuffled = dict(_places(whole[whole["control"] == "shuffled"]))
    rows = []
    for key, here in _places(whole):
        other = shuffled.get((*key[:-1], "shuffled")) if key[-1] == "none" else None
        rows.append(dict(zip(_PLACE, key, strict=True)) | _row(here, other, target, by_length.get(key[4], 0.0)))
    return pd.DataFrame(rows).sort_values(["dtype", "control", "test", "depth"], kind="stable", ignore_index=True)


def _places(table: Frame) -> Iterator[tuple[tuple[Any, ...], Frame]]:
    yield from table.groupby(_PLACE, sort=False, dropna=False)


def _row(here: Frame, other: Frame | None, target: str, by_length: float) -> dict[str, Any]:
    accuracy, chance = float(here["right"].mean()), float(here["common"].mean())
    trained = int(here["trained"].min())
    low, high = interval_of(here["right"].astype(float), here["group"], trained)
    found = {
        "trained": trained,
        "tested": len(here),
        "groups": int(here["group"].nunique()),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "chance": chance,
        "penalty": float(here["penalty"].median()),
    }
    gained, gained_low, gained_high = np.nan, np.nan, np.nan
    if other is not None:
        difference = here["right"].astype(float).to_numpy() - other["right"].astype(float).to_numpy()
        gained = float(difference.mean())
        gained_low, gained_high = interval_of(
            pd.Series(difference), here["group"].reset_index(drop=True), trained, -1.0
        )
    found |= {"selectivity": gained, "selectivity_low": gained_low, "selectivity_high": gained_high}
    above = low > chance and not gained_low <= 0
    from_k = f"from {found['trained']} examples"
    found["finding"] = (
        f"not linearly decodable {from_k}"
        if not above
        else DECODABLE
        if low > by_length
        else f"as the length alone {from_k}"
    )
    return found | _errors(here, target)


def _errors(here: Frame, target: str) -> dict[str, float]:
    if target != "number":
        return {"mean_absolute_error": np.nan, "r2": np.nan}
    off = here["said"] - here["label"]
    spread = float(((here["label"] - here["label"].mean()) ** 2).sum())
    r2 = 1 - float((off**2).sum()) / spread if spread > 0 else np.nan
    return {"mean_absolute_error": float(off.abs().mean()), "r2": r2}


def interval_of(values: Any, groups: Any, trained: int, least: float = 0.0) -> tuple[float, float]:
    """Of the mean over prompts, groups resampled whole, `widened` for probes that were trained on each other's prompts (each on
    `trained`); within `least` and 1. NaN with too few groups for one."""
    each = pd.DataFrame({"value": values, "group": groups}).groupby("group")["value"]
    both: Any = each.agg(["sum", "count"])
    sums, counts = (torch.tensor(both[name].to_numpy(dtype=float)) for name in ("sum", "count"))
    if len(sums) < 3:
        return np.nan, np.nan
    mean = float(sums.sum() / counts.sum())
    found = widened(bootstrap_share(sums, counts), mean, tested=int(counts.sum()), trained=trained)
    return max(float(found.low), least), min(float(found.high), 1.0)


def steps_of(predictions: pd.DataFrame) -> pd.DataFrame:
    """A row per dtype, test and sublayer: the accuracy before and behind it, and its step with an interval over groups."""
    whole: Any = predictions
    whole = whole[(whole["control"] == "none") & ~whole["site"].isin([LENGTH.site, LOGITS])]
    rows = []
    for (dtype, test), here in whole.groupby(["dtype", "test"], sort=False):
        before: Frame | None = None
        for depth in sorted(here["depth"].unique()):
            behind = here[here["depth"] == depth]
            if before is not None:
                rows.append({"dtype": dtype, "test": test} | _step(before, behind))
            before = behind
    return pd.DataFrame(rows)


def _step(before: Frame, behind: Frame) -> dict[str, Any]:
    first, then = before.iloc[0], behind.iloc[0]
    difference = behind["right"].astype(float).to_numpy() - before["right"].astype(float).to_numpy()
    trained = int(behind["trained"].min())
    low, high = interval_of(pd.Series(difference), behind["group"].reset_index(drop=True), trained, -1.0)
    block = int(then["layer"]) - (then["site"] == "residual")
    return {
        "sublayer": Place(0, str(then["site"]), 0).sublayer,
        "block": block if then["site"] != "y" else pd.NA,
        "before": float(before["right"].mean()),
        "behind": float(behind["right"].mean()),
        "step": float(difference.mean()),
        "low": low,
        "high": high,
        "from": f"{first['site']} {first['layer']}",
    }
