"""Heads, attention edges or layers taken out one at a time: the real effect, beside what first
order predicts.

Predicted, from one backward pass for all parts: put a gate g on each, x -> x0 + g (x - x0), and
take -dm/dg at g = 1. Real: the part is taken out and m measured again. The two never share a
column: where first order fails, as it does for parts that matter much or that others stand in for,
the table shows it.

Cost: for each part one forward pass a prompt (answers), two (collapse), or d_model backward passes
(sensitivity).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

import pandas as pd
import torch

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import distinct
from ostools.ground.progress import Progress, part_of, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.ablation.effects import Measure, require_finite
from ostools.measure.ablation.questions import (
    MEASURES,
    AnsweredPrompt,
    MeasureName,
    Question,
    of_prompt,
    of_task,
)
from ostools.measure.ablation.targets import (
    TOP,
    Target,
    What,
    all_targets,
    checked_method,
    checked_targets,
    columns_of,
    gates_on,
    taken_out,
)
from ostools.measure.first_order import first_order_agreement
from ostools.measure.measurement import measurement
from ostools.measure.passes.batches import patterns_bytes
from ostools.measure.passes.contexts import full_precision, true_arithmetic
from ostools.measure.task_prompt import in_tokens_already
from ostools.measure.unloaded import Unloaded
from ostools.models import Prompt
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

QUESTION = ("task", "length", "seed")
QUANTITY = ("measure", "quantity")
_COLUMNS = (
    *(*QUESTION, "tokens", "what", "method", "target", "layer", "head", "query", "key", "part"),
    *(*QUANTITY, "value", "ablated", "effect", "predicted_effect"),
)


@dataclass(frozen=True, eq=False)
class Ablation(Result):
    """One row per prompt, part taken out, and quantity.

    Columns: task, length, seed, tokens; what (heads | edges | layers), method (what stands in its
    place: zero | mean), target (its name), layer, head, query, key, part (NA where it has none);
    measure and quantity: sensitivity (frobenius_norm and operator_norm of d y_n / d v_C, C the
    tokens that carry the answer), collapse (pair_distance, ||y - y*||_2), answers (log_probability
    of the right answer, nats); value (nothing taken out), ablated (measured with the part out),
    effect (ablated - value: real), predicted_effect (first order).
    """

    tables: ClassVar = (TableHead("top", "quantity target value ablated effect predicted_effect"),)

    @property
    def agreement(self) -> pd.DataFrame:
        """How well first order predicted the real effects
        (`measure.first_order.first_order_agreement`), a row a prompt and quantity."""
        rows = [
            dict(zip((*QUESTION, *QUANTITY), key, strict=True))
            | first_order_agreement(
                group["effect"].to_numpy(float),
                group["predicted_effect"].to_numpy(float),
                group["target"].to_numpy(),
            )
            for key, group in _grouped(self.frame)
        ]
        return pd.DataFrame(rows).astype({"believed": "boolean"})

    def top(self, count: int = 10) -> pd.DataFrame:
        """Rows of the `count` parts with the greatest real effect, by size, for each prompt and
        quantity.
        """
        tables = [
            group.loc[
                group["effect"].abs().sort_values(ascending=False, kind="stable").index[:count]
            ]
            for _, group in _grouped(self.frame)
        ]
        return pd.concat(tables, ignore_index=True)

    def chart(self) -> Chart:
        from ostools.reporting.charts.effects.ablation import ablation_chart

        return ablation_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import ablation_findings

        return ablation_findings(self)


def _grouped(frame: Any) -> Iterator[tuple[Any, Any]]:
    yield from frame.groupby([*QUESTION, *QUANTITY], sort=False, dropna=False)


@measurement(
    command="ablate",
    examples=(
        "--task copy-first --lengths 20 --what heads --measures answers,collapse --out ablate.png",
        "--what edges --targets 2.0:64:7",
    ),
    defaults={"task": "copy-first", "lengths": "20"},
    memory=lambda: ablation_memory,
)
def ablation(
    model: TransformerBridge,
    task: str | Task | Prompt | AnsweredPrompt,
    *,
    lengths: Iterable[int] | None = None,
    seeds: Sequence[int] = (0,),
    what: What = "heads",
    targets: Iterable[Sequence[Any]] | None = None,
    top: int = TOP,
    method: Literal["zero", "mean"] = "zero",
    measures: MeasureName | Sequence[MeasureName] | None = None,
    prefilled: bool = False,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Ablation:
    """Take parts of the model out, one at a time, and measure what changes, beside a first-order
    prediction.

    Args:
        task: a task or its name. Or a prompt; an `AnsweredPrompt` says what carries its answer too.
        lengths: numbers of items of the task's sequence.
        seeds: one sequence for each, if the task draws its sequence.
        what: the kind of part: "heads" (the output z of each), "edges" (single attention weights)
            or "layers" (what the attention or the MLP of a block adds to the residual stream).
        targets: the parts: (layer, head), (layer, head, query, key) or (layer, "attention" |
            "mlp"). None: every head or sublayer, or the `top` edges to which the last token attends
            most.
        top: how many edges, where none is named.
        method: what stands in for a part: "zero", or for heads "mean", over all positions.
        measures: what is measured: "sensitivity", "collapse", "answers"; None: all that are
            possible. Edges have no "collapse": the two prompts of a pair have different lengths.
        prefilled: whether the right answer's line, up to the answer itself, is put after the
            prompt: y_n is then the token from which the answer is read.
        progress: called as progress(done, total) after each part.

    How a task's prompts are encoded: `EncodingOptions`.

    The sensitivity is that of the real derivative. The prediction is -dm/dg at g = 1, where g is a
    gate on the part and m the measure. Active edits stay active. All is computed in float32, or in
    float64 for a float64 model (`computed_in`), log p of the right line too: an effect stands
    beside its derivative. That of `ost.evaluate` is in the model's own dtype. Raises `InputError`
    for unknown names and parts, a prompt longer than the context, a pair that rounding alone keeps
    apart, and numbers that are not finite.
    """
    checked_method(what, method)
    names = _checked_measures(what, measures, task)
    whole_number("top", top, 1)
    parts = None if targets is None else checked_targets(model, what, targets)
    work = full_precision(model, "ablation")
    questions = _questions(
        work, task, lengths, seeds, names, prefilled=prefilled, encoding=encoding
    )
    settings: dict[str, Any] = {
        "task": questions[0].task,
        "lengths": [question.length for question in questions],
    }
    settings |= {
        "seeds": list(seeds),
        "what": what,
        "targets": parts,
        "top": top,
        "method": method,
        "begun": prefilled,
    }
    settings |= {
        "measures": names,
        **encoding,
        **(task.provenance if isinstance(task, AnsweredPrompt) else {}),
    }
    settings |= {"computed_in": str(next(work.parameters()).dtype).removeprefix("torch.")}
    ids = tuple(questions[0].prompt.tolist()) if len(questions) == 1 else None
    provenance = Provenance.collect(model, ids, measurement="ablation", **settings)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(False), true_arithmetic(work):
        for index, question in enumerate(questions):
            question_parts = parts or all_targets(work, what, question.prompt, top)
            part_progress = part_of(progress, index, index + 1, len(questions))
            rows += _rows(
                work,
                question,
                question_parts,
                method,
                _measures(question, what, names),
                part_progress,
            )
    frame: Any = pd.DataFrame(rows).assign(what=what, method=method)[list(_COLUMNS)]
    return Ablation(
        frame.astype(dict.fromkeys(("length", "seed", "head", "query", "key"), "Int64")), provenance
    )


def _checked_measures(
    what: str, measures: Sequence[str] | None, task: object
) -> tuple[str, ...] | None:
    """Names of the measures; None: all that a prompt's user has given what they need for."""
    names = None if measures is None else distinct("measures", measures)
    if what == "edges" and names is not None and "collapse" in names:
        raise InputError(
            "ablation: expected a measure of edges, found 'collapse': its two prompts have different lengths, so an "
            "edge of one is not an edge of the other; leave 'collapse' out"
        )
    of_task = isinstance(task, str | Task)
    return ("sensitivity", "answers") if what == "edges" and names is None and of_task else names


