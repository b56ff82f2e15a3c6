"""Results made of numbers that a test chooses, through the real classes and the real `compare`;
what their charts hold.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.measure import (
    Bounds,
    Collapse,
    Comparison,
    Decodability,
    Evaluation,
    FailureStage,
    Sensitivity,
    compare,
)
from ostools.measure.answers.result import COLUMNS, summarise
from ostools.measure.bounds.variants import variant_named
from ostools.measure.probes.scores import DECODABLE, SAME
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


def made_sensitivity(
    profiles: Mapping[str, Sequence[float]], tokens: Sequence[str] = ()
) -> Sensitivity:
    """Operator norms as given, Frobenius norms twice as large."""
    tables = [
        pd.DataFrame(
            {"position": range(len(values)), "token": tokens_of(len(values), tokens)}
        ).assign(
            token_id=range(len(values)),
            origin=pd.array([None] * len(values), dtype="str"),
            linearisation=name,
            layer=0,
            method="exact",
            **{
                f"operator_{kind}": np.asarray(values, dtype=float)
                for kind in ("norm", "lower", "upper")
            },
            **{
                f"frobenius_{kind}": 2 * np.asarray(values, dtype=float)
                for kind in ("norm", "lower", "upper")
            },
        )
        for name, values in profiles.items()
    ]
    return Sensitivity(pd.concat(tables, ignore_index=True), PROVENANCE)


def made_paths(variants: Mapping[str, Sequence[float]], tokens: Sequence[str] = ()) -> Bounds:
    tables = [
        pd.DataFrame(
            {"position": range(len(values)), "token": tokens_of(len(values), tokens)}
        ).assign(
            token_id=range(len(values)),
            last=len(values) - 1,
            variant=name,
            kind=variant_named(name).kind,
            linearisation="frozen",
            norm="operator",
            value=np.asarray(values, dtype=float),
        )
        for name, values in variants.items()
    ]
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
    """`distance(n)` in every dtype at every site; `noise` by dtype; `pairs` maps a pair to a factor
    on its distance; the dtypes of `overflow` hold no number."""
    noise = dict.fromkeys(overflow, 1e-9) | dict({"float32": 1e-9} if noise is None else noise)
    rows = [
        {
            "pair": pair,
            "seed": seed,
            "length": n,
            "dtype": dtype,
            "noise": level,
            "mean": scale * distance(n),
        }
        | {"site": site, "per": per, "norm": norm, "spread": spread}
        for dtype, level in noise.items()
        for pair, scale in (pairs or {"theorem": 1.0}).items()
        for seed in seeds
        for n in lengths
        for site, per, norm, spread in READINGS
    ]
    frame: Any = pd.DataFrame(rows)
    logits = frame["site"] == "logits"
    frame = frame.assign(
        task=task, tokens=frame["length"] + 5, layer=2, weights="given", weight_shift=0.0, pair_noise=frame["noise"],
        minimum=frame["mean"] / frame["spread"], maximum=frame["mean"] * frame["spread"], relative=frame["mean"] / 10,
        ulps=frame["mean"] / (frame["noise"] / 2), float64_distance=frame["mean"], machine_line=frame["noise"] / 2,
        total_variation=np.where(logits, 0.25, np.nan),
        same_top_token=frame["length"].map(same_token).where(logits).astype("boolean"),
        identical_logits=frame["length"].map(identical).where(logits).astype("boolean"),
        next_token=pd.Series("1", frame.index).where(logits),
        status=np.where(frame["dtype"].isin(list(overflow)), "not finite", "measured"),
        given_distance=frame["mean"], given_relative=frame["mean"] / 10,
    ).drop(columns="spread")  # fmt: skip
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
    frame.loc[frame["status"] == "not finite", numbers] = np.nan
    frame.loc[
        frame["status"] == "not finite", ["same_top_token", "identical_logits", "next_token"]
    ] = pd.NA
    parameters = {
        **PROVENANCE.parameters,
        "not_finite": dict.fromkeys(overflow, "residual at length 1 is not finite"),
    }
    return Collapse(frame, replace(PROVENANCE, parameters=parameters))


READINGS = (
    *((site, "vector", "l2", 1) for site in ("residual", "y", "logits")),
    ("y", "head-chunk", "linf", 2),
)
"""Site, piece, norm, and how many times the mean the greatest is."""


LONG = "</script><b>"
_ANSWER: dict[str, Any] = {
    **{
        "mode": "none",
        "mitigation": "none",
        "elicitation": "zero-shot",
        "status": "none",
        "seed": 0,
    },
    **{
        "tokens": 9,
        "key": "3",
        "answer": LONG,
        "text": LONG,
        "content": LONG,
        "ended": "eos",
    },
    **{
        "kind": "answered",
        "correct": False,
        "number": 5,
        "absolute_error": 2,
        "log_probability": -1.0,
    },
    **{"within_training": None},
}


def made_evaluation(
    rows: Sequence[Mapping[str, Any]], *, random: bool = True, task: str = "count-ones", **how: Any
) -> Evaluation:
    """A result of rows that say only what they care about."""
    full: Any = pd.DataFrame([_ANSWER | {"task": task} | dict(row) for row in rows])
    if "content_correct" not in full:
        full = full.assign(content_correct=full["correct"].where(full["kind"] == "answered", None))
    frame: Any = full[list(COLUMNS)].astype(COLUMNS)
    settings = {
        "task": task,
        "elicitation": "zero-shot",
        "temperature": 0.0,
        "chat": False,
        "max_new_tokens": 20,
    }
    settings |= {"rewritten": False, "trained_length": 4} | how
    provenance = Provenance(
        {"name": "tiny", "trained_lengths": {"count-ones": 4}}, settings, None, {}
    )
    return Evaluation(frame, provenance, summarise(frame, random))


READ_AT: dict[str, Any] = {
    **{
        "position": "answer",
        "tokens": [" "],
        "places": [[4, 40], [8, 48]],
        "chat": True,
        "line": "There are ",
    },
    **{"before_answer": "There are ", "numeric": True, "reasons": False},
}


def made_failure_stage(
    answers: Mapping[int, tuple[int, int]], hidden: Collection[int] = (), decoded: int | None = None
) -> FailureStage:
    """Right and wrong answers in bfloat16 by length; so many of each length's are said right by a
    probe (None: not tested). At the lengths `hidden` the pair is below the noise."""
    given = [
        (n, correct)
        for n, (right, wrong) in answers.items()
        for correct in [True] * right + [False] * wrong
    ]
    same = {"mitigation": "none", "dtype": "bfloat16"}
    rows = pd.DataFrame(given, columns=pd.Index(["length", "correct"])).assign(
        seed=range(len(given)), **same
    )
    place = {"dtype": "bfloat16", "site": "y", "layer": 2, "test": SAME, "control": "none"}
    probes = pd.DataFrame(
        [place | {"accuracy": 0.5, "low": 0.4, "high": 0.6, "finding": DECODABLE}]
    )
    said = pd.DataFrame({"length": [], "seed": []}).assign(**place)
    frame = pd.DataFrame([{"length": n, "indistinguishable": n in hidden} for n in answers])
    frame = frame.assign(verdict="not decided", reason="made", **same)
    frame["prompts"] = [0 if decoded is None else sum(each) for each in answers.values()]
    frame["decoded"] = float("nan") if decoded is None else decoded / frame["prompts"]
    parameters = {
        "task": "count-ones-bernoulli",
        "dtypes": ["bfloat16"],
        "lengths": list(answers),
        "read_at": READ_AT,
    }
    parameters |= {"prompts": 6, "seeds": [0, 1]}
    provenance = replace(PROVENANCE, parameters=parameters)
    return FailureStage(frame, provenance, rows, Decodability(probes, PROVENANCE, said))


def tables_of(chart: Any) -> list[dict[str, list[Any]]]:
    """Every table inside a chart, as columns."""
    return [
        {name: list(column) for name, column in columns.items()}
        for (columns,) in chart.to_dict(validate=False).get("datasets", {}).values()
    ]


def rows_of(chart: Any, *having: str) -> list[dict[str, Any]]:
    """The rows inside a chart, out of all its tables that have these columns."""
    tables = [table for table in tables_of(chart) if {*having} <= {*table}]
    return [
        dict(zip(table, cells, strict=True))
        for table in tables
        for cells in zip(*table.values(), strict=True)
    ]


def words_of(chart: Any) -> str:
    """Everything that a chart may write, and its rows."""
    return json.dumps(chart.to_dict(validate=False), ensure_ascii=False)
