"""Bytes that the sections of a report hold beside a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ostools import tasks
from ostools.experiments.study.study import study_memory
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.attention.attention import patterns_memory
from ostools.measure.bounds.bounds import bounds_memory
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.probes.failure_stage import failure_stage_memory
from ostools.measure.unloaded import Unloaded
from ostools.reporting.report import extent as scope


def report_memory(
    model: Unloaded,
    prompt: str | Sequence[int],
    lengths: Sequence[int],
    sections: Collection[str] | None,
) -> int:
    """Bytes of the largest section of a report; None: those that are measured where none is named."""
    pos, extent = model.pos(prompt), scope.extent_of(model.shape)
    names = set(scope.NAMES) - set(scope.only_by_name(model.shape, pos)) if sections is None else set(sections)
    sizes = [0]
    if names & {"collapse", "precision"}:
        dtypes = extent.formats if "precision" in names else scope.CASTS
        sizes += [collapse_memory(model, name, lengths, dtypes=dtypes) for name in tasks.FIGURE_5]
    if "position" in names:
        passage = scope.PASSAGE_TOKENS + 2
        options: dict[str, Any] = {"method": "sketch", "cotangents": extent.cotangents}
        sizes.append(sensitivity_memory(model, passage, linearisations="full", **options) + model.copy_bytes)
    if names & {"sensitivity", "layers"}:
        sizes.append(sensitivity_memory(model, pos, layers="all" if "layers" in names else (0,)))
    if "sensitivity" in names:
        sizes.append(bounds_memory(model, pos, variants=extent.forms))
    if "attention" in names:
        sizes.append(patterns_memory(model, pos))
    if names & {"evaluate", "mitigations"}:
        seeds, answered = extent.answer_seeds, extent.answer_lengths
        sizes += [evaluate_memory(model, name, answered, seeds=seeds) for name in scope.EVALUATION]
    if "failure-stage" in names:
        options = {"dtypes": scope.FAILURE_STAGE_DTYPES, "seeds": scope.FAILURE_STAGE_SEEDS}
        task, judged = scope.FAILURE_STAGE_TASK, scope.FAILURE_STAGE_LENGTHS
        sizes.append(failure_stage_memory(model, task, judged, **options))
    if "mitigations" in names:
        options = {"mitigations": scope.MITIGATIONS, "seeds": extent.study_seeds}
        sizes += [study_memory(model, name, scope.STUDY_LENGTHS, **options) for name in scope.EVALUATION]
    return max(sizes)