def _questions(
    model: TransformerBridge,
    task: str | Task | Prompt | AnsweredPrompt,
    lengths: Iterable[int] | None,
    seeds: Sequence[int],
    names: Sequence[str] | None,
    *,
    prefilled: bool,
    encoding: EncodingOptions,
) -> list[Question]:
    """The prompts that the parts are taken out on."""
    if isinstance(task, Prompt | AnsweredPrompt):
        if encoding:
            raise in_tokens_already([*encoding], "a Prompt")
        if lengths is not None or prefilled:
            raise InputError(
                "ablation: a prompt has no lengths and no line to begin; leave lengths and prefilled (--prefilled) out"
            )
        answered_prompt = AnsweredPrompt(task) if isinstance(task, Prompt) else task
        return [of_prompt(model, answered_prompt, paired=names is None or "collapse" in names)]
    if lengths is None:
        raise InputError("ablation: expected lengths for a task, such as lengths=[20], found none")
    form = tasks.task(task)
    return [
        of_task(
            model, form, length, seed, prefilled=prefilled, measures=names or MEASURES, **encoding
        )
        for length in checked_lengths(lengths)
        for seed in seeds_of(form, seeds)
    ]


def _measures(question: Question, what: str, names: Sequence[str] | None) -> list[Measure]:
    measures = [
        measure
        for measure in question.measures(names)
        if what != "edges" or measure.name != "collapse"
    ]
    if not measures:
        raise InputError(
            "ablation of edges: expected carriers or an answer for the prompt, found neither"
        )
    return measures


