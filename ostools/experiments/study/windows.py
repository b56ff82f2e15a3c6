"""Sliding windows of every size: collapse against answers, and the Pareto front of the two.

The paper does not measure windows; a review of it names them a promising solution, and asks which size is best.
Cost: one `evaluate` and one float64 `collapse` by the loop for each window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation, acts
from ostools import tasks
from ostools.experiments.decay import spread_lengths
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_lengths, whole_numbers
from ostools.measure.answers.evaluate import evaluate, evaluate_memory
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.prompt_sets import ModelEncoder, RenderedPairs, as_pairs
from ostools.measure.collapse.result import reference_at_y
from ostools.measure.measurement import measurement
from ostools.measure.passes.precisions import PRECISIONS
from ostools.measure.task_prompt import CHAT, ZERO_SHOT, render_prompt
from ostools.measure.unloaded import Unloaded
from ostools.results import Frame, Provenance, Result
from ostools.tasks import CollapseTask, Task, TaskPairs
from ostools.tasks.base import seeds_of
from ostools.theory.statistics.intervals import wilson
from ostools.theory.statistics.pareto import pareto_front

ONE_MORE_DIGIT = "one-more-digit"
"""The pair of Figure 5 (d) of which no theorem speaks."""
MOST = 24
"""Number of windows where none are named."""
_LEVEL = 0.95
COLUMNS = [
    *("window", "length", "seed", "status", "correct", "log_probability", "distance", "rounding"),
    "within_training",
]
_FRONTS = {"front": "accuracy", "front_probability": "log_probability"}


@dataclass(frozen=True, eq=False)
class WindowStudy(
    Result, chart="experiments.study:windows_chart", findings=("charts.experiments.study:windows_findings",)
):
    """One row per window, length and seed.

    Columns: window (keys that a query sees; NA: no window), length, seed, status ("none", "active", "inactive": the window
    changed no logit of the question, its answer and its pair), correct, log_probability (natural, of the right line), distance
    (L2 at y in float64 between the pair of that length), rounding (below it the distance is float64's), within_training
    (missing where the model's card does not list trained lengths of this task).

    `summary`, one row a window: window, active (questions that it changed), questions, accuracy with wilson_low and wilson_high
    (95%), log_probability (mean), distance (geometric mean; what is smaller than its rounding counts as that), front and
    front_probability: no other window has both a larger distance and a larger accuracy (log probability), and none is as large
    in one and larger in the other. Two distances that rounding may have parted are equally large. Fronts are of the point
    estimates. floored: how many distances counted as their rounding;
    where there are some, the mean is not more than `distance`. Lengths beyond training are left out of it, unless there are no
    others (`beyond_training`).
    """

    summary: pd.DataFrame


@measurement(
    command="mitigate windows",
    examples=("--task copy-last --lengths 32 --windows 2:64 --out x.png",),
    defaults={"task": "copy-last", "lengths": "8,16,32"},
    lines_of=("measure.answers.evaluate:evaluate",),
    memory="experiments.study.windows:windows_memory",
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
    pairs: CollapseTask | str | None = None,
    chat: bool | None = None,
    progress: Progress | None = None,
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
        pairs: the prompts whose distance is measured; None: the task's own questions of n and n + 1
            items. Otherwise prompts that end in a repeated token, such as "figure-5a", with n
            copies.
        chat: whether questions are put in the tokenizer's chat template; None: if it has one.

    Raises `InputError` or `MitigationError` for an unknown task, a window below 1, a layer that is not there, a layer whose own
    window is narrower, and a prompt longer than the context.
    """
    form = tasks.task(task)
    length_list, seed_list = checked_lengths(lengths), seeds_of(form, seeds)
    questions = [render_prompt(model, form, n, seed=seed, chat=chat) for n in length_list for seed in seed_list]
    longest = max(len(question.prompt.ids) for question in questions)
    sizes = spread_lengths(2, max(longest - 1, 3), MOST) if windows is None else _checked_sizes(windows)
    compared = _pairs(model, form, pairs, chat, length_list, seed_list)
    arms = _arms(model, sizes, layers, sinks, compared)
    in_chat = questions[0].chat
    # Without worked examples: a window is compared on one prompt.
    asked: dict[str, Any] = {"lengths": length_list, "seeds": seed_list}
    elicitation, tables = CHAT if in_chat else ZERO_SHOT, []
    for index, (size, arm) in enumerate(arms.items()):
        tell(progress, index, len(arms))
        answers: Any = evaluate(model, form, mitigation=arm, elicitation=elicitation, **asked).frame
        table = _with_distances(model, arm, answers, compared)
        tables.append(table.assign(window=pd.NA if size is None else size).astype({"window": "Int64"}))
    tell(progress, len(arms), len(arms))
    frame: Any = pd.concat(tables, ignore_index=True)
    asked |= {"chat": in_chat, "windows": list(sizes), "layers": layers, "sinks": sinks, "longest_prompt": longest}
    beyond = not bool(frame["within_training"].fillna(True).any())
    names = {"measurement": "windows", "task": tasks.label(form), "pairs": compared.name}
    provenance = Provenance.collect(model, **names, **asked, beyond_training=beyond)
    return WindowStudy(frame[COLUMNS], provenance, summarise(frame))


def _arms(
    model: TransformerBridge,
    sizes: Sequence[int],
    layers: Literal["all", "alternate"] | Sequence[int],
    sinks: int,
    compared: _Compared,
) -> dict[int | None, Mitigation | None]:
    """The windows by size, after none; built and tried before anything is measured: what does not fit is refused at once."""
    from mitigations.window import SlidingWindow

    arms: dict[int | None, Mitigation | None] = {None: None}
    arms |= {size: SlidingWindow(size, layers, sinks) for size in sizes}
    for arm in arms.values():
        acts(model, arm, compared.extended[compared.lengths[-1], compared.seeds[0]])
    return arms


def _checked_sizes(window_sizes: Iterable[int]) -> list[int]:
    """Sizes in ascending order, without doubles."""
    return sorted(whole_numbers("windows", window_sizes, 1, example="range(2, 65)"))


@dataclass(frozen=True)
class _Compared:
    """The pairs whose distance is measured.

    exact: the model in float64. task and chat: as `collapse` takes them. seeds: those that the pairs depend on. extended: ids
    of the longer prompt of each pair, by length and seed.
    """

    exact: TransformerBridge
    task: Task | CollapseTask | str
    name: str
    chat: bool | None
    lengths: list[int]
    seeds: list[int]
    extended: dict[tuple[int, int], Tensor]


def _pairs(
    model: TransformerBridge,
    form: Task,
    pairs: CollapseTask | str | None,
    chat: bool | None,
    lengths: list[int],
    seeds: list[int],
) -> _Compared:
    """The pairs of the task's own questions, or of `pairs`. Raises `InputError` for what makes none."""
    exact = PRECISIONS["float64"].prepared(model)
    task, chat = (form, chat) if pairs is None else (pairs, False)
    prompt_pairs = as_pairs(exact, task, None, chat)
    if pairs is not None and isinstance(prompt_pairs, RenderedPairs | TaskPairs):
        raise InputError(
            f"windows: expected pairs that end in a repeated token, such as 'figure-5a', found the task {prompt_pairs.name}: "
            "leave pairs out to compare the task's own questions"
        )
    pair_seeds = seeds if prompt_pairs.random else [0]
    extended = {
        (pair.length, seed): torch.tensor(pair.extended)
        for seed in pair_seeds
        for pair in prompt_pairs.pairs(ModelEncoder(model), lengths, seed)
        if pair.kind != ONE_MORE_DIGIT
    }
    return _Compared(exact, task, prompt_pairs.name, chat, lengths, pair_seeds, extended)


def _with_distances(model: TransformerBridge, arm: Mitigation | None, answers: Frame, compared: _Compared) -> Frame:
    """The answers under a window, each with the distance of its pair; one pair serves all seeds if it is of none."""
    result = collapse(
        compared.exact,
        compared.task,
        lengths=compared.lengths,
        dtypes=["float64"],
        seeds=compared.seeds,
        mitigation=arm,
        chat=compared.chat,
    )
    reference: Any = result.reference
    distances: Any = reference_at_y(reference[reference["pair"] != ONE_MORE_DIGIT])
    distances = distances[["length", "seed", "distance", "rounding"]]
    pair_acts = {key: acts(model, arm, ids) for key, ids in compared.extended.items()}
    distances = distances.assign(
        pair_acts=[pair_acts[key] for key in zip(distances["length"], distances["seed"], strict=True)]
    )
    by = ["length", "seed"]
    if set(answers["seed"]) != set(compared.seeds):
        distances, by = distances.drop(columns="seed"), ["length"]
    rows: Any = answers[["length", "seed", "status", "correct", "log_probability", "within_training"]].merge(
        distances, on=by, validate="many_to_one"
    )
    return rows.assign(status=rows["status"].mask(rows["pair_acts"], "active")).drop(columns="pair_acts")


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
    floored = table.pop("floored")
    fronts = {name: _front(table, distances, objective) for name, objective in _FRONTS.items()}
    return table.assign(**fronts, floored=floored)


def _tied_distances(distance: np.ndarray, unsure: Sequence[float]) -> np.ndarray:
    """The distances, where one that rounding may have parted from a larger one counts as that: a window that sees every key is
    the model without one up to the order of its sums. `unsure`: the relative rounding of a distance."""
    tied, largest = distance.copy(), -1
    for place in np.argsort(-distance):
        same = largest >= 0 and np.log(distance[largest] / distance[place]) <= unsure[largest] + unsure[place]
        largest = largest if same else place
        tied[place] = distance[largest]
    return tied


def _front(table: Frame, distance: np.ndarray, objective: str) -> Any:
    """Windows that no other beats in both; none where the objective was not measured (reasoning has no one right line)."""
    if bool(table[objective].isna().any()):
        return False
    return pareto_front(torch.tensor(np.stack([distance, table[objective].to_numpy(dtype=float)], axis=1))).numpy()


def windows_memory(model: Unloaded, task: Task | str, lengths: Sequence[int], *, seeds: Sequence[int] = (0,)) -> int:
    """Bytes of the answers, and of the distances in float64."""
    form = tasks.task(task)
    distances = collapse_memory(model, form, lengths, dtypes=("float64",))
    return max(distances, evaluate_memory(model, form, lengths, seeds=seeds))
