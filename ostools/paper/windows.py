"""Sliding windows of every size: collapse against answers, and the Pareto front of the two.

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
from ostools.paper.synthetic import spread_lengths
from ostools.results import Chart, Frame, Provenance, Result
from ostools.tasks import Task
from ostools.tasks.base import seeds_of
from ostools.theory.statistics.intervals import wilson

MOST = 24
"""Number of windows where none are named."""
_LEVEL = 0.95
_FRONTS = {"front": "accuracy", "front_probability": "log_probability"}
_OF_ANSWERS = ["length", "seed", "status", "correct", "log_probability", "within_training"]
_COLUMNS = ("window", *_OF_ANSWERS[:5], "distance", "rounding", "within_training")


@dataclass(frozen=True, eq=False)
class WindowStudy(Result):
    """One row per window, length and seed.

    Columns: window (keys that a query sees; NA: no window), length, seed, status ("none", "active",
    "inactive": the window changed no logit of the question, its answer and its pair), correct,
    log_probability (natural, of the right line), distance (L2 at y in float64 between the questions
    of n and n + 1 items), rounding (below it the distance is float64's), within_training (missing
    where the model's card does not list trained lengths of this task).

    `summary`, one row a window: window, active (questions that it changed), questions, accuracy
    with wilson_low and wilson_high (95%), log_probability (mean), distance (geometric mean; what is
    smaller than its rounding counts as that), front and
    front_probability: no other window has both a larger distance and a larger accuracy (log
    probability), and none is as large in one and larger in the other. Two distances that rounding
    may have parted are equally large. Fronts are of the point estimates. floored: how many
    distances counted as their rounding; where there are some, the mean is not more than `distance`.
    Lengths beyond training are left out of it, unless there are no others (`beyond_training`).
    """

    summary: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.paper.charts.positions import windows_chart

        return windows_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.positions import windows_findings

        return windows_findings(self)


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
    questions = _questions(
        model, form, {*length_list, *(n + 1 for n in length_list)}, seed_list, encoding
    )
    longest = max(question.tokens for (n, _), question in questions.items() if n in length_list)
    in_chat = next(iter(questions.values())).chat
    if windows is None:
        sizes = list(spread_lengths(2, max(longest - 1, 3), MOST))
    else:
        sizes = sorted(whole_numbers("windows", windows, 1, example="range(2, 65)"))
    sliding: dict[int | None, Any] = {
        size: ost.mitigations.SlidingWindow(size, layers, sinks) for size in sizes
    }
    # Tried on every number of tokens before anything is measured: a layer that is not there is
    # refused first.
    acting = {size: _acting(model, window, questions) for size, window in sliding.items()}
    options: dict[str, Any] = {"lengths": length_list, "seeds": seed_list, **encoding}
    options["elicitation"] = "chat" if in_chat else "zero-shot"
    tables = []
    for index, size in enumerate((None, *sizes)):
        size_progress = part_of(progress, index, index + 1, 1 + len(sizes), units=100)
        table, read_at = _measured(model, form, sliding.get(size), position, options, size_progress)
        longer = [
            (n + 1, seed) in acting.get(size, ())
            for n, seed in zip(table["length"], table["seed"], strict=True)
        ]
        tables.append(table.assign(window=size, status=table["status"].mask(longer, "active")))
    frame: Any = pd.concat(tables, ignore_index=True).astype(
        {"window": "Int64", "correct": "boolean"}
    )[list(_COLUMNS)]
    settings: dict[str, Any] = {
        "lengths": length_list,
        "seeds": seed_list,
        "chat": in_chat,
        "windows": sizes,
    }
    settings |= {"layers": layers, "sinks": sinks, "longest_prompt": longest, "read_at": read_at}
    settings |= {**next(iter(questions.values())).prompt.provenance, "task": ost.tasks.label(form)}
    beyond = not bool(frame["within_training"].fillna(True).any())
    provenance = Provenance.collect(
        model, measurement="windows", **settings, beyond_training=beyond
    )
    return WindowStudy(frame, provenance, summarise(frame))


def _questions(
    model: TransformerBridge,
    form: Task,
    counts: Iterable[int],
    seeds: Sequence[int],
    encoding: EncodingOptions,
) -> dict[tuple[int, int], ost.measure.TaskPrompt]:
    """The question of each length and seed."""
    keys = [(n, seed) for n in sorted(counts) for seed in seeds]
    return {
        (n, seed): ost.measure.render_prompt(model, form, n, seed=seed, **encoding)
        for n, seed in keys
    }


def _acting(
    model: TransformerBridge,
    window: ost.mitigations.Mitigation,
    questions: dict[tuple[int, int], ost.measure.TaskPrompt],
) -> set[tuple[int, int]]:
    """The questions, by length and seed, of which the window changes a logit; tried once for each
    number of tokens.
    """
    by_tokens = {question.tokens: question.prompt.ids for question in questions.values()}
    acts = {tokens: ost.mitigations.acts(model, window, ids) for tokens, ids in by_tokens.items()}
    return {key for key, question in questions.items() if acts[question.tokens]}


def _measured(
    model: TransformerBridge,
    form: Task,
    window: ost.mitigations.Mitigation | None,
    position: Position | None,
    options: dict[str, Any],
    progress: Progress | None,
) -> tuple[pd.DataFrame, Any]:
    """Answers and float64 distances of every question under one window, a row each, and where the
    distances were read.
    """
    halves = [part_of(progress, half, half + 1, 2, units=100) for half in (0, 1)]
    # Without worked examples: a window is compared on one prompt.
    answers: Any = ost.evaluate(model, form, mitigation=window, progress=halves[0], **options).frame
    encoding = {name: value for name, value in options.items() if name != "elicitation"}
    how: dict[str, Any] = {
        "dtypes": ["float64"],
        "mitigation": window,
        "position": position,
        "progress": halves[1],
    }
    pairs = ost.collapse(model, form, **how, **encoding)
    distances = ost.measure.reference_at_y(pairs.reference)[
        ["length", "seed", "distance", "rounding"]
    ]
    table = answers[_OF_ANSWERS].merge(distances, on=["length", "seed"], validate="one_to_one")
    return table, pairs.provenance.parameters.get("read_at")


def summarise(frame: Frame) -> pd.DataFrame:
    """`WindowStudy.summary`: the table by window, with its fronts."""
    within = frame["within_training"].astype("boolean").fillna(True).astype(bool)
    used = frame[within] if within.any() else frame
    rows, unsure = [], []
    for window, group in used.groupby("window", sort=False, dropna=False):
        right, question_count = int(group["correct"].sum()), len(group)
        low, high = wilson(right, question_count, _LEVEL)
        distance = np.maximum(group["distance"], group["rounding"])
        unsure.append(float((group["rounding"] / distance).mean()))
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
    table = pd.DataFrame(rows).astype({"window": "Int64"})
    distances = _tied_distances(table["distance"].to_numpy(dtype=float), unsure)
    return table.assign(
        **{name: _front(table, distances, objective) for name, objective in _FRONTS.items()}
    )


def _tied_distances(distance: np.ndarray, unsure: Sequence[float]) -> np.ndarray:
    """The distances, where one that rounding may have parted from a larger one counts as that: a
    window that sees every key is the model without one up to the order of its sums. `unsure`: the
    relative rounding of a distance."""
    tied, largest = distance.copy(), -1
    for place in np.argsort(-distance):
        same = (
            largest >= 0
            and np.log(distance[largest] / distance[place]) <= unsure[largest] + unsure[place]
        )
        largest = largest if same else place
        tied[place] = distance[largest]
    return tied


def _front(table: Frame, distance: np.ndarray, objective: str) -> Any:
    """Windows that no other beats: it has as large a distance and an objective as large, and one of
    them larger. None where the objective was not measured (reasoning has no one right line)."""
    if bool(table[objective].isna().any()):
        return False
    points = np.stack([distance, table[objective].to_numpy(dtype=float)], axis=1)
    as_large, larger = points[:, None] >= points, points[:, None] > points
    return ~(as_large.all(-1) & larger.any(-1)).any(0)