def _rows(
    model: TransformerBridge,
    question: Question,
    targets: Sequence[Target],
    method: str,
    measures: Sequence[Measure],
    progress: Progress | None,
) -> Iterator[dict[str, Any]]:
    """Rows of one prompt: the prediction for all parts at once, then each taken out in turn."""
    n = len(question.prompt)
    if beyond := [query for target in targets if (query := getattr(target, "query", 0)) >= n]:
        raise InputError(
            f"ablation: expected edges within the prompt's {n} tokens, found the query {beyond[0]}"
        )
    where = {"task": question.task, "length": question.length, "seed": question.seed, "tokens": n}
    baseline = {
        measure.name: require_finite(measure.values(model), "with nothing taken out")
        for measure in measures
    }
    weight = next(model.parameters())
    gates = torch.ones(len(targets), dtype=weight.dtype, device=weight.device, requires_grad=True)
    slopes = {
        measure.name: measure.slopes(
            model, gates_on(model, targets, method, question.prompt), gates
        )
        for measure in measures
    }
    for index, target in enumerate(targets):
        with taken_out(model, target, method, question.prompt):
            real = {
                measure.name: require_finite(measure.values(model), f"without {target}")
                for measure in measures
            }
        for measure_name, numbers in real.items():
            for quantity, ablated in numbers.items():
                value = baseline[measure_name][quantity]
                yield (
                    where
                    | columns_of(target)
                    | {
                        "measure": measure_name,
                        "quantity": quantity,
                        "value": value,
                        "ablated": ablated,
                    }
                    | {
                        "effect": ablated - value,
                        "predicted_effect": -float(slopes[measure_name][quantity][index]),
                    }
                )
        tell(progress, index + 1, len(targets))


def ablation_memory(
    model: Unloaded,
    task: Task | str,
    lengths: Sequence[int],
    *,
    what: str = "heads",
    method: str = "zero",
    **encoding: Unpack[EncodingOptions],
) -> int:
    """Bytes of a pass over the longest prompt, whose patterns are kept."""
    checked_method(what, method)
    return patterns_bytes(model.shape, model.longest(task, lengths, **encoding).tokens)
