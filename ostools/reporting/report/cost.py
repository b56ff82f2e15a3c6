"""What the sections of a report take, counted before a model is loaded, or before it is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import mitigations
from ostools import tasks
from ostools.measure.answers.cost import behaviour_cost
from ostools.measure.collapse.cost import collapse_cost
from ostools.measure.fate.cost import fate_cost
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, pass_cost
from ostools.reporting.report import asked as report_asks
from ostools.runs.forecast.forecast import Unloaded
from ostools.tasks import CollapseTask


def report_cost(
    model: Unloaded, prompt: str | Sequence[int], lengths: Sequence[int], sections: Collection[str] | None
) -> Cost:
    """Of the sections asked for; None: of those that are measured unasked."""
    pos, extent = model.pos(prompt), report_asks.extent_of(model.shape)
    asked = set(report_asks.NAMES) - set(report_asks.unasked(model.shape, pos)) if sections is None else set(sections)
    total = Cost()
    for name in tasks.FIGURE_5 if asked & {"collapse", "precision"} else ():
        pairs = model.asked(tasks.task(name, CollapseTask), lengths, pairs=True)
        formats = extent.formats if name == report_asks.ONES and "precision" in asked else report_asks.CASTS
        total += collapse_cost(model.shape, pairs, formats)
    profiles = report_asks.profile_costs(model.shape, pos, model.limit)
    total += sum((cost for name, cost in profiles.items() if name in asked), Cost())
    if "position" in asked:
        rotated = 2 * 3 * report_asks.PASSAGES  # the model and an untrained one, three rotations a passage
        one = sensitivity_cost(
            model.shape, report_asks.PASSAGE_TOKENS + 2, ["full"], method="sketch", cotangents=extent.cotangents
        )
        total += sum([one] * rotated, Cost())
    if "attention" in asked:
        total += pass_cost(model.shape, pos, 2)
    for name in report_asks.BEHAVIOUR if asked & {"behaviour", "mitigations"} else ():
        form = tasks.task(name)
        tokens = model.asked(form, extent.answer_lengths, elicitation=model.elicitation(form))
        every = replace(tokens, prompts=tokens.prompts * len(extent.answer_seeds))
        total += behaviour_cost(model.shape, every)
    if "fate" in asked:
        form = tasks.task(report_asks.JUDGED)
        one, two = (model.asked(form, report_asks.JUDGED_LENGTHS, pairs=pairs) for pairs in (False, True))
        total += fate_cost(
            model.shape, one, two, report_asks.JUDGED_DTYPES, target="number", seeds=len(report_asks.JUDGED_SEEDS)
        )
    if "mitigations" in asked:
        # Which task is studied is known only when all were answered: the dearest counts.
        total += max((_study_cost(model, name) for name in report_asks.BEHAVIOUR), key=lambda cost: cost.single)
    return total


def _study_cost(model: Unloaded, name: str) -> Cost:
    """Of each mitigation, and of none."""
    total, seeds = Cost(), len(report_asks.extent_of(model.shape).study_seeds)
    for one in (None, *report_asks.MITIGATIONS):
        given = None if one is None else mitigations.mitigation(one)
        form = tasks.task(name)
        both = (model.elicitation(form), None)  # of answers, and of the questions alone
        answers, pairs = (
            model.asked(form, report_asks.STUDY_LENGTHS, mitigation=given, elicitation=how) for how in both
        )
        every, compared = (replace(tokens, prompts=tokens.prompts * seeds) for tokens in (answers, pairs))
        total += behaviour_cost(model.shape, every) + collapse_cost(model.shape, compared, ("float64",))
    return total
