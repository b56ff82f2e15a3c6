"""Where a certified bound loses: log10(uniform / measured) of every token, split into parts that add up.

Each part is log10 of one term of a falling chain over the next, so that the parts telescope:

    constants    uniform / local          the worst scale and the worst ||D|| in place of each position's own
    heads        local / heads            sum_h omega_h alpha_ij^h in place of || sum_h alpha_ij^h B_h ||
    skip         heads / edge             delta_ij + ||update|| for ||T_ij||, and 1 + ||D_i|| for ||I + D_i||
    joint edge   edge / windowed(1)       ||I + D_i|| ||T_ij|| for ||(I + D_i) T_ij||, the final norm apart from the last block
    chaining     windowed(1) / frozen     norms multiplied block by block and summed over paths, for the norm of the sum
    assumptions  frozen / full            patterns and norm scales held

The first five are looseness of the bound, never negative, and add up to log10(uniform / frozen). `assumptions` is none: the
frozen and the real derivative are two networks, and it may have either sign; with it all six add up to log10(uniform / full).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.paths.path_sum import PathSum
from ostools.measure.profiles.compare import log10_ratio, profile_beside
from ostools.measure.prompts import named_by
from ostools.results import Result

CHAIN = ("uniform", "local", "heads", "edge", "windowed(1)")
"""The variants that the split needs."""

PARTS = {
    "constants": ("uniform", "local"),
    "heads": ("local", "heads"),
    "skip": ("heads", "edge"),
    "joint edge": ("edge", "windowed(1)"),
    "chaining": ("windowed(1)", "frozen"),
    "assumptions": ("frozen", "full"),
}
"""Each part with the two terms whose quotient it is, in the order of the chain."""


@dataclass(frozen=True, eq=False)
class Looseness(Result):
    """One row a token and part: position, token_id, token, origin, part, larger, smaller (the two terms of the quotient),
    is_looseness (False for `assumptions`), log10 (in decades; infinite where the smaller term alone is exactly 0).

    `summary`, one row a part in the order of the chain: part, larger, smaller, is_looseness, tokens (those whose parts are all
    finite, of which the numbers are), mean (means add up as the parts do), median, lower and upper quartile.
    """

    summary: pd.DataFrame


@measurement
def looseness(measured: Sensitivity, paths: PathSum) -> Looseness:
    """Where the bound is loose: log10(uniform / measured) for every token, split into parts that add up (`PARTS` in the
    module).

        profile = ost.sensitivity(model, prompt)
        chain = ["uniform", "local", "heads", "edge", "windowed(1)"]
        ost.looseness(profile, ost.path_sum(model, prompt, variants=chain)).plot()

    Raises `InputError` if the two are not of one run, if a term is missing, for estimated norms, and for bounds with
    mlp_norm="frobenius" or "product", because their excess would be counted in `joint edge`. The excess of "certified" is below
    0.1% for each norm, and a block has two. Source: docs/theory.md 3.2.
    """
    profile = profile_beside("looseness", measured, paths)
    profile = profile[profile["norm"] == "operator"]
    terms = {**_bounds(paths), **_measured(profile)}
    columns = profile.loc[profile["linearisation"] == "full", named_by(profile)].reset_index(drop=True)
    tables = [
        columns.assign(
            part=part,
            larger=larger,
            smaller=smaller,
            is_looseness=part != "assumptions",
            log10=log10_ratio(terms[larger], terms[smaller]),
        )
        for part, (larger, smaller) in PARTS.items()
    ]
    frame = pd.concat(tables, ignore_index=True)
    return Looseness(frame, measured.provenance, _summary(frame))


def _bounds(paths: PathSum) -> dict[str, np.ndarray]:
    frame: Any = paths.frame
    missing = [name for name in CHAIN if name not in set(frame["variant"])]
    if missing:
        raise InputError(
            f"looseness: the path sum lacks {', '.join(missing)}: compute it with path_sum(..., variants={list(CHAIN)})"
        )
    mlp_norm = paths.provenance.parameters.get("mlp_norm")
    if mlp_norm not in ("certified", "svd"):
        raise InputError(
            f"looseness: expected bounds with mlp_norm='certified' or 'svd', found {mlp_norm!r}: its excess over ||D|| would "
            f"be counted as another part's"
        )
    last = frame[frame["last"] == frame["last"].max()]
    return {name: last.loc[last["variant"] == name, "value"].to_numpy() for name in CHAIN}


def _measured(profile: Any) -> dict[str, np.ndarray]:
    missing = [name for name in ("frozen", "full") if name not in set(profile["linearisation"])]
    if missing:
        raise InputError(
            f"looseness: the profile lacks the {missing[0]!r} derivative: measure it with "
            f"sensitivity(..., linearisations=['full', 'frozen'])"
        )
    if (profile["method"] != "exact").any():
        raise InputError(
            "looseness: expected exact norms, found estimates, whose error would be counted as chaining: measure with "
            "sensitivity(..., method='exact')"
        )
    return {name: profile.loc[profile["linearisation"] == name, "value"].to_numpy() for name in ("frozen", "full")}


def _summary(frame: Any) -> pd.DataFrame:
    wide = frame.pivot(index="position", columns="part", values="log10")
    finite = wide[np.isfinite(wide).all(axis=1)]
    if finite.empty:
        raise InputError("looseness: every token has a part that is infinite (a measured norm of exactly 0)")
    rows = [
        {
            "part": part,
            "larger": larger,
            "smaller": smaller,
            "is_looseness": part != "assumptions",
            "tokens": len(finite),
            "mean": float(finite[part].mean()),
            "median": float(finite[part].median()),
            "lower_quartile": float(finite[part].quantile(0.25)),
            "upper_quartile": float(finite[part].quantile(0.75)),
        }
        for part, (larger, smaller) in PARTS.items()
    ]
    return pd.DataFrame(rows)
