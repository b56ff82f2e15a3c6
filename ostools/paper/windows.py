"""Sliding windows of every size: collapse against answers.

The paper does not measure windows; a review of it names them a promising solution, and asks which
size is best. Cost: one `evaluate` and one float64 `collapse` by the loop for each window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import pandas as pd

import ostools as ost
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Position
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import checked_lengths, whole_numbers
from ostools.models import EncodingOptions
from ostools.paper.drawn_result import PaperResult
from ostools.paper.synthetic import spread_lengths
from ostools.results import Frame, Provenance
from ostools.tasks import Task
from ostools.tasks.base import seeds_of
from ostools.theory.statistics.intervals import wilson

MOST = 24
"""Number of windows where none are named."""
_OF_ANSWERS = ["length", "seed", "status", "correct", "log_probability", "within_training"]
_COLUMNS = ["window", *_OF_ANSWERS[:5], "distance", "rounding", "within_training"]


@dataclass(frozen=True, eq=False)
class WindowStudy(PaperResult):
    """One row per window, length and seed.

    Columns: window (keys that a query sees; NA: no window), length, seed, status ("none", "active",
    "inactive": the window changed no logit of the question and its answer), correct,
    log_probability (natural, of the right line), distance (L2 at y in float64 between the questions
    of n and n + 1 items), rounding (below it the distance is float64's), within_training (missing
    where the model's card does not list trained lengths of this task).

    `summary`, one row a window: window, active (questions that it changed), questions, accuracy
    with wilson_low and wilson_high (95%), log_probability (mean), distance (geometric mean; what is
    smaller than its rounding counts as that), floored (how many distances counted as their
    rounding; where there are some, the mean is not more than `distance`). Lengths beyond training
    are left out of it, unless there are no others.
    """

    summary: pd.DataFrame


@ost.measure.measurement(
    command="mitigate windows",
    examples=("--task copy-last --lengths 32 --windows 2:64 --out x.png",),
    defaults={"task": "copy-last", "lengths": "8,16,32"},
    lines_of=(ost.evaluate,),
    memory=["answers", "logits"],
)
def windows(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    windows: Iterable[int] | None = None,
    seeds: Sequence[int] = (0,),
    layers: Literal["all", "alternate"] | Sequence[int] = "all",
    sinks: int = 0,
    position: Position | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> WindowStudy:
    """Compare collapse and answers over sizes of a sliding window and without one (docs/theory.md
    7, question 3).

    Args:
        lengths: numbers of items.
        seeds: one sequence for each, if the task draws its sequence.
        windows: sizes in tokens; None: about 24 of them, from 2 to one less than the longest
            prompt, evenly spread on a log axis.
        layers: layers that slide: "all", "alternate" (0, 2, 4, ...) or numbers.
        sinks: first tokens that stay visible from everywhere, as in `mitigations.SlidingWindow`.
        position: where distances are measured, as in `collapse`.

    How questions are encoded: `EncodingOptions`. Raises `InputError` or `MitigationError` for an
    unknown task, a window below 1, a layer that is not there, a layer whose own window is narrower,
    and a prompt longer than the context.
    """
    form = ost.tasks.task(task)
    length_list, seed_list = checked_lengths(lengths), seeds_of(form, seeds)
    questions = [
        ost.measure.render_prompt(model, form, n, seed=seed, **encoding)
        for n in length_list
        for seed in seed_list
    ]
    longest, chat = max(question.tokens for question in questions), questions[0].chat
    if windows is None:
        sizes = list(spread_lengths(2, max(longest - 1, 3), MOST))
    else:
        sizes = sorted(whole_numbers("windows", windows, 1, example="range(2, 65)"))
    sliding = [ost.mitigations.SlidingWindow(size, layers, sinks) for size in sizes]
    tables: list[pd.DataFrame] = []
    read_at: object = None
    for index, (size, window) in enumerate(zip((None, *sizes), (None, *sliding), strict=True)):
        halves = [
            part_of(progress, 2 * index + half, 2 * index + half + 1, 2 * len(sizes) + 2, units=100)
            for half in (0, 1)
        ]
        # Without worked examples: a window is compared on one prompt.
        answers: Frame = ost.evaluate(
            model,
            form,
            lengths=length_list,
            seeds=seed_list,
            mitigation=window,
            elicitation="chat" if chat else "zero-shot",
            progress=halves[0],
            **encoding,
        ).frame
        pairs = ost.collapse(
            model,
            form,
            lengths=length_list,
            seeds=seed_list,
            mitigation=window,
            dtypes=["float64"],
            position=position,
            progress=halves[1],
            **encoding,
        )
        distances = ost.measure.reference_at_y(pairs.reference)
        read_at = pairs.provenance.parameters.get("read_at")
        table = answers[_OF_ANSWERS].merge(
            distances[["length", "seed", "distance", "rounding"]],
            on=["length", "seed"],
            validate="one_to_one",
        )
        tables.append(table.assign(window=size))
    frame: Frame = pd.concat(tables, ignore_index=True)
    frame = frame.astype({"window": "Int64", "correct": "boolean"})[_COLUMNS]
    settings: dict[str, Any] = {**questions[0].prompt.provenance}
    settings |= {
        "task": ost.tasks.label(form),
        "lengths": length_list,
        "seeds": seed_list,
        "chat": chat,
        "windows": sizes,
        "layers": layers,
        "sinks": sinks,
        "longest_prompt": longest,
        "read_at": read_at,
    }
    provenance = Provenance.collect(model, measurement="windows", **settings)
    return WindowStudy(frame, provenance, summarise(frame))


def summarise(frame: Frame) -> pd.DataFrame:
    """`WindowStudy.summary`: the table by window."""
    within = frame["within_training"].astype("boolean").fillna(True).astype(bool)
    used, rows = frame[within] if within.any() else frame, []
    for window, group in used.groupby("window", sort=False, dropna=False):
        right, question_count = int(group["correct"].sum()), len(group)
        low, high = wilson(right, question_count)
        distance = np.maximum(group["distance"], group["rounding"])
        rows.append(
            {
                "window": window,
                "active": int((group["status"] == "active").sum()),
                "questions": question_count,
                "accuracy": right / question_count,
                "wilson_low": low,
                "wilson_high": high,
                "log_probability": float(group["log_probability"].mean()),
                "distance": float(np.exp(np.log(distance).mean())),
                "floored": int((group["distance"] <= group["rounding"]).sum()),
            }
        )
    return pd.DataFrame(rows).astype({"window": "Int64"})
