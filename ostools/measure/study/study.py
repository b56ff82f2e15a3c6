"""Mitigations against none on one task, question by question.

Answers, collapse and sensitivity, each paired by length and seed; effects with intervals, and a
verdict that may be "not decided". Cost, for each mitigation and without one: answers to every
question, a pass over each right line behind it, one `collapse`, and at a few lengths `sensitivity`;
with measures=["answers"] the answers alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Unpack

import pandas as pd

from ostools import mitigations as m
from ostools import tasks
from ostools.ground import (
    Count,
    Lengths,
    Position,
    Progress,
    TransformerBridge,
    checked_lengths,
    distinct,
    with_progress,
)
from ostools.measure.answers.evaluate import evaluate
from ostools.measure.measurement import measurement
from ostools.measure.passes.contexts import full_precision
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.position import ANSWER
from ostools.measure.study import verdicts as judging
from ostools.measure.study.arms import Arm, paired_rows
from ostools.measure.study.verdicts import About
from ostools.measure.task_prompt import CHAT, Elicitation, elicitation_for
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions
from ostools.models.describe import metadata_of
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

COLUMNS = [
    *("mitigation", "length", "seed", "dtype", "quantity", "kind", "value", "baseline", "rounding"),
    *("status", "reason", "within_training"),
]


@dataclass(frozen=True, eq=False)
class Study(Result):
    """One row per mitigation, length, seed and quantity, and dtype where it applies.

    Columns: mitigation (as `mitigations.mitigation` takes it), length (items), seed, dtype (of a
    collapse distance), quantity, kind (measured | estimated), value (with the mitigation) and
    baseline (the same question without), rounding (a value below it is rounding), status ("active";
    "inactive": it changed no text and no logit of this question; "refused", with the reason, such
    as a mitigation that acts on the model as given, but not in the dtype in which the quantity is
    measured), within_training (up to the length that the model's card lists; missing where it lists
    none).

    Quantities: correct (1 or 0) and log_probability (natural, of the right line), both of the model
    in its own dtype, as people run it; collapse_distance (L2 at y between the questions of n and n
    + 1 items), sensitivity (operator norm of d y / d v_i, mean over the tokens that carry the
    answer; above d_model = 256 the Frobenius norm of a sketch, estimated).

    `effects` and `verdicts`: see `ostools.measure.study.verdicts`.
    """

    tables: ClassVar = (
        TableHead("verdicts", "mitigation answers log_probability collapse sensitivity"),
        TableHead(
            "effects", "mitigation quantity dtype kind scale effect low high lengths inactive"
        ),
    )

    effects: pd.DataFrame
    verdicts: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.interventions import study_chart

        return study_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import study_findings

        return study_findings(self)


@measurement(
    command="mitigate",
    examples=(
        "--task count-ones --mitigations separator:every=3 --mitigations hint --lengths 4:64 --out "
        "study.html",
    ),
    defaults={
        "task": "copy-last",
        "mitigations": "separator:every=3 hint interleave",
        "lengths": "4:64",
    },
    lines_of=(evaluate,),
    memory=["answers", "logits", "rows"],
)
def study(
    model: TransformerBridge,
    task: Task | str,
    *,
    mitigations: Sequence[Mitigation | str],
    lengths: Lengths,
    seeds: Sequence[int] = (0,),
    measures: About | Sequence[About] | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    elicitation: Elicitation | None = None,
    position: Position | None = None,
    level: float = 0.95,
    sensitivity_lengths: Count = 12,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Study:
    """Compare each mitigation with none, on the same questions (docs/theory.md 6 and 7).

    Args:
        task: a `tasks.Task`, or its name with options.
        mitigations: one or more, each a `mitigations.Mitigation` or its name with options:
            "separator:every=3".
        lengths: numbers of items.
        seeds: one sequence for each, if the task draws its sequence.
        measures: what is measured: "answers" (right or not), "log_probability" (of the right line),
            "collapse" and "sensitivity"; None: all. "answers" alone needs no float32 or float64
            copy of a large model.
        dtypes: dtypes of the collapse distances, beside float64. An empty list: float64 alone.
        elicitation: how answers are elicited, as in `evaluate`; None: by the kind of model. Worked
            examples stand before the question for the answers alone.
        position: where distances and sensitivity are measured, as in `collapse`.
        level: level of the intervals of the effects; all verdicts hold together at it.
        sensitivity_lengths: at how many lengths, evenly spread, sensitivity is measured.

    How questions are encoded: `EncodingOptions`.

    Effects and verdicts leave lengths beyond training out, unless there are no others. Raises
    `InputError` or `MitigationError`, before anything is measured, for unknown names, inserted text
    that the tokenizer merges, a prompt that does not fit the context with n + 1 items or with its
    answer, and a layer that is not there.
    """
    names = [mitigations] if isinstance(mitigations, str | Mitigation) else mitigations
    mitigation_by_name = {m.label(value): value for value in map(m.mitigation, names)}
    count = len(distinct("mitigations", mitigation_by_name))
    form, length_list = tasks.task(task), checked_lengths(lengths)
    measure_names = judging.ABOUT if measures is None else tuple(distinct("measures", measures))
    verdict_level = judging.corrected(level, count * len(measure_names))
    is_close, trained = "sensitivity" in measure_names, metadata_of(model).trained_lengths
    chat = encoding.get("chat")
    how_asked = elicitation_for(form, model.tokenizer, trained, elicitation, chat)
    # Distances and sensitivity are of the question as it is asked: in the template, or not.
    encoding |= {"chat": how_asked == CHAT}
    arm_of = partial(
        Arm,
        model,
        full_precision(model, "study") if is_close else model,
        form=form,
        lengths=length_list,
        seeds=seeds_of(form, seeds),
        measures=measure_names,
        dtypes=[precision.name for precision in checked_precisions(dtypes)] if dtypes else [],
        elicitation=how_asked,
        position=position or ANSWER,
        sensitivity_lengths=_spread(length_list, sensitivity_lengths) if is_close else [],
        encoding=encoding,
    )
    plain = arm_of(None)
    arms = [plain, *map(arm_of, mitigation_by_name.values())]
    without, *tables = [arm.measure(part) for arm, part in with_progress(arms, progress)]
    table_by_name = dict(zip(mitigation_by_name, tables, strict=True))
    frame = _paired_frame(table_by_name, without, (trained or {}).get(form.trained_as or ""))
    effects = judging.effects(frame, level, verdict_level)
    provenance = Provenance.collect(
        model,
        measurement="study",
        mitigations=list(mitigation_by_name),
        level=level,
        verdict_level=verdict_level,
        resamples=judging.RESAMPLES,
        **plain.described,
    )
    return Study(frame, provenance, effects, judging.verdicts(effects, verdict_level))


def _paired_frame(tables: Mapping[str, Frame], plain: Frame, longest: int | None) -> Frame:
    """The rows of every mitigation beside those without one; longest: the length of training."""
    pairs = [paired_rows(table, plain).assign(mitigation=name) for name, table in tables.items()]
    frame: Frame = pd.concat(pairs, ignore_index=True)
    within = pd.NA if longest is None else frame["length"] <= longest
    frame["within_training"] = pd.Series(within, index=frame.index, dtype="boolean")
    return frame[COLUMNS]


def _spread(lengths: list[int], count: int) -> list[int]:
    """At most `count` of the lengths, evenly spread, the last among them."""
    count = min(count, len(lengths))
    return sorted({lengths[round((i + 1) * len(lengths) / count) - 1] for i in range(count)})
