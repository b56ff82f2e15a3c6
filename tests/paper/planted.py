"""Results of a reproduction's parts, planted: numbers that a test chooses, in the real classes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

import ostools as ost
from ostools.measure import AttentionVariation, Bounds, Collapse, Sensitivity
from ostools.measure.collapse.verdicts import OVERFLOWS
from ostools.paper.lemmas import ALL_HYPOTHESES
from ostools.results import Provenance, Result

NOTHING = pd.DataFrame()


def made(frame: pd.DataFrame, **parameters: Any) -> Result:
    return Result(frame, Provenance({"name": "made"}, parameters, None, {}))


def figure_2(
    right: Callable[[str, str, int], bool],
    lengths: Sequence[int] = range(10, 301, 10),
    wrong: str = "1",
) -> Any:
    """`right`: by panel, task and length."""
    rows = [
        {"panel": panel, "task": task, "length": n, "seed": 0, "correct": right(panel, task, n),
         "answer": f"The answer to your question is: {'0' if right(panel, task, n) else wrong}"}
        for panel in "abc"
        for task in ("copy-last", "copy-first")
        for n in lengths
    ]  # fmt: skip
    return {"figure-2": {"figure": made(pd.DataFrame(rows))}}


def figure_3(
    said: Callable[[str, int], int | None],
    lengths: Sequence[int] = range(5, 151, 5),
    modes: Sequence[str] = ("none",),
    only: Callable[[str, int], int | None] | None = None,
) -> Any:
    """`said`: the number that is answered, by task and length; None: none. Every item counts.
    `only`: the same where the answer alone is asked for, of four tasks."""
    tasks = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-word")
    frame = pd.concat(
        [_answered(task, mode, said, lengths) for task in tasks for mode in modes],
        ignore_index=True,
    )
    alone = (
        {task: made(_answered(task, "answer-only", only, lengths)) for task in tasks}
        if only
        else {}
    )
    return {"figure-3": {"figure": made(frame)}, "answer-only": alone}


def _answered(
    task: str, mode: str, said: Callable[[str, int], int | None], lengths: Sequence[int]
) -> pd.DataFrame:
    rows = []
    for n in lengths:
        number = said(task, n)
        rows.append({"task": task, "mode": mode, "length": n, "seed": 0, "key": str(n), "number": number,
                     "correct": number == n, "absolute_error": None if number is None else abs(number - n)})  # fmt: skip
    return pd.DataFrame(rows).astype({"number": "Int64", "absolute_error": "Int64"})


Curve = Callable[[np.ndarray, int], np.ndarray]


def figure_5(
    curves: dict[str, Curve],
    *,
    noise: float = 1e-3,
    lengths: Sequence[int] = range(1, 129),
    seeds: int = 5,
    ends: dict[tuple[str, str], int | str | None] | None = None,
) -> Any:
    """The distance of each panel by length and seed, the same in both precisions; `noise` in
    bfloat16; `ends`: collapse lengths by panel and dtype, or "not finite"."""
    n, read = (
        np.array(lengths, dtype=float),
        {"site": "residual", "per": "head-chunk", "norm": "linf"},
    )
    origin = Provenance({"name": "made"}, read, None, {})
    frames, measured = [], {}
    for panel, curve in curves.items():
        common = {
            "task": panel,
            "pair": "theorem",
            "length": list(lengths),
            **read,
            "layer": 2,
            "noise": noise,
        }
        table = pd.concat(
            [
                pd.DataFrame({**common, "seed": seed, "dtype": dtype, "mean": curve(n, seed)})
                for seed in range(seeds if panel == "b" else 1)
                for dtype in ("float32", "bfloat16")
            ],
            ignore_index=True,
        )
        averaged: Any = table.groupby(["pair", "dtype", "length"], sort=False)[
            ["mean", "noise"]
        ].mean()
        frames.append(averaged.reset_index().assign(panel=panel))
        exact = {"given_distance": curve(n, 0), "given_relative": curve(n, 0) / 10, "seed": 0}
        exact |= {"per": "vector", "norm": "l2", "dtype": "float64", "tokens": 9}
        rows = pd.concat([table, pd.DataFrame({**common, **exact})], ignore_index=True)
        measured[panel] = Collapse(rows.assign(status="measured"), origin)
    rows = [
        {
            "panel": panel,
            "pair": "theorem",
            "seed": 0,
            "dtype": dtype,
            "first": None if end == OVERFLOWS else end,
            "longest": None if end == OVERFLOWS else max(lengths),
        }
        for (panel, dtype), end in (ends or {}).items()
    ]
    columns = ["panel", "pair", "seed", "dtype", "first", "longest"]
    collapsed = pd.DataFrame(rows, columns=columns).astype({"first": "Int64", "longest": "Int64"})
    return {
        "figure-5": {"figure": ost.paper.Figure5(pd.concat(frames), origin, collapsed, measured)}
    }


def attention(
    deltas: Sequence[Curve], owns: Sequence[Curve], lengths: Sequence[int] = range(8, 257, 8)
) -> Any:
    """A curve of delta, and one of the own weight, for each layer; two heads, above and below it."""
    n, curves_by_name = np.array(lengths, dtype=float), {"delta": deltas, "own": owns}
    tables = []
    for layer in range(max(len(deltas), len(owns))):
        values = {
            name: curves[min(layer, len(curves) - 1)](n, 0)
            for name, curves in curves_by_name.items()
        }
        table = pd.DataFrame({"layer": layer, "length": list(lengths), "total": 0, "kl": 0})
        for head, factor in enumerate((0.5, 1.5)):
            scaled = {name: factor * column for name, column in values.items()}
            tables.append(table.assign(head=head, **scaled))
    frame = pd.concat(tables, ignore_index=True)
    return {"attention": {"variation": AttentionVariation(frame, Provenance.without_model())}}


def layered(curves: Sequence[Curve], lengths: Sequence[int] = range(8, 257, 8)) -> Any:
    """The float64 L1 distance after each block, from layer 0 on."""
    n = np.array(lengths, dtype=float)
    read = {"site": "residual", "per": "vector", "norm": "l1", "length": list(lengths)}
    read |= {"task": "figure-5a", "pair": "theorem", "seed": 0, "dtype": "float64"}
    values = [curve(n, 0) for curve in curves]
    distances = [{"mean": v, "float64_distance": v, "relative": v / 10} for v in values]
    tables = [pd.DataFrame({**read, "layer": layer, **d}) for layer, d in enumerate(distances)]
    frame = pd.concat(tables, ignore_index=True)
    return {"layers": {"collapse": Collapse(frame, Provenance.without_model())}}


def figure_8(curve: Curve, seeds: int = 5) -> Any:
    n = np.array([16, 32, 64, 128, 256, 512, 1024, 2048, 4096], dtype=float)
    tables = [
        pd.DataFrame({"reading": "block", "seed": s, "length": n, "l1": curve(n, s)})
        for s in range(seeds)
    ]
    return {
        "figure-8": {
            "figure": ost.paper.Figure8(pd.concat(tables), Provenance.without_model(), NOTHING)
        }
    }


def figure_9(curve: Curve, bound: float = 1e9, seeds: int = 5) -> Any:
    n = np.array([10, 100, 300, 1000, 3000, 10000], dtype=float)
    tables = [
        pd.DataFrame({"seed": s, "length": n, "delta": curve(n, s), "bound": bound})
        for s in range(seeds)
    ]
    return {
        "figure-9": {
            "figure": ost.paper.Figure9(
                pd.concat(tables), Provenance.without_model(noisy=10), NOTHING
            )
        }
    }


def over_squashing(
    norms: Sequence[Curve],
    *,
    bound: float = 2.0,
    paths: Curve | None = None,
    printed: float = 1.0,
    digits: Sequence[int] = range(4, 20),
) -> Any:
    """A prompt of 24 tokens for each curve of norms by position; the certified bound is so many
    times the norm, as is equation 4 (`printed`)."""
    place, results = np.arange(24, dtype=float), {}
    ids = [7 if i in digits else 100 + i for i in range(24)]
    for seed, curve in enumerate(norms):
        values = curve(place, seed)
        common = {"position": range(24), "token_id": ids, "layer": 0, "operator_norm": values}
        tables = [pd.DataFrame({**common, "linearisation": name}) for name in ("full", "frozen")]
        results[f"measured-{seed}"] = Sensitivity(
            pd.concat(tables, ignore_index=True), Provenance.without_model()
        )
        sums = {"local": bound * values, "theorem-b5-literal": printed * values}
        sums["proof"] = values if paths is None else paths(place, seed)
        tables = [
            pd.DataFrame({"position": range(24), "variant": name, "value": v})
            for name, v in sums.items()
        ]
        origin = Provenance.without_model(digits=list(digits))
        results[f"paths-{seed}"] = Bounds(pd.concat(tables, ignore_index=True), origin)
    return {"over-squashing": results}


def pattern_powers(remainder: float, observed: float, predicted: float) -> Any:
    rates = {"remainder": remainder, "observed_rate": observed, "predicted_rate": predicted}
    frame = pd.DataFrame({"layer": [0, 1], "power": 64, **rates})
    return {"over-squashing": {"powers": Result(frame, Provenance.without_model())}}


def retrieved(
    found: Sequence[bool], first: str, last: str, quantity: str = "log_probability"
) -> Any:
    """How often the value is named, and the verdict at each end."""
    numbers = {"seeds": 6, "difference": 1.0, "low": 0.5, "high": 1.5}
    ends = pd.DataFrame(
        {"quantity": quantity, "end": ["first", "last"], "verdict": [first, last], **numbers}
    )
    return {
        "retrieval": {
            "retrieval": ost.paper.Retrieval(
                pd.DataFrame({"found": found}), Provenance.without_model(), ends
            )
        }
    }


def lemmas(name: str, passed: Sequence[bool], hypotheses: str = ALL_HYPOTHESES) -> Any:
    frame = pd.DataFrame(
        {"lemma": name, "hypotheses": hypotheses, "computed": "a figure", "passed": passed}
    )
    return {"lemmas": {"lemmas": Result(frame, Provenance.without_model())}}


def counted(tested: int, twice: int, once: int, status: str = "reached at 10") -> Any:
    row = {"dtype": "bfloat16", "impossible_status": status, "tested_pairs": tested}
    frame = pd.DataFrame([row | {"right_twice": twice, "right_once": once}])
    return {"counting": {"counting": Result(frame, Provenance.without_model())}}


def studied(mitigation: str, about: str, verdict: str) -> Any:
    row = {
        "mitigation": mitigation,
        "answers": "not decided",
        "collapse": "not decided",
        "sentence": f"{verdict}.",
    }
    verdicts = pd.DataFrame([row | {about: verdict}])
    return {
        "remedies": {
            "study": ost.measure.Study(verdicts, Provenance.without_model(), NOTHING, verdicts)
        }
    }
