"""Retrieval by position (Section 5, the U-shape): is a record found, and how sensitive is the last token to it?

The prompts of one seed hold the same records and the same question; only the wanted record moves. So positions are compared
within a seed. Measured at each: whether the answer names the value, how likely the value is
(teacher-forced), and the norms ||d y_n / d v_i^(0)|| of the wanted record's tokens i, beside those of all other tokens.

Source: Barbero et al. 2024 (arXiv 2406.04267), section 5; Liu et al. 2023 (arXiv 2307.03172), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import pandas as pd
import torch

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Linearisation, Method, known_norm
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_seeds, whole_number, whole_numbers
from ostools.measure.answer_line import answer_text
from ostools.measure.answers.answers import Answer, answers, how_read
from ostools.measure.answers.judging import judge, stops_of
from ostools.measure.answers.probability import answer_log_probability, answer_room
from ostools.measure.answers.reading import STOP
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.jacobian.norms import choose_method
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.prompts import of_text
from ostools.measure.task_prompt import TaskPrompt, carrier_positions, render_prompt
from ostools.measure.unloaded import Unloaded
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks.retrieve import RetrieveTask
from ostools.theory.statistics.intervals import bootstrap_mean, expanded, fewest_at

SEEDS = tuple(range(6))
LEVEL = 0.95
_MOST_POSITIONS = 11


@dataclass(frozen=True, eq=False)
class Retrieval(Result):
    """`frame`: one row a position and seed. Columns: position (index of the wanted record, from 0), length (records), seed,
    tokens (of the prompt), key (the value), answer (the first line that names a value; where there is none the last), kind
    ("answered", "something else" or "cut off"), found (of all records' values, the first that it names is the wanted one),
    correct (it is that value and nothing else, in quotes or bare), log_probability (natural, of it in quotes; NaN of a
    model that thinks first), carriers (tokens of the wanted record), sensitivity_mean (norm of
    d y_n / d v_i^(0), the mean over them),
    sensitivity_others (mean over all other tokens of the text: of no BOS and no chat template), method ("exact" | "sketch" |
    "estimate").

    `ends`: one row a quantity (log_probability, log_sensitivity: natural log of sensitivity_mean) and end (first, last) of the
    positions. `difference`: its value there minus its mean over the positions between, averaged over seeds; low, high: the 95%
    interval of that over seeds (paired bootstrap, widened for few seeds, see `theory.intervals.expanded`); verdict: above,
    below, undecided, or too few seeds. A U has both ends above. Empty for fewer than three positions.
    """

    tables: ClassVar = (
        TableHead(columns="found log_probability sensitivity_mean sensitivity_others", groups="position"),
    )

    ends: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.paper.charts.positions import retrieval_chart

        return retrieval_chart(self)

    def findings(self) -> list[str]:
        from ostools.paper.charts.positions import retrieval_notes

        return retrieval_notes(self)


@measurement(
    command="evaluate retrieval",
    examples=(
        "--length 9 --seeds 0,1 --out retrieval.png",
        "--model google/gemma-7b --records uuid --length 75 --method sketch",
    ),
    lines_of=(sensitivity,),
    memory=lambda: retrieval_memory,
)
def retrieval(
    model: TransformerBridge,
    positions: Sequence[int] | None = None,
    length: int = 9,
    seeds: Sequence[int] = SEEDS,
    *,
    records: str = "words",
    linearisation: Linearisation = "full",
    method: Method = "auto",
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Retrieval:
    """Retrieve one of `length` records, at every position of the wanted one: the answers, and the
    sensitivity to it.

    Args:
        positions: indices of the wanted record, from 0; None: all of them, or 11 evenly spread
            ones.
        length: number of records, at least two.
        seeds: seeds of the records and of which of them is wanted.
        records: "words", "uuid" (Liu et al.), or a file: see `tasks.retrieve.RetrieveTask`.
        linearisation: what the sensitivity holds constant, as in `sensitivity`.
        method: how norms are taken, as in `sensitivity`. The norm is the operator norm where it is
            measured, and else the Frobenius norm, which a sketch estimates.
        progress: called as progress(done, total) with the number of prompts measured.

    How prompts are encoded: `EncodingOptions`.

    Raises `InputError` for a position at which there is no record, and for what `sensitivity` refuses. Cost: one exact (or
    estimated) sensitivity for each position and seed. The answers cost little beside it.
    """
    seed_list, places = checked_seeds(seeds), _checked_positions(positions, length)
    auto = choose_method(int(model.cfg.d_model), exact_fits=True).method
    norm = known_norm([auto if method == "auto" else method])
    task_prompts = [
        render_prompt(model, RetrieveTask(position=place, records=records), length, seed=seed, **encoding)
        for seed in seed_list
        for place in places
    ]
    room = answer_room(model, task_prompts)
    prompts = [task_prompt.prompt for task_prompt in task_prompts]
    answer_list = answers(model, prompts, max_new_tokens=room, stops=stops_of(task_prompts))
    log_probabilities = [math.nan] * len(prompts)
    if not any(
        task_prompt.thinks for task_prompt in task_prompts
    ):  # else the answer does not stand right after the prompt
        log_probabilities = answer_log_probability(model, prompts, list(map(answer_text, task_prompts)))
    rows = []
    for index, task_prompt in enumerate(task_prompts):
        row = _answer_row(task_prompt, answer_list[index], log_probabilities[index])
        rows.append(row | _sensitivity_row(model, task_prompt, linearisation, norm, method))
        tell(progress, index + 1, len(task_prompts))
    frame = pd.DataFrame(rows)
    settings: dict[str, Any] = {"positions": places, "length": length, "seeds": seed_list, "records": records}
    settings |= {"linearisation": linearisation, "norm": norm, "method": method, "chat": task_prompts[0].chat}
    settings |= {**task_prompts[0].prompt.provenance, "temperature": 0.0, "max_new_tokens": room, "stop": STOP}
    provenance = Provenance.collect(model, measurement="retrieval", **settings, **how_read(model))
    return Retrieval(frame, provenance, _ends(frame))


def _checked_positions(positions: Sequence[int] | None, length: int) -> list[int]:
    whole_number("retrieval: length (records)", length, 2)
    if positions is None:
        return sorted({round(place) for place in np.linspace(0, length - 1, min(length, _MOST_POSITIONS)).tolist()})
    return sorted(whole_numbers("retrieval: positions", positions, 0, length - 1))


def _answer_row(task_prompt: TaskPrompt, answer: Answer, log_p: float) -> dict[str, Any]:
    verdict, task = judge(task_prompt, answer), cast(RetrieveTask, task_prompt.task)
    return {
        "position": task.index(len(task.pairs(task_prompt.pieces))),
        "length": task_prompt.length,
        "seed": task_prompt.seed,
        "tokens": len(task_prompt.prompt.ids),
        "key": task_prompt.key,
        "answer": verdict.line,
        "kind": verdict.kind,
        "found": task.named_answer(verdict.line, task_prompt.pieces) == task_prompt.key,
        "correct": verdict.correct,
        "log_probability": log_p,
    }


def _sensitivity_row(
    model: TransformerBridge, task_prompt: TaskPrompt, linearisation: Linearisation, norm: str, method: Method
) -> dict[str, Any]:
    """Norms of the wanted record's tokens, and of the text's other tokens."""
    profile: Any = sensitivity(model, task_prompt.prompt, linearisations=(linearisation,), method=method).frame
    if norm == "operator" and known_norm(profile["method"]) != norm:
        raise InputError(
            "retrieval: expected exact operator norms, found a sketch, which bounds them only: give method='sketch'"
        )
    carriers = list(carrier_positions(model, task_prompt))
    other_tokens: Any = of_text(profile.drop(index=profile.index[carriers]))
    return {
        "carriers": len(carriers),
        "sensitivity_mean": float(profile[f"{norm}_norm"].to_numpy()[carriers].mean()),
        "sensitivity_others": float(other_tokens[f"{norm}_norm"].mean()),
        "method": str(profile["method"].iloc[0]),
    }


def _ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of `Retrieval.ends`, out of at least three positions; empty for fewer."""
    rows: list[dict[str, Any]] = []
    table: Any = frame.assign(log_sensitivity=np.log(frame["sensitivity_mean"]))
    for quantity in ("log_probability", "log_sensitivity"):
        by_seed = table.pivot(index="seed", columns="position", values=quantity)
        if by_seed.shape[1] < 3:
            continue
        between = by_seed.iloc[:, 1:-1].mean(axis=1)
        for end, column in (("first", by_seed.iloc[:, 0]), ("last", by_seed.iloc[:, -1])):
            rows.append({"quantity": quantity, "end": end} | _compared(column - between))
    return pd.DataFrame(rows, columns=["quantity", "end", "seeds", "difference", "low", "high", "verdict"])


def _compared(differences: Any) -> dict[str, Any]:
    row = {"seeds": len(differences), "difference": float(differences.mean())}
    if len(differences) < fewest_at(LEVEL):
        return row | {"low": np.nan, "high": np.nan, "verdict": "too few seeds"}
    samples = torch.tensor(differences.to_numpy(), dtype=torch.float64)
    low, high = (float(end) for end in bootstrap_mean(samples, level=expanded(LEVEL, len(samples))))
    verdict = "above" if low > 0 else "below" if high < 0 else "undecided"
    return row | {"low": low, "high": high, "verdict": verdict}


def retrieval_memory(
    model: Unloaded,
    length: int,
    *,
    records: str = "words",
    linearisation: str = "full",
    method: str = "auto",
    **encoding: Unpack[EncodingOptions],
) -> int:
    """Bytes of the Jacobians of the prompt with `length` records."""
    pos = model.longest(RetrieveTask(records=records), [length], **encoding).tokens
    return sensitivity_memory(model, pos, linearisations=linearisation, method=method)
