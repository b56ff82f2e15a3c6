"""Bytes that a part of a reproduction holds beside a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mitigations
from ostools.experiments.figures.copying import figure_2_memory
from ostools.experiments.figures.counting import TASKS, figure_3_memory
from ostools.experiments.figures.figure5 import figure_5_memory
from ostools.experiments.reproduce.parts import CERTIFIED, EQUATION_4, PRINTED
from ostools.experiments.retrieval import retrieval_memory
from ostools.experiments.study.study import study_memory
from ostools.ground.whole_numbers import parse_lengths
from ostools.measure.answers.counting import counting_memory
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.bounds.bounds import bounds_memory
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.variation import variation_memory
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.unloaded import Unloaded
from ostools.tasks import AppendixTask


def reproduction_memory(model: Unloaded, parts: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of the largest of these parts with their arguments; nothing of those that need no model."""
    return max((_part(model, name, options) for name, options in parts.items()), default=0)


def _part(model: Unloaded, name: str, options: Mapping[str, Any]) -> int:
    lengths = parse_lengths(options.get("lengths", "1"))
    seeds = range(options.get("seeds", 1))
    digits = AppendixTask("copy-last", uniform=True)
    match name:
        case "figure-2":
            return figure_2_memory(model, lengths=lengths)
        case "figure-3":
            return figure_3_memory(model, lengths=lengths, seeds=seeds, max_new_tokens=options["max_new_tokens"])
        case "figure-5":
            return figure_5_memory(model, lengths=lengths, dtypes=options["dtypes"])
        case "answer-only":
            forms = [AppendixTask(form, mode="answer-only") for form in TASKS]
            return max(evaluate_memory(model, form, lengths, seeds=seeds) for form in forms)
        case "attention":
            return variation_memory(model, "figure-5a", lengths)
        case "layers":
            return collapse_memory(model, "figure-5a", lengths, dtypes=options["dtypes"], layers="all")
        case "over-squashing":
            pos = model.longest(digits, [options["length"]]).tokens
            forms = (CERTIFIED, PRINTED, EQUATION_4)
            return max(sensitivity_memory(model, pos, method="exact"), bounds_memory(model, pos, variants=forms))
        case "retrieval":
            return retrieval_memory(model, options["records"])
        case "counting":
            return counting_memory(model, "count-ones", lengths, dtypes=options["dtypes"])
        case "remedies":
            compared = [mitigations.Separator(every=3), mitigations.Hint()]
            return study_memory(model, digits, lengths, mitigations=compared, seeds=seeds, dtypes=options["dtypes"])
    return 0
