"""What helps, and by how much: mitigations against none on one task, question by question.

Answers, collapse, sensitivity, bounds and cost, each paired by length and seed; effects with intervals, and a verdict that may
be "no measurable effect". Cost: for each mitigation one `evaluate`, one `collapse`, and at a few lengths `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import mitigations as m
from mitigations import Mitigation
from ostools import tasks
from ostools.experiments.study import verdicts as judging
from ostools.experiments.study.arms import BOUND, Arm, Cell, StudyPlan, timings
from ostools.ground.errors import InputError
from ostools.ground.names import checked_list
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.answers.elicitation import elicitation_for
from ostools.measure.measurement import measurement
from ostools.measure.passes.arithmetic import full_precision
from ostools.measure.passes.precisions import checked_precisions
from ostools.models.describe import metadata_of
from ostools.results import Provenance, Result
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

COLUMNS = [
    *("mitigation", "length", "seed", "dtype", "quantity", "kind", "value", "baseline", "rounding"),
    *("status", "reason", "within_training"),
]


@dataclass(frozen=True, eq=False)
class Study(Result):
    """One row per mitigation, length, seed and quantity, and dtype where it applies.

    Columns: mitigation (as `mitigations.mitigation` takes it), length (items), seed, dtype (of a collapse distance), quantity,
    kind (measured | certified), value (with the mitigation) and baseline (the same question without), rounding (a value below
    it is rounding), status ("active"; "inactive": it changed no text and no logit of this question; "refused", with the
    reason, such as a mitigation that acts on the model as given, but not in the dtype in which the quantity is measured),
    within_training (up to the length that the model's card lists; missing where it lists none).

    Quantities: correct (1 or 0), log_probability (natural, of the right line), collapse_distance (L2 at y between the questions
    of n and n + 1 items), sensitivity and frozen_sensitivity (operator norm of d y / d v_i, mean over the tokens that carry the
    answer), bound (certified, of the frozen one), tokens (of the prompt), seconds (of one forward pass, on this machine).

    `effects` and `verdicts`: see `ostools.experiments.study.verdicts`. `collapse_verdicts`: mitigation ("none" among
    them), seed, dtype, and of the pair at y verdict, first, last, longest and status (`Collapse.verdicts`).
    """

    effects: pd.DataFrame
    verdicts: pd.DataFrame
    collapse_verdicts: pd.DataFrame


@measurement(
    command="mitigate",
    examples=("--task count-ones --mitigation separator:every=3 --mitigation hint --lengths 4:64 --out study.html",),
    defaults={"task": "copy-last", "mitigations": "separator:every=3 hint interleave", "lengths": "4:64"},
    lines_of=("measure.answers.evaluate:evaluate",),
)
def study(
    model: TransformerBridge,
    task: Task | str,
    *,
    mitigations: Sequence[Mitigation | str],
    lengths: Iterable[int],
    seeds: Sequence[int] = (0,),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    elicitation: str | None = None,
    chat: bool | None = None,
    level: float = 0.95,
    sensitivity_lengths: int = 12,
    progress: Progress | None = None,
) -> Study:
    """Compare each mitigation with none, on the same questions (docs/theory.md 6 and 7).

    Args:
        task: a `tasks.Task`, or its name with options.
        mitigations: one or more, each a `mitigations.Mitigation` or its name with options: "separator:every=3".
        lengths: numbers of items.
        seeds: one sequence for each, if the task draws its sequence.
        dtypes: dtypes of the collapse distances, beside float64. An empty list: float64 alone.
            Answers are given in the model's own dtype.
        elicitation: how answers are elicited, as in `evaluate`; None: by the kind of model. Worked
            examples stand before the question for the answers and their log probability alone:
            distance, sensitivity, bound and time are of the question.
        chat: whether questions are put in the tokenizer's chat template; None: if it has one.
        level: level of the intervals of the effects; all verdicts hold together at it:
            those of the verdicts are wider.
        sensitivity_lengths: at how many lengths, evenly spread, sensitivity, bound and time are
            measured; 0: at none.

    Lengths beyond training are measured. Effects and verdicts leave them out, unless there are no others. Raises `InputError`
    or `MitigationError`, before anything is measured, for an unknown task or mitigation, for inserted text that the tokenizer
    merges, for a prompt that does not fit the context with n + 1 items or with its answer, and for a layer that is not there.
    """
    form, mitigation_by_name = tasks.task(task), _checked(mitigations)
    length_list, chosen_seeds = checked_lengths(lengths), seeds_of(form, seeds)
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise InputError(f"study: expected a level between 0 and 1, found {level!r}; for example 0.95")
    none = isinstance(dtypes, list | tuple) and not dtypes
    dtypes = () if none else tuple(precision.name for precision in checked_precisions(dtypes))
    trained_lengths = metadata_of(model).trained_lengths
    how_asked = elicitation_for(form, model.tokenizer, trained_lengths, elicitation, chat)
    plan = StudyPlan(
        form, length_list, chosen_seeds, dtypes, chat, _spread(length_list, sensitivity_lengths), how_asked
    )
    work = full_precision(model, "study")
    plain = Arm(model, work, plan, None)
    arms = {name: Arm(model, work, plan, mitigation) for name, mitigation in mitigation_by_name.items()}
    for arm in arms.values():  # its hooks are refused here if they do not fit the model
        arm.status(length_list[-1], chosen_seeds[0])
    steps = _Steps(progress, sum(arm.steps() for arm in (plain, *arms.values())))
    for arm in (plain, *arms.values()):
        arm.measure(steps)
    arm_by_name = {m.label(None): plain, **arms}
    verdict_level = judging.corrected(level, len(arms))
    provenance = Provenance.collect(
        model,
        measurement="study",
        task=tasks.label(form),
        mitigations=list(arms),
        lengths=length_list,
        seeds=chosen_seeds,
        dtypes=list(dtypes),
        chat=plain.questions[length_list[0], chosen_seeds[0]].chat,
        elicitation=how_asked,
        level=level,
        verdict_level=verdict_level,
        resamples=judging.RESAMPLES,
        sensitivity_lengths=plan.closely,
        bound=BOUND,
        runs={name: arm.account for name, arm in arm_by_name.items()},
    )
    trained = (provenance.model.get("trained_lengths") or {}).get(form.trained_as)
    rows = [row for name, arm in arms.items() for row in _paired(name, arm, plain)]
    within = pd.array([pd.NA if trained is None else row["length"] <= trained for row in rows], dtype="boolean")
    frame: Any = pd.DataFrame(rows).assign(within_training=within)
    effects = judging.effects(frame, level, verdict_level)
    verdict_rows = [{"mitigation": name} | row for name, arm in arm_by_name.items() for row in arm.collapse_verdicts]
    return Study(
        frame[COLUMNS], provenance, effects, judging.verdicts(effects, verdict_level), pd.DataFrame(verdict_rows)
    )


class _Steps:
    """Counts parts of a run for a progress bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def __call__(self) -> None:
        self.done += 1
        tell(self.progress, self.done, self.total)


def _checked(mitigations: Sequence[Mitigation | str]) -> dict[str, Mitigation]:
    """The mitigations by their labels."""
    mitigation_list = (
        [mitigations]
        if isinstance(mitigations, str | Mitigation)
        else checked_list("mitigations", mitigations, "['separator:every=3']")
    )
    parsed = [m.mitigation(mitigation) for mitigation in mitigation_list]
    names = [m.label(mitigation) for mitigation in parsed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"study: found {twice!r} twice: give each mitigation once")
    return dict(zip(names, parsed, strict=True))


def _spread(lengths: list[int], count: int) -> list[int]:
    """At most `count` of the lengths, evenly spread, the last among them."""
    count = min(whole_number("sensitivity_lengths", count), len(lengths))
    return sorted({lengths[round((i + 1) * len(lengths) / count) - 1] for i in range(count)})


def _paired(name: str, arm: Arm, plain: Arm) -> Iterator[dict[str, Any]]:
    """Each measured number beside the one of the same question without the mitigation."""
    for key, cell in arm.cells.items():
        yield _row(name, key, cell, plain.cells[key])
    for n in arm.plan.closely:
        for seed in arm.plan.seeds:
            status = arm.status(n, seed)
            with_it, without = timings(arm.model, plain.questions[n, seed], arm.questions[n, seed], _of(arm))
            yield _row(name, ("seconds", None, n, seed), Cell(with_it, status), Cell(without))


def _of(arm: Arm) -> Mitigation:
    if arm.mitigation is None:
        raise InputError("study: expected a mitigation, found none")
    return arm.mitigation


def _row(name: str, key: tuple[str, str | None, int, int], cell: Cell, plain: Cell) -> dict[str, Any]:
    quantity, dtype, length, seed = key
    refused = next((side for side in (cell, plain) if side.status == judging.REFUSED), None)
    return {
        "mitigation": name,
        "length": length,
        "seed": seed,
        "dtype": dtype,
        "quantity": quantity,
        "kind": judging.QUANTITIES[quantity].kind,
        "value": cell.value,
        "baseline": plain.value,
        "rounding": max(cell.rounding, plain.rounding),
        "status": cell.status if refused is None else judging.REFUSED,
        "reason": cell.reason if refused is None else refused.reason,
    }
