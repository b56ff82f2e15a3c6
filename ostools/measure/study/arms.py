"""Measurements of a study: one task under one mitigation, or none, question by question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import pandas as pd
import torch

from ostools import tasks
from ostools.ground import InputError, Progress, TransformerBridge, tell
from ostools.ground.memory import in_smaller_chunks
from ostools.measure.answers.evaluate import TaskAnswers
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.prompt_sets import OtherEndError
from ostools.measure.collapse.result import Collapse, next_tokens, reference_at_y
from ostools.measure.jacobian.norms import choose_method
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.mitigated_prompts import ACTIVE, INACTIVE, REFUSED, EffectStatus, of_pair
from ostools.measure.passes.precisions import Precision
from ostools.measure.position import Position, read_at, reading
from ostools.measure.task_prompt import (
    Elicitation,
    TaskPrompt,
    carrier_positions,
    elicit,
    render_prompt,
)
from ostools.mitigations import Mitigation, changes_pass, running
from ostools.models import EncodingOptions
from ostools.results import Frame, frame_of
from ostools.tasks import Task

_EPSILON = 2.0**-23  # float32, in which sensitivities are computed

KEYS = ["quantity", "dtype", "length", "seed"]
_MEASURED = {
    "kind": "measured",
    "value": math.nan,
    "rounding": 0.0,
    "status": ACTIVE,
    "reason": "",
}


@dataclass
class Arm:
    """A task under one mitigation, or none. `model` is the user's, `work` the same in float32 or
    float64 where sensitivity is measured.

    measures: what is measured, of `verdicts.ABOUT`. dtypes: precisions beside float64.
    sensitivity_lengths: those at which sensitivity is measured. rows: what was measured, each of
    `KEYS` once. next_tokens: of each question whose distance was measured.
    """

    model: TransformerBridge
    work: TransformerBridge
    mitigation: Mitigation | None
    form: Task
    lengths: list[int]
    seeds: list[int]
    measures: tuple[str, ...]
    dtypes: list[str]
    elicitation: Elicitation
    position: Position
    sensitivity_lengths: list[int]
    encoding: EncodingOptions
    rows: list[dict[str, object]] = field(default_factory=list)
    next_tokens: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make all prompts, and try the hooks, so that what does not fit is refused before anything
        is measured.
        """
        keys = [(n, seed) for n in self.lengths for seed in self.seeds]
        self.questions = {key: self._task_prompt(*key) for key in keys}
        task_answers = [
            elicit(
                self.model,
                self.form,
                n,
                self.elicitation,
                seed=seed,
                mitigation=self.mitigation,
                **self.encoding,
            )
            for n, seed in keys
        ]
        is_scored = "log_probability" in self.measures
        self.asked = TaskAnswers(self.model, task_answers, self.mitigation, probability=is_scored)
        self.read = {
            key: read_at(self.model, question, self.position)
            for key, question in self.questions.items()
            if {"collapse", "sensitivity"} & set(self.measures)
        }
        self.acted = EffectStatus(self.model, self.mitigation)
        self.acted.status(self.questions[keys[-1]])

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows).astype({"dtype": "str"})

    @property
    def described(self) -> dict[str, Any]:
        """Provenance entries: what was asked, how, and where it was read."""
        first, read = next(iter(self.questions.values())), {}
        if self.read:
            read["read_at"] = reading(self.model, list(self.read.values()))
            read["next_tokens"] = self.next_tokens
        return {
            "task": tasks.label(self.form),
            "lengths": self.lengths,
            "seeds": self.seeds,
            "dtypes": self.dtypes,
            "elicitation": self.elicitation,
            "sensitivity_lengths": self.sensitivity_lengths,
            "measures": list(self.measures),
            "answer_tokens": self.asked.room,
            "chat": first.chat,
            **first.prompt.provenance,
            **read,
        }

    def _add(
        self, quantity: str, dtype: str | None, question: tuple[int, int], **columns: object
    ) -> None:
        """Add a number. `columns`: value, rounding (below which it is rounding), and others of a
        `Study`."""
        key = {"quantity": quantity, "dtype": dtype, "length": question[0], "seed": question[1]}
        self.rows.append(key | _MEASURED | columns)

    def _refuse(self, quantity: str, dtypes: Iterable[str | None], reason: str) -> None:
        for dtype in dtypes:
            for question in self.questions:
                self._add(quantity, dtype, question, status=REFUSED, reason=reason)

    def _task_prompt(self, length: int, seed: int) -> TaskPrompt:
        how: dict[str, Any] = {"mitigation": self.mitigation, **self.encoding}
        return render_prompt(self.model, self.form, length, seed=seed, **how)

    def measure(self, progress: Progress | None) -> None:
        """Measure what is asked for."""
        steps: list[Callable[[], None]] = []
        if {"answers", "log_probability"} & set(self.measures):
            steps.append(self._measure_answers)
        if "collapse" in self.measures:
            dtypes = list(dict.fromkeys(("float64", *self.dtypes)))
            steps.append(partial(self._measure_collapse, dtypes))
        close = product(self.sensitivity_lengths, self.seeds)
        steps += [partial(self._measure_sensitivity, *question) for question in close]
        for step_count, step in enumerate(steps, start=1):
            step()
            tell(progress, step_count, len(steps))

    def _measure_answers(self) -> None:
        """Measure answers: right or not, and, where it is asked for, how likely the right line
        was."""
        quantities = ["correct"] if "answers" in self.measures else []
        quantities += ["log_probability"] if self.asked.scored else []
        rows: list[dict[str, Any]] = in_smaller_chunks(self.asked.rows)(None)[0]
        for row, quantity in product(rows, quantities):
            status = INACTIVE if row["status"] == INACTIVE else ACTIVE
            question, value = (row["length"], row["seed"]), float(row[quantity])
            self._add(quantity, None, question, value=value, status=status)
        if self.asked.probability and self.asked.task_prompts[0].counts:
            reason = "the model writes counts before the answer line, which has no probability"
            self._refuse("log_probability", [None], f"{reason} right after the prompt")

    def _measure_collapse(self, dtypes: Sequence[str]) -> None:
        """Distance of the questions with n and n + 1 items at y, in float64 and in each dtype.

        What `collapse` refuses in one dtype under a mitigation's hooks, as a change of the
        unembedding, is refused there alone; pairs that end in different tokens in all.
        """
        how: dict[str, Any] = {"dtypes": dtypes, "position": self.position, **self.encoding}
        how |= {"lengths": self.lengths, "seeds": self.seeds, "mitigation": self.mitigation}
        try:
            self._keep_distances(collapse(self.model, self.form, **how))
        except InputError as error:
            is_hooked = changes_pass(self.mitigation)
            if isinstance(error, OtherEndError) or (is_hooked and len(dtypes) == 1):
                self._refuse("collapse_distance", dtypes, str(error))
            elif is_hooked:
                for name in dtypes:
                    self._measure_collapse([name])
            else:
                raise

    def _keep_distances(self, result: Collapse) -> None:
        self.next_tokens += next_tokens(result)
        for dtype, reason in result.overflowing().items():
            self._refuse("collapse_distance", [dtype], reason)
        exact = reference_at_y(result).assign(dtype="float64")
        rounded: Frame = result.summary.rename(columns={"noise": "rounding"})
        rounded = rounded[rounded["dtype"] != "float64"].sort_values("dtype", kind="stable")
        statuses = cache(self._pair_statuses)
        names = ["dtype", "length", "seed", "distance", "rounding"]
        distances: Frame = pd.concat([exact[names], rounded[names]])
        for row in distances.to_dict("records"):
            question = int(row["length"]), int(row["seed"])
            status, reason = statuses(row["dtype"])[question]
            value = math.nan if status == REFUSED else row["distance"]
            how = {"rounding": row["rounding"], "status": status, "reason": reason}
            self._add("collapse_distance", row["dtype"], question, value=value, **how)

    def _pair_statuses(self, dtype: str) -> dict[tuple[int, int], tuple[str, str]]:
        """Effect status of each (n, n + 1) pair on the copy of the model that runs in `dtype`, and
        the reason of a refusal.
        """
        copy = self.model
        if changes_pass(self.mitigation):
            copy = Precision.of_name(dtype).prepared(self.model)
        needed = {(n + more, seed) for n, seed in self.questions for more in (0, 1)}
        statuses = {
            key: self.acted.status(self.questions.get(key) or self._task_prompt(*key), copy)
            for key in sorted(needed)
        }
        return {
            (n, seed): of_pair(statuses[n, seed], statuses[n + 1, seed])
            for n, seed in self.questions
        }

    def _measure_sensitivity(self, n: int, seed: int) -> None:
        """Sensitivity of the tokens that carry the answer, mean over them: the operator norm, or of
        a large model a sketch.

        A sketch's cotangents are drawn by the length: the same with a mitigation and without,
        others at the next length. A token that cannot be seen any more has 0, up to the rounding of
        the greatest value.
        """
        task_prompt, value, rounding = self.questions[n, seed], math.nan, 0.0
        status, reason = self.acted.status(task_prompt, self.work)
        # By the size of the model alone.
        exact = choose_method(int(self.work.cfg.d_model), exact_fits=True)[0] == "exact"
        kind, norm = ("measured", "operator_norm") if exact else ("estimated", "frobenius_norm")
        how: dict[str, Any] = {"method": "exact"} if exact else {"method": "sketch", "seed": n}
        if status == ACTIVE:
            try:
                positions = list(carrier_positions(self.model, task_prompt))
                prompt = self.read[n, seed].prompt(self.model)
                with running(self.work, self.mitigation):
                    rows = frame_of(sensitivity(self.work, prompt, linearisations="full", **how))
                value, rounding = mean_at(rows, norm, positions)
            except InputError as error:
                status, reason = REFUSED, str(error)
        elif not reason:
            reason = "not measured again: the mitigation changed nothing here"
        about = {"rounding": rounding, "status": status, "reason": reason, "kind": kind}
        self._add("sensitivity", None, (n, seed), value=value, **about)


def mean_at(rows: Frame, column: str, positions: Sequence[int]) -> tuple[float, float]:
    """Mean over positions, and the rounding of it: that of the greatest value of all tokens."""
    values = torch.tensor(rows.sort_values("position")[column].to_numpy(dtype=float))
    return float(values[list(positions)].mean()), _EPSILON * float(values.max())


def paired_rows(arm: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Each number of an arm beside the one of the same question without the mitigation; refused
    where one of the two is.
    """
    rows: Frame = arm.merge(plain, on=KEYS, how="left", suffixes=("", "_plain"), validate="1:1")
    refused = rows["status_plain"] == REFUSED
    plain_reason = refused & (rows["status"] != REFUSED)
    rows["reason"] = rows["reason"].mask(plain_reason, rows["reason_plain"])
    rows["status"] = rows["status"].mask(refused, REFUSED)
    rows["rounding"] = rows[["rounding", "rounding_plain"]].max(axis=1)
    return rows.rename(columns={"value_plain": "baseline"})
