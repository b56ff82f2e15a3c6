"""Hold bounds and predictions against the measured profile: does it hold, how loose is it, does its shape predict?

Three different questions, always all three. Rows are joined on linearisation and norm, and a missing partner is an error:
a frozen bound says nothing about the real derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from ostools.errors import InputError
from ostools.measure.path_sum import PathSum
from ostools.measure.sensitivity import Sensitivity
from ostools.measure.variants import VARIANTS
from ostools.results import Provenance, Result

# Measured norms come from float32 Jacobians: two numbers closer than this are the same number.
_ROUNDING = {"float32": 1e-4, "float64": 1e-9}


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Measured, certified, the paper's and predicted values of one prompt on one axis.

    `frame`, one row a token and source: position, token_id, token, source (a linearisation for measured rows, a variant for
    the others), kind (measured | certified | paper | predicted), linearisation, norm, value.

    `summary`, one row a variant: variant, kind, linearisation, norm, holds (certified variants: at every position; NA for
    the others, which promise nothing), median_log10_looseness and max_log10_looseness (log10 of value / measured; NA where
    the variant's constant is unknown), spearman (rank correlation with the measured profile; NA where a profile is flat).
    """

    summary: pd.DataFrame

    def plot(self):
        from ostools.reporting import charts

        return charts.comparison_chart(self)


def compare(measured: Sensitivity, paths: PathSum) -> Comparison:
    """Join path sums with the measured norms that they stand beside.

    Raises `InputError` where the two are not of the same weights, configuration, tokens and edits, and where a variant has
    no measured partner (its linearisation was not measured).
    """
    if not isinstance(measured, Sensitivity) or not isinstance(paths, PathSum):
        raise InputError(
            f"compare: expected a Sensitivity and a PathSum, found {type(measured).__name__} and {type(paths).__name__}"
        )
    _require_same_run(measured.provenance, paths.provenance)
    wide = measured.frame.melt(
        id_vars=["position", "token_id", "token", "linearisation"],
        value_vars=["operator_norm", "frobenius_norm"],
        var_name="norm",
        value_name="value",
    )
    wide["norm"] = wide["norm"].str.removesuffix("_norm")
    rounding = _ROUNDING.get(str(measured.provenance.model["dtype"]), _ROUNDING["float32"])
    last = paths.frame["last"].max()
    of_last = paths.frame.loc[paths.frame["last"] == last].drop(columns="last")
    rows = []
    for variant, group in of_last.groupby("variant", sort=False):
        needed, norm = group["linearisation"].iloc[0], group["norm"].iloc[0]
        partner = wide.loc[(wide["linearisation"] == needed) & (wide["norm"] == norm), "value"]
        if partner.empty:
            found = ", ".join(sorted(set(measured.frame["linearisation"])))
            raise InputError(
                f"variant {variant!r} stands beside the {needed!r} derivative, the profile has {found}: "
                f"measure it with sensitivity(..., linearisations=[{needed!r}])"
            )
        rows.append(_summarise(str(variant), group, np.asarray(partner), rounding))
    shown = [
        wide.assign(source=wide["linearisation"], kind="measured"),
        of_last.rename(columns={"variant": "source"}),
    ]
    columns = ["position", "token_id", "token", "source", "kind", "linearisation", "norm", "value"]
    frame = pd.concat(shown, ignore_index=True).reindex(columns=columns)
    return Comparison(frame, measured.provenance, pd.DataFrame(rows))


def _require_same_run(measured: Provenance, paths: Provenance) -> None:
    if measured.token_ids != paths.token_ids:
        raise InputError("compare: the profile and the path sum are of different prompts (their token ids differ)")
    if measured.model["weight_hash"] != paths.model["weight_hash"]:
        raise InputError("compare: the profile and the path sum are of different models (their weight hashes differ)")
    if measured.model.get("config_hash") != paths.model.get("config_hash"):
        raise InputError("compare: the profile and the path sum are of different configurations of the model")
    if measured.edits != paths.edits:
        raise InputError(
            "compare: the profile and the path sum were measured under different edits of the forward pass; "
            "measure both inside the same with-block"
        )


def _summarise(variant: str, group: pd.DataFrame, measured: np.ndarray, rounding: float) -> dict[str, object]:
    value = group["value"].to_numpy()
    kind = group["kind"].iloc[0]
    # Below this a measured norm is rounding of the larger ones, so that it can break no bound.
    floor = rounding * measured.max() * 1e-3
    holds = bool((measured <= value * (1.0 + rounding) + floor).all())
    loose = _log10_ratio(value, measured) if VARIANTS[variant].scaled else np.full_like(value, np.nan)
    return {
        "variant": variant,
        "kind": kind,
        "linearisation": group["linearisation"].iloc[0],
        "norm": group["norm"].iloc[0],
        "holds": holds if kind == "certified" else pd.NA,
        "median_log10_looseness": float(np.median(loose)),
        "max_log10_looseness": float(np.max(loose)),
        "spearman": _spearman(value, measured),
    }


def _log10_ratio(value: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """log10(value / measured); 0 where both are exactly 0 (a token out of every window's reach), else infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log10(value) - np.log10(measured)
    return np.where((value == 0) & (measured == 0), 0.0, ratio)


def _spearman(value: np.ndarray, measured: np.ndarray) -> float:
    if len(value) < 3 or np.ptp(value) == 0 or np.ptp(measured) == 0:
        return float("nan")
    return float(np.asarray(spearmanr(value, measured))[0])
