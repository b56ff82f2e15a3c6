"""The measurements that take one question at a time."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import mitigations
from ostools import tasks
from ostools.measure.mitigated_prompts import EffectStatus
from ostools.measure.task_prompt import render_prompt
from ostools.models import Prompt
from ostools.results import Result
from ostools.runs.measurements.record import Cell, Rows


def each_question(model: TransformerBridge, cell: Cell, work: Callable[[Prompt], Result]) -> Rows:
    """`work` on the prompt of each length, under the mitigation; `status` says whether that changed its text or a logit."""
    mitigation, form = cell.mitigated, tasks.task(cell.task)
    effect = EffectStatus(model, mitigation)
    tables, last = [], None
    for length in cell.lengths:
        task_prompt = render_prompt(model, form, length, seed=cell.seed, mitigation=mitigation)
        with mitigations.running(model, mitigation):
            last = work(task_prompt.prompt)
        tables.append(last.frame.assign(length=length, status=effect.status(task_prompt)[0]))
    if last is None:
        raise RuntimeError("a cell without lengths was planned")
    return pd.concat(tables, ignore_index=True), last.provenance
