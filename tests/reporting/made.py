"""Results made of numbers that a test chooses, through the real classes and the real `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.measure import Bounds, Collapse, Comparison, Sensitivity, compare
from ostools.measure.bounds.variants import variant_named
from ostools.results import Provenance

PROVENANCE = Provenance({"name": "made", "weight_hash": "0", "dtype": "float32"}, {}, None, {})

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'`&<>",
    "\u202egnp.exe\u2066",
    "a\x00b\x1b[31m",
    "<!--",
    "line\nbreak\r\u2028",
    "x" * 10_000,
    "{{ 7*7 }}{% raw %}",
    "\\u003c/script\\u003e",
)


def tokens_of(count: int, tokens: Sequence[str] = ()) -> list[str]:
    return [*tokens, *(f"t{place}" for place in range(len(tokens), count))]


def made_sensitivity(profiles: Mapping[str, Sequence[float]], tokens: Sequence[str] = ()) -> Sensitivity:
    """Operator norms as given, Frobenius norms twice as large."""
    tables = []
    for name, values in profiles.items():
        operator = np.asarray(values, dtype=float)
        tables.append(
            pd.DataFrame(
                {
                    "position": range(len(operator)),
                    "token_id": range(len(operator)),
                    "token": tokens_of(len(operator), tokens),
                    "linearisation": name,
                    "layer": 0,
                    "method": "exact",
                    "operator_norm": operator,
                    "operator_lower": operator,
                    "operator_upper": operator,
                    "frobenius_norm": 2 * operator,
                    "frobenius_lower": 2 * operator,
                    "frobenius_upper": 2 * operator,
                }
            )
        )
    return Sensitivity(pd.concat(tables, ignore_index=True), PROVENANCE)


def made_paths(variants: Mapping[str, Sequence[float]], tokens: Sequence[str] = ()) -> Bounds:
    tables = []
    for name, values in variants.items():
        variant = variant_named(name)
        tables.append(
            pd.DataFrame(
                {
                    "last": len(values) - 1,
                    "position": range(len(values)),
                    "token_id": range(len(values)),
                    "token": tokens_of(len(values), tokens),
                    "variant": name,
                    "kind": variant.kind,
                    "linearisation": "frozen",
                    "norm": "operator",
                    "value": np.asarray(values, dtype=float),
                }
            )
        )
    return Bounds(pd.concat(tables, ignore_index=True), PROVENANCE)


def made_comparison(
    frozen: Sequence[float], variants: Mapping[str, Sequence[float]], tokens: Sequence[str] = ()
) -> Comparison:
    measured = made_sensitivity({"full": frozen, "frozen": frozen}, tokens)
    return compare(measured, made_paths(variants, tokens))


def made_collapse(
    distance: Callable[[int], float],
    *,
    lengths: Sequence[int] = range(1, 129),
    noise: Mapping[str, float] | None = None,
    pairs: Mapping[str, float] | None = None,
    seeds: Sequence[int] = (0,),
    same_token: Callable[[int], bool] = lambda n: True,
    identical: Callable[[int], bool] = lambda n: False,
    task: str = "figure-5a",
    overflow: Sequence[str] = (),
) -> Collapse:
    """`distance(n)` in every dtype at every site; `noise` by dtype; `pairs` maps a pair to a factor on its distance; the dtypes
    of `overflow` hold no number."""
    noise = dict.fromkeys(overflow, 1e-9) | dict(
        {"float32": 1e-9} if noise is None and "float32" not in overflow else noise or {}
    )
    rows: list[dict[str, Any]] = []
    for dtype, level in noise.items():
        for pair, scale in (pairs or {"theorem": 1.0}).items():
            for seed in seeds:
                for n in lengths:
                    for site in ("residual", "y", "logits"):
                        rows.append(_row(task, pair, seed, n, dtype, site, scale * distance(n), level))
                        if site == "logits":
                            rows[-1] |= {
                                "total_variation": 0.25,
                                "same_top_token": same_token(n),
                                "identical_logits": identical(n),
                            }
                    spread = scale * distance(n)
                    heads = _row(task, pair, seed, n, dtype, "y", spread, level)
                    rows.append(
                        heads | {"per": "head-chunk", "norm": "linf", "minimum": spread / 2, "maximum": spread * 2}
                    )
    frame: Any = (
        pd.DataFrame(rows)
        .assign(weights="given", weight_shift=0.0, pair_noise=lambda frame: frame["noise"], status="measured")
        .astype({"same_top_token": "boolean", "identical_logits": "boolean"})
    )
    reference = frame[(frame["per"] == "vector") & (frame["dtype"] == frame["dtype"].iloc[0])]
    reference = reference.rename(columns={"mean": "distance"})
    reference["relative"] = reference["distance"] / 10.0
    columns = ["task", "pair", "seed", "weights", "length", "site", "distance", "relative"]
    gone = frame["dtype"].isin(list(overflow))
    numbers = [
        "mean",
        "minimum",
        "maximum",
        "relative",
        "ulps",
        "float64_distance",
        "noise",
        "pair_noise",
        "machine_line",
    ]
    frame.loc[gone, numbers] = float("nan")
    frame.loc[gone, ["same_top_token", "identical_logits"]] = pd.NA
    frame.loc[gone, "status"] = "not finite"
    parameters = {**PROVENANCE.parameters} | {
        "not_finite": dict.fromkeys(overflow, "residual at length 1 is not finite")
    }
    provenance = replace(PROVENANCE, parameters=parameters)
    return Collapse(frame, provenance, reference[columns].reset_index(drop=True))


def _row(task: str, pair: str, seed: int, n: int, dtype: str, site: str, value: float, noise: float) -> dict[str, Any]:
    return {
        "task": task,
        "pair": pair,
        "seed": seed,
        "length": n,
        "tokens": n + 5,
        "dtype": dtype,
        "site": site,
        "layer": 2,
        "per": "vector",
        "norm": "l2",
        "mean": value,
        "minimum": value,
        "maximum": value,
        "relative": value / 10,
        "ulps": value / (noise / 2),
        "float64_distance": value,
        "noise": noise,
        "machine_line": noise / 2,
        "total_variation": float("nan"),
        "same_top_token": None,
        "identical_logits": None,
    }
