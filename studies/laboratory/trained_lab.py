"""The trained laboratory: every model of the grid, before and after training, by the measurements
that loaded models get.

Purpose: what the laboratory of random weights leaves open. How fast representations collapse under
each encoding, depth and trained window, once the weights have learnt something; and whether it goes
with what is answered beyond the trained lengths.

Cost: some 35 s a model on one core, before and after training together, and 10 s a window that is
forced on it; training is in `studies.laboratory.training`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError, in_words
from ostools.ground.progress import Progress, tell
from ostools.measure import attention_variation, collapse, evaluate, probe, profile, sensitivity
from ostools.measure.collapse.verdicts import is_hidden
from ostools.measure.probes.scores import SAME
from ostools.mitigations import Mitigation, mitigation, running
from ostools.models import view_in
from ostools.results import Frame, Provenance, Result, save_table
from ostools.tasks import RepeatedIds
from studies.laboratory.config import BASE, WINDOWS, LabConfig, grid
from studies.laboratory.prompts import BOS, IDS, TASKS, LabTask
from studies.laboratory.runs import collapse_start
from studies.laboratory.training import load_lab, untrained_lab

TABLE = Path(__file__).parent / "trained.parquet"
"""The stored table of the whole grid."""
COLLAPSE_LENGTHS = tuple(range(1, 257))
"""A collapse length needs every one of them; the table keeps the distances at `KEPT_LENGTHS` of
them.
"""
KEPT_LENGTHS = (*range(1, 33), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16))
ANSWER_LENGTHS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256)
SENSITIVITY_LENGTHS = (16, 32, 64, 128)
PROBE_LENGTHS = (32, 48, 64, 96, 128)
"""A probe is trained on sequences of all of these; its share of right answers is of one length
each.
"""
PROMPTS = 32
"""Random sequences a length that each question is asked of, and probes."""
BETWEEN = "without sink and last"
KEYS = (
    "encoding",
    "n_layers",
    "window",
    "sinks",
    "norm",
    "trained_in",
    "forced",
    "seed",
    "weights",
)
COLUMNS = (*KEYS, "precision", "task", "quantity", "layer", "length", "seen", "value", "asked")
_SHAPE = ("start", "middle", "end")
_SHAPE += tuple(f"{third}_contrast_{end}" for third in ("start", "end") for end in ("low", "high"))
_Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TrainedLab(Result):
    """`frame`, one row a number. What was measured: encoding, n_layers, window (keys that a query
    sees; 0: all), sinks (first tokens that are seen beside it), norm ("pre" or "post"), trained_in
    (the arithmetic of training), forced (the window was put on a model that was trained without
    one), seed, weights ("trained", "untrained": the same model before its first step). What of it:
    precision, task, quantity, layer (NA where there is none), length (items), seen (no longer than
    the longest training sequence), value, asked (NA where nothing was counted). By quantity:

    distance, l1: ||y_n - y*_(n+1)||_2 and the L1 distance at v^(L), in float64, of n and n + 1 ones
        after <bos> (Theorem B.3).
    noise, pair_noise: what rounding to the precision did to y_n, and to the difference.
    collapse_length, pair_collapse_length: `runs.collapse_start` by these two, at all lengths to 256
        (`length`); a missing
        value: "not shown up to there".
    total_variation: delta(alpha_n, alpha*_(n+1)) + alpha*_(n+1,n+1), by layer, mean over heads, in
        float64.
    accuracy: the share of `asked` prompts that are answered right. `task` ends in -hard for the
        paper's one sequence a length.
    absolute_error: the mean of |answer - key| over the answers that are numbers.
    decodable: the share of `asked` prompts, those of accuracy, whose answer a linear probe at y
        says (`ostools.probe`, "same lengths": ridge regression that was trained on other sequences
        of `PROBE_LENGTHS`, in the same precision).
    sink_share, last_share, effective_tokens; start, middle, end (mean log10 operator norm of d y_n
    / d v_i^(0) in each third,
        without the first and the last token), start_contrast_low and so on (95% limits of start or
        end minus middle); u_shape (1 where `ostools.profile` finds a U, 0 where it does not; from
        60 tokens on): of one prompt of random bits.
    """


def measured_cell(directory: Path, config: LabConfig) -> Frame:
    """All numbers of one model: trained and untrained; of the grid's base under each forced window
    too.
    """
    trained, before = load_lab(directory / config.name), untrained_lab(config)
    tables = [_measured(trained, config, "trained"), _measured(before, config, "untrained")]
    if config == replace(BASE, seed=config.seed):
        for window in WINDOWS:
            forced = mitigation(f"sliding-window:window={window}")
            tables.append(_measured(trained, replace(config, window=window), "trained", forced))
    return pd.concat(tables, ignore_index=True)


def _measured(
    model: TransformerBridge, config: LabConfig, weights: str, forced: Mitigation | None = None
) -> Frame:
    keys: _Row = {
        "encoding": config.encoding,
        "n_layers": config.n_layers,
        "window": config.window or 0,
    }
    keys |= {"sinks": config.sinks, "norm": config.norm, "trained_in": config.dtype}
    keys |= {"forced": forced is not None, "seed": config.seed, "weights": weights}
    rows = [*_collapse(model, forced), *_answers(model, forced), *_probed(model, forced)]
    rows += _profiles(model, forced)
    blank = {"precision": "float32", "task": "", "layer": None, "asked": None}
    table: Any = pd.DataFrame([blank | keys | row for row in rows])
    table = table.assign(seen=table["length"] <= config.longest)[list(COLUMNS)]
    return table.astype({"layer": "Int64", "asked": "Int64", "length": "int64", "value": "float64"})


def _collapse(model: TransformerBridge, forced: Mitigation | None) -> Iterator[_Row]:
    """Distances, their noise, the collapse lengths and the total variation of n ones and n + 1."""
    task = RepeatedIds([IDS[BOS]], item=IDS["1"], name="ones")
    result = collapse(
        model, task, lengths=COLLAPSE_LENGTHS, layers=[int(model.cfg.n_layers)], mitigation=forced
    )
    vectors: Any = result.frame[result.frame["per"] == "vector"]
    at_y = vectors[(vectors["site"] == "y") & (vectors["norm"] == "l2")]
    last = (
        (vectors["site"] == "residual")
        & (vectors["layer"] == model.cfg.n_layers)
        & (vectors["norm"] == "l1")
    )
    for quantity, table, column in (
        ("distance", at_y[at_y["dtype"] == "float32"], "float64_distance"),
        ("l1", vectors[last & (vectors["dtype"] == "float32")], "float64_distance"),
        ("noise", at_y, "noise"),
        ("pair_noise", at_y, "pair_noise"),
    ):
        stored = table[table["length"].isin(KEPT_LENGTHS)]
        for length, dtype, value in stored[["length", "dtype", column]].itertuples(
            index=False, name=None
        ):
            precision = "float64" if column == "float64_distance" else dtype
            yield {
                "task": "ones",
                "quantity": quantity,
                "length": length,
                "precision": precision,
                "value": value,
            }
    for dtype, rows in at_y.groupby("dtype", sort=False):
        rows = rows.sort_values("length")
        for quantity, noise in (
            ("collapse_length", "noise"),
            ("pair_collapse_length", "pair_noise"),
        ):
            hidden = is_hidden(rows["float64_distance"], rows[noise], rows["mean"])
            start = collapse_start(hidden.tolist(), rows["length"].tolist())
            row = {
                "task": "ones",
                "quantity": quantity,
                "length": int(rows["length"].max()),
                "precision": dtype,
            }
            yield row | {"value": float("nan") if start is None else float(start)}
    variation: Any = attention_variation(model, task, lengths=KEPT_LENGTHS, mitigation=forced).frame
    for (layer, length), value in variation.groupby(["layer", "length"])["total"].mean().items():
        row = {"task": "ones", "quantity": "total_variation", "layer": layer, "length": length}
        yield row | {"precision": "float64", "value": value}


def _answers(model: TransformerBridge, forced: Mitigation | None) -> Iterator[_Row]:
    """Answers to every question, in float32 and, without a forced window, with all arithmetic in
    bfloat16.
    """
    views = {"float32": model} | (
        {"bfloat16": view_in(model, torch.bfloat16)} if forced is None else {}
    )
    options: dict[str, Any] = {"mitigation": forced, "max_new_tokens": 4}
    options |= {"elicitation": "zero-shot", "lengths": ANSWER_LENGTHS}
    forms = [LabTask(question, hard) for question in TASKS for hard in (False, True)]
    for precision, viewed in views.items():
        for form in forms:
            result = evaluate(viewed, form, seeds=range(1 if form.hard else PROMPTS), **options)
            for summary in result.summary.to_dict("records"):
                row = {"precision": precision, "task": form.name, "length": summary["length"]}
                row |= {"asked": summary["asked"]}
                yield row | {"quantity": "accuracy", "value": summary["accuracy"]}
                yield row | {"quantity": "absolute_error", "value": summary["mean_absolute_error"]}


def _probed(model: TransformerBridge, forced: Mitigation | None) -> Iterator[_Row]:
    """Share of probes that read the answer to each question off y, on the prompts and in the
    precisions of `_answers`.
    """
    options: dict[str, Any] = {
        "lengths": PROBE_LENGTHS,
        "seeds": range(PROMPTS),
    }
    options |= {
        "mitigation": forced,
        "dtypes": ("float32", "bfloat16") if forced is None else ("float32",),
    }
    for question in TASKS:
        form = LabTask(question)
        table: Any = probe(model, form, random_weights=False, **options).predictions
        table = table[
            (table["site"] == "y") & (table["test"] == SAME) & (table["control"] == "none")
        ]
        for (precision, length), right in table.groupby(["dtype", "length"], sort=False)["right"]:
            row = {"precision": precision, "task": form.name, "length": length, "asked": len(right)}
            yield row | {"quantity": "decodable", "value": right.mean()}


def _profiles(model: TransformerBridge, forced: Mitigation | None) -> Iterator[_Row]:
    """Shape of the sensitivity of y_n, on one prompt of random bits a length."""
    for length in SENSITIVITY_LENGTHS:
        with nullcontext() if forced is None else running(model, forced):
            result = sensitivity(
                model, LabTask("count").prompt(length, 0), linearisations=("full",)
            )
        profiled = profile(result)
        shape = profiled.shapes[profiled.shapes["kept"] == BETWEEN].iloc[0]
        values = {
            name: profiled.summary.iloc[0][name]
            for name in ("sink_share", "last_share", "effective_tokens")
        }
        values |= {name: shape[name] for name in _SHAPE}
        if not str(shape["verdict"]).startswith("not tested"):
            values["u_shape"] = float(shape["verdict"] == "U-shape")
        for quantity, value in values.items():
            yield {"task": "lab-count", "quantity": quantity, "length": length, "value": value}


def measured_grid(
    folder: Path, configs: Sequence[LabConfig], progress: Progress | None = None
) -> TrainedLab:
    """The numbers of every trained model in `folder/models`; the provenance has their configs and
    hashes.

    Each model's table is kept in `folder/cells`, and what is there is not measured again. Raises
    `InputError` for a model that is not trained to the end.
    """
    frames, cells = [], {}
    (folder / "cells").mkdir(exist_ok=True)
    for number, config in enumerate(configs, start=1):
        target = folder / "cells" / f"{config.name}.parquet"
        if not target.exists():
            provenance = Provenance.collect(
                load_lab(folder / "models" / config.name), config=asdict(config)
            )
            save_table(measured_cell(folder / "models", config), provenance.as_dict(), target)
        frame = pd.read_parquet(target)
        origin = frame.attrs.pop("ostools")
        cells[config.name] = {
            "config": origin["parameters"]["config"],
            "weight_hash": origin["model"]["weight_hash"],
        }
        frames.append(frame)
        tell(progress, number, len(configs))
    counts = {"measured": len(configs), "planned": len(grid())}
    provenance = Provenance.without_model(measurement="trained-lab", cells=cells, **counts)
    return TrainedLab(pd.concat(frames, ignore_index=True), provenance)


def trained_lab(path: Path = TABLE) -> TrainedLab:
    """The trained laboratory from its stored table, or from another that was saved. Raises
    `InputError` for what is none.
    """
    try:
        frame = pd.read_parquet(path)
        origin = frame.attrs.pop("ostools")
        provenance = Provenance(**{**origin, "token_ids": None, "edits": tuple(origin["edits"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"expected the table of the trained laboratory in {str(path)!r}: {in_words(error)}"
        ) from None
    if list(frame.columns) != list(COLUMNS):
        raise InputError(
            f"expected the trained laboratory's columns in {str(path)!r}, found {', '.join(frame.columns)}"
        )
    return TrainedLab(frame, provenance)
