"""Is the answer in the representation? Linear probes at the last token of every layer, after a
begun answer line.

Cost: one pass over every prompt in every dtype, and as many through random weights; then at every
place some nine probes for the true labels and as many for each control, each with an inner search
for its penalty. Memory: the last token of every prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import numpy as np
import pandas as pd

from ostools import mitigations, tasks
from ostools.ground import (
    InputError,
    Lengths,
    Progress,
    TransformerBridge,
    checked_lengths,
    with_progress,
)
from ostools.measure.answers.prefilled import prefilled_prompts, running
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import effect_entry
from ostools.measure.passes.precisions import Precision, checked_precisions
from ostools.measure.position import ANSWER, Position, ReadPrompt, reading
from ostools.measure.probes.scores import (
    LENGTH,
    LOGITS,
    Captured,
    captured,
    of_length,
    require_enough,
    rows_of,
    said_by_probes,
    splits,
)
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, untrained_model
from ostools.models.tokenizer_calls import token_texts
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

FLOAT32 = "float32"
_NUMBERS = ("accuracy", "low", "high", "chance")
_SELECTIVITY = ("selectivity", "selectivity_low", "selectivity_high")
COLUMNS = (
    dict.fromkeys(("task", "mitigation", "dtype", "site"), "str")
    | {"layer": "Int64", "test": "str", "control": "str"}
    | dict.fromkeys(("trained", "tested", "groups"), "int64")
    | dict.fromkeys((*_NUMBERS, *_SELECTIVITY, "penalty"), "float64")
    | {"finding": "str"}
)


@dataclass(frozen=True, eq=False)
class Decodability(Result):
    """One row per dtype, place, test and control: how often linear probes say the right answer.

    A probe is a ridge regression of the right answer as a number, and right where it rounds to it.
    Columns: task, mitigation, dtype, site and layer (embedding; residual: v^(l); residual_mid:
    after the attention of block l, before its MLP; y; logits; length: no representation, the number
    of items and its square alone), test ("same lengths": other sequences
    of the lengths trained on; "interpolated": of lengths between them; "extrapolated": longer than
    all of them), control ("none": the measurement; "shuffled": the same labels, permuted, in
    training and test; "random weights": the same architecture, untrained), trained (prompts, the
    fewest of the probes), tested (prompts), groups (sequences, or lengths where a task has one
    sequence a length); accuracy with its interval (low, high: 95%, groups resampled whole), chance
    (the accuracy of always saying what was most common in training), selectivity (accuracy minus
    that on shuffled labels) with its interval, NaN of controls; penalty (the median chosen);
    finding: "decodable" where accuracy is above chance and selectivity above 0, both with their
    whole interval, else "not linearly decodable from k examples"; "as the length alone from k
    examples" where it is not above what the length alone gives, of a task whose answers differ at
    one length; "not decided from k examples" where there are fewer than six groups: of so
    few there is no interval.

    An interval is of these probes over sequences such as these: training on other sequences would
    give other probes. The three folds train on each other's prompts, for which every half-width is
    multiplied by sqrt(1 + tested / trained) (Nadeau and Bengio 2003): on pure noise intervals held
    chance in 96% of 250 trials (88% without), and "decodable" was said in none.

    `predictions`: a row per prompt, with what the probe said that had not seen it: dtype, site,
    layer, test, control, length, seed, label, said, right.
    """

    tables: ClassVar = (
        TableHead(columns="dtype site layer test control accuracy low high chance selectivity"),
    )

    predictions: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.answers import probe_chart

        return probe_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.answers import probe_findings

        return probe_findings(self)


def seeds_asked(form: Task, seeds: Sequence[int] | None) -> list[int]:
    """The seeds given; else 24, of a task that draws nothing one."""
    return seeds_of(form, (range(24) if form.random else [0]) if seeds is None else seeds)


def require_groups(task: Task | str, lengths: Iterable[int], seeds: Sequence[int] | None) -> None:
    """Refuse too few lengths, or sequences, for a probe's intervals."""
    form, length_list = tasks.task(task), checked_lengths(lengths)
    groups = seeds_asked(form, seeds) if form.random else length_list
    require_enough(length_list, groups, form.random)


