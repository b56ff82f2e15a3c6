"""Measurements of a study: one task under one mitigation, or none, question by question."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch

from ostools import tasks
from ostools.ground import InputError, Progress, TransformerBridge, in_smaller_chunks, tell
from ostools.measure.answers.evaluate import task_answers
from ostools.measure.answers.probability import answer_room, words_first
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


@dataclass
class Arm:
    """A task under one mitigation, or none. `model` is the user's, `work` the same in float32 or
    float64 where sensitivity is measured.

    measures: what is measured, of `verdicts.ABOUT`. dtypes: precisions beside float64.
    sensitivity_lengths: those at which sensitivity is measured. next_tokens: of each question whose
    distance was measured.
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
    next_tokens: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make all prompts, and try the hooks, so that what does not fit is refused before anything
        is measured.
        """
        keys = [(n, seed) for n in self.lengths for seed in self.seeds]
        how: dict[str, Any] = {"mitigation": self.mitigation, **self.encoding}
        self.render = partial(render_prompt, self.model, self.form, **how)
        self.questions = {(n, seed): self.render(n, seed=seed) for n, seed in keys}
        self.asked = [
            elicit(self.model, self.form, n, self.elicitation, seed=seed, **how) for n, seed in keys
        ]
        first = self.asked[0]
        if self.measures == ("log_probability",) and words_first(self.asked) and not first.counts:
            raise InputError(
                f"log_probability: {self.form.name} is answered after words, and its line has no "
                "probability right after the prompt: measure answers"
            )
        self.read = {
            key: read_at(self.model, question, self.position)
            for key, question in self.questions.items()
            if {"collapse", "sensitivity"} & set(self.measures)
        }
        self.acted = EffectStatus(self.model, self.mitigation)
        last = self.questions[keys[-1]]
        ids = self.read[keys[-1]].ids if self.read else last.prompt.ids.tolist()
        self.acted.status(last, ids)

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
            "answer_tokens": answer_room(self.model, self.asked),
            "chat": first.chat,
            **first.prompt.provenance,
            **read,
        }

    def measure(self, progress: Progress | None) -> Frame:
        """Measure what is asked for: one row for each of `KEYS`, with kind, value, rounding (below
        which it is rounding), status and reason."""
        steps: list[Callable[[], Frame]] = []
        if {"answers", "log_probability"} & set(self.measures):
            steps.append(self._answers)
        if "collapse" in self.measures:
            steps.append(partial(self._distances, list(dict.fromkeys(("float64", *self.dtypes)))))
        close = product(self.sensitivity_lengths, self.seeds)
        steps += [partial(self._sensitivity, *question) for question in close]
        tables = []
        for step in steps:
            tables.append(step())
            tell(progress, len(tables), len(steps))
        return pd.concat(tables, ignore_index=True).astype({"dtype": "str"})

    def _answers(self) -> Frame:
        """Whether each answer is right, and, if it is asked for, how likely the right line was."""
        is_asked = "log_probability" in self.measures
        ask = in_smaller_chunks(task_answers)
        answer_rows, _ = ask(self.model, self.asked, self.mitigation, probability=is_asked)
        rows: Frame = pd.DataFrame(answer_rows)
        quantities = ["correct"] if "answers" in self.measures else []
        quantities += ["log_probability"] if is_asked and not words_first(self.asked) else []
        values: Frame = rows.set_index(["length", "seed", "status"])[quantities].astype(float)
        table = values.rename_axis(columns="quantity").stack().rename("value").reset_index()
        status = table["status"].where(table["status"] == INACTIVE, ACTIVE)
        table = table.assign(dtype=None, kind="measured", rounding=0.0, status=status, reason="")
        if not (is_asked and self.asked[0].counts):
            return table
        reason = "the model writes counts before the answer line, which has no probability"
        refused = self._refused("log_probability", [None], f"{reason} right after the prompt")
        return pd.concat([table, refused])

    def _refused(self, quantity: str, dtypes: Iterable[str | None], reason: str) -> Frame:
        rows = [(dtype, *question) for dtype, question in product(dtypes, self.questions)]
        about = {"quantity": quantity, "kind": "measured", "status": REFUSED, "reason": reason}
        table = pd.DataFrame(rows, columns=["dtype", "length", "seed"])
        return table.assign(**about, value=math.nan, rounding=0.0)

    def _distances(self, dtypes: Sequence[str]) -> Frame:
        """Distance of the questions with n and n + 1 items at y, in float64 and in each dtype.

        What `collapse` refuses in one dtype under a mitigation's hooks, as a change of the
        unembedding, is refused there alone; pairs that end in different tokens in all.
        """
        how: dict[str, Any] = {"dtypes": dtypes, "position": self.position, **self.encoding}
        how |= {"lengths": self.lengths, "seeds": self.seeds, "mitigation": self.mitigation}
        try:
            return self._distance_rows(collapse(self.model, self.form, **how), dtypes)
        except InputError as error:
            is_hooked = changes_pass(self.mitigation)
            if isinstance(error, OtherEndError) or (is_hooked and len(dtypes) == 1):
                return self._refused("collapse_distance", dtypes, str(error))
            if not is_hooked:
                raise
            return pd.concat([self._distances([name]) for name in dtypes])

    def _distance_rows(self, result: Collapse, dtypes: Sequence[str]) -> Frame:
        self.next_tokens = self.next_tokens or next_tokens(result)
        rounded: Frame = result.summary.rename(columns={"noise": "rounding"})
        rounded = rounded[rounded["dtype"] != "float64"].sort_values("dtype", kind="stable")
        exact = reference_at_y(result).assign(dtype="float64")
        names = ["dtype", "length", "seed", "distance", "rounding"]
        table: Frame = pd.concat([exact[names], rounded[names]])
        # Every collapse has float64 rows, whether they were asked of it or of another one.
        table = table[table["dtype"].isin(dtypes)].rename(columns={"distance": "value"})
        effects = {name: self._pair_statuses(name) for name in table["dtype"].unique()}
        keys = table[["dtype", "length", "seed"]].itertuples(index=False)
        table[["status", "reason"]] = [effects[name][n, seed] for name, n, seed in keys]
        table["value"] = table["value"].mask(table["status"] == REFUSED)
        overflowing = [
            self._refused("collapse_distance", [dtype], reason)
            for dtype, reason in result.overflowing().items()
        ]
        table = table.assign(quantity="collapse_distance", kind="measured")
        return pd.concat([*overflowing, table])

    def _pair_statuses(self, dtype: str) -> dict[tuple[int, int], tuple[str, str]]:
        """Effect status of each (n, n + 1) pair on the copy of the model that runs in `dtype`, and
        the reason of a refusal.
        """
        copy = self.model
        if changes_pass(self.mitigation):
            copy = Precision.of_name(dtype).prepared(self.model)
        needed = {(n + more, seed) for n, seed in self.questions for more in (0, 1)}
        statuses = {}
        for n, seed in sorted(needed):
            read = self.read.get((n, seed)) or read_at(
                self.model, self.render(n, seed=seed), self.position
            )
            statuses[n, seed] = self.acted.status(read.task_prompt, read.ids, copy)
        return {
            (n, seed): of_pair(statuses[n, seed], statuses[n + 1, seed])
            for n, seed in self.questions
        }

    def _sensitivity(self, n: int, seed: int) -> Frame:
        """Sensitivity of the tokens that carry the answer, mean over them: the operator norm, or of
        a large model a sketch.

        A sketch's cotangents are drawn by the length: the same with a mitigation and without,
        others at the next length. A token that cannot be seen any more has 0, up to the rounding of
        the greatest value.
        """
        task_prompt, value, rounding = self.questions[n, seed], math.nan, 0.0
        read = self.read[n, seed]
        status, reason = self.acted.status(task_prompt, read.ids, self.work)
        # By the size of the model alone.
        exact = choose_method(int(self.work.cfg.d_model), exact_fits=True)[0] == "exact"
        kind, norm = ("measured", "operator_norm") if exact else ("estimated", "frobenius_norm")
        how: dict[str, Any] = {"method": "exact"} if exact else {"method": "sketch", "seed": n}
        if status == ACTIVE:
            try:
                positions = list(carrier_positions(self.model, task_prompt))
                prompt = read.prompt(self.model)
                with running(self.work, self.mitigation):
                    rows = frame_of(sensitivity(self.work, prompt, linearisations="full", **how))
                value, rounding = mean_at(rows, norm, positions)
            except InputError as error:
                status, reason = REFUSED, str(error)
        elif not reason:
            reason = "not measured again: the mitigation changed nothing here"
        key = {"quantity": "sensitivity", "dtype": None, "length": n, "seed": seed}
        number = {"kind": kind, "value": value, "rounding": rounding}
        return pd.DataFrame([key | number | {"status": status, "reason": reason}])


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