@measurement(
    command="probe",
    examples=("--task count-ones-bernoulli --dtypes bfloat16 --out probe.png",),
    defaults={"task": "count-ones-bernoulli", "lengths": "4,8,12,16,24,32,48,64"},
    memory=["probes"],
    untrained_by="random_weights",
    in_chunks=True,
    checks=(checked_precisions, require_groups),
)
def probe(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Lengths,
    dtypes: Sequence[str] = (FLOAT32,),
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    position: Position | None = None,
    random_weights: bool = True,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Decodability:
    """Fit linear probes for the right answer to the last token's representation, at every layer.

    Args:
        task: a `tasks.Task`, or its name with options. Its right answers must be numbers (or
            digits), and differ between prompts.
        lengths: numbers of items, at least five of them. Probes extrapolate to the upper third of
            them.
        dtypes: precisions by name, as in `collapse`, which round the representations.
        seeds: one sequence for each, if the task draws its sequence; at least six, and 24 by
            default. A probe is never tested on a sequence that it was trained on, or on the
            beginning of one.
        mitigation: as in `evaluate`.
        position: the token that is probed, as in `collapse`.
        random_weights: whether the same architecture with random weights is probed too. A second
            model is then in memory.
        progress: called as progress(done, total), in percent.

    How prompts are encoded: `EncodingOptions`.

    Raises `InputError` for right answers that are no numbers, for right answers that are all the
    same, for too few lengths or sequences to give intervals, and for numbers that are not finite.
    Source: arXiv 1610.01644, 1909.03368 (selectivity).
    """
    probe_task = ProbeTask.of(
        model, task, lengths, seeds, mitigation, position or ANSWER, **encoding
    )
    precisions = checked_precisions(dtypes)
    questions, is_random = probe_task.questions, probe_task.form.random
    n = questions["length"].to_numpy()
    probes = splits(n, questions["group"].to_numpy(), is_random)
    alone = said_by_probes(questions, probes, {LENGTH: of_length(n)}, ("none",))
    tables = [alone.assign(dtype="none")]
    probed: list[tuple[ProbeTask, tuple[str, ...], dict[str, str]]]
    probed = [(probe_task, ("none", "shuffled"), {})]
    if random_weights:
        untrained = replace(probe_task, model=untrained_model(model, seed=0))
        probed.append((untrained, ("none",), {"control": "random weights"}))
    steps = [(*arm, precision) for arm in probed for precision in precisions]
    next_tokens: list[tuple[int, int, str]] = []  # of the model itself, in the first dtype
    for (weights, controls, columns, precision), part in with_progress(steps, progress):
        places = weights.captured(precision, part)
        next_tokens = next_tokens or probe_task.next_tokens(places)
        predictions = said_by_probes(questions, probes, places, controls)
        tables.append(predictions.assign(dtype=precision.name, **columns))
    provenance = Provenance.collect(
        model,
        measurement="probe",
        **probe_task.names,
        **probe_task.described,
        **probe_task.effect_entry(precisions),
        next_tokens=next_tokens,
        dtypes=[precision.name for precision in precisions],
        random_weights=random_weights,
    )
    predictions = pd.concat(tables, ignore_index=True)
    frame: Frame = rows_of(predictions, is_random).assign(**probe_task.names)
    return Decodability(frame[list(COLUMNS)].astype(COLUMNS), provenance, predictions)


@dataclass(frozen=True)
class ProbeTask:
    """Task of a probe: the prompts, whose right answers are numbers."""

    model: TransformerBridge
    form: Task
    prompts: list[ReadPrompt]
    mitigation: Mitigation | None

    @classmethod
    def of(
        cls,
        model: TransformerBridge,
        task: Task | str,
        lengths: Iterable[int],
        seeds: Sequence[int] | None,
        mitigation: Mitigation | str | None,
        position: Position = ANSWER,
        **encoding: Unpack[EncodingOptions],
    ) -> "ProbeTask":
        """Check the arguments and render the prompts. Raises `InputError`."""
        form, mitigation_object = tasks.task(task), mitigations.optional(mitigation)
        length_list, seed_list = checked_lengths(lengths), seeds_asked(form, seeds)
        require_groups(form, length_list, seed_list)
        prompts = prefilled_prompts(
            model, form, length_list, seed_list, mitigation_object, position, **encoding
        )
        keys = [prompt.task_prompt.key for prompt in prompts]
        # A copied sequence of digits is not a number: 011 and 11 are two answers.
        if wrong := [
            key for key in keys if not (key.isdecimal() and (form.numeric or len(key) == 1))
        ]:
            raise InputError(
                f"{form.name}: expected a task whose answer is a number or one digit, found the "
                f"answer {wrong[0]!r}"
            )
        return cls(model, form, prompts, mitigation_object)

    @property
    def questions(self) -> pd.DataFrame:
        """A row a prompt: length, seed, group (`ReadPrompt.group`) and label, the right number."""
        rows = [
            (prompt.task_prompt.length, prompt.task_prompt.seed, prompt.group, prompt.number)
            for prompt in self.prompts
        ]
        return pd.DataFrame(rows, columns=["length", "seed", "group", "label"], dtype=np.int64)

    def captured(self, precision: Precision, progress: Progress | None = None) -> Captured:
        """Every place in one precision, under the mitigation."""
        with running(self.model, self.prompts, precision, self.mitigation) as prepared:
            return captured(prepared, self.prompts, progress)

    def next_tokens(self, places: Captured) -> list[tuple[int, int, str]]:
        """Number of items, seed and likeliest next token of each prompt, out of its logits."""
        ids = next(
            rows.argmax(-1).tolist() for place, rows in places.items() if place.site == LOGITS
        )
        texts = token_texts(self.model.tokenizer, ids)
        return [
            (prompt.task_prompt.length, prompt.task_prompt.seed, texts[index])
            for prompt, index in zip(self.prompts, ids, strict=True)
        ]

    def effect_entry(self, precisions: Iterable[Precision]) -> dict[str, Any]:
        """The provenance's entry that says whether the mitigation did anything."""
        is_rewritten = any(prompt.task_prompt.rewritten for prompt in self.prompts)
        prompt_ids = [prompt.ids for prompt in self.prompts]
        return effect_entry(self.model, self.mitigation, precisions, prompt_ids, is_rewritten)

    @property
    def names(self) -> dict[str, str]:
        return {"task": tasks.label(self.form), "mitigation": mitigations.label(self.mitigation)}

    @property
    def described(self) -> dict[str, Any]:
        """Provenance entries of the prompts."""
        return {
            "lengths": sorted({prompt.task_prompt.length for prompt in self.prompts}),
            "seeds": sorted({prompt.task_prompt.seed for prompt in self.prompts}),
            "chat": self.prompts[0].task_prompt.chat,
            "prompts": len(self.prompts),
            "line_tokens": sorted({prompt.line for prompt in self.prompts}),
            "read_at": reading(self.model, self.prompts),
            **self.prompts[0].task_prompt.prompt.provenance,
        }
