"""Heads, attention edges or layers taken out one at a time: the real effect, beside what first
order predicts.

Predicted, from one backward pass for all parts: put a gate g on each, x -> g x, and take -dm/dg at
g = 1. Real: the part is taken out and m measured again. The two never share a
column: where first order fails, as it does for parts that matter much or that others stand in for,
the table shows it.

Cost: for each part one forward pass a prompt (answers), or two (collapse).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import Any, ClassVar, Unpack

import pandas as pd
import torch

from ostools import hooks, tasks
from ostools.ground import (
    Count,
    InputError,
    Lengths,
    Progress,
    TransformerBridge,
    checked_lengths,
    distinct,
    tell,
    with_progress,
)
from ostools.measure.ablation.questions import (
    MEASURES,
    TOP,
    AblatedPrompt,
    Logit,
    MeasureName,
    Target,
    What,
    all_targets,
    checked_targets,
    columns_of,
    of_prompt,
    of_task,
    require_apart,
)
from ostools.measure.first_order import agreement_table
from ostools.measure.measurement import measurement
from ostools.measure.passes.contexts import full_precision, require_no_freeze, true_arithmetic
from ostools.measure.position import read_entry
from ostools.measure.prompts import as_prompt
from ostools.models import EncodingOptions, Prompt
from ostools.results import Chart, Frame, Provenance, Result, TableHead, of_earlier_version
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

QUESTION = ("task", "length", "seed")
QUANTITY = ("measure", "quantity")
_COLUMNS = (
    *(*QUESTION, "tokens", "what", "target", "layer", "head", "query", "key", "part"),
    *(*QUANTITY, "value", "ablated", "effect", "predicted_effect"),
)


@dataclass(frozen=True, eq=False)
class Ablation(Result):
    """One row per prompt, part taken out, and quantity.

    Columns: task, length, seed, tokens; what (heads | edges | layers), target (its name), layer,
    head, query, key, part (NA where it has none);
    measure and quantity: collapse (pair_distance, ||y - y*||_2), answers (log_probability of the
    right answer or of the token of `logit`, nats; or logit_difference of two); value (nothing taken
    out), ablated (measured with the part out), effect (ablated - value: real),
    predicted_effect (first order).
    """

    tables: ClassVar = (TableHead("top", "quantity target value ablated effect predicted_effect"),)
    key: ClassVar = ("task", "length", "seed", "prompt", "target", "measure", "quantity")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "method" in self.frame and {*self.frame["method"]} != {"zero"}:
            raise of_earlier_version(self, "parts replaced by their mean")
        if "sensitivity" in {*self.frame["measure"]}:
            raise of_earlier_version(self, "sensitivities")

    @property
    def agreement(self) -> pd.DataFrame:
        """How well first order predicted the real effects
        (`measure.first_order.first_order_agreement`), a row a prompt and quantity."""
        return agreement_table(self.frame, (*QUESTION, *QUANTITY), "target")

    def top(self, count: int = 10) -> pd.DataFrame:
        """Rows of the `count` parts with the greatest real effect, by size, for each prompt and
        quantity.
        """
        frame: Frame = self.frame.reset_index(drop=True)
        by_size = frame.loc[frame["effect"].abs().sort_values(ascending=False, kind="stable").index]
        groups = frame.groupby([*QUESTION, *QUANTITY], sort=False, dropna=False)
        tables = [by_size[by_size.index.isin(group.index)].head(count) for _, group in groups]
        return pd.concat(tables, ignore_index=True)

    def chart(self) -> Chart:
        from ostools.reporting.charts.interventions import ablation_chart

        return ablation_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import ablation_findings

        return ablation_findings(self)


@measurement(
    command="ablate",
    examples=(
        "--task copy-first --lengths 20 --what heads --measures answers,collapse --out ablate.png",
        "--task copy-first --lengths 20 --what edges --targets 2.0:64:7",
        '--prompt "The capital of Germany is" --logit " Berlin" --logit " Paris" '
        "--measures answers",
    ),
    memory=["patterns"],
)
def ablation(
    model: TransformerBridge,
    task: str | Task | None = None,
    *,
    lengths: Lengths | None = None,
    seeds: Sequence[int] = (0,),
    prompt: str | Prompt | None = None,
    what: What = "heads",
    targets: Iterable[Sequence[Any]] | None = None,
    top: Count = TOP,
    measures: MeasureName | Sequence[MeasureName] | None = None,
    logit: str | int | Sequence[str | int] | None = None,
    prefilled: bool = False,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Ablation:
    """Take parts of the model out, one at a time, and measure what changes, beside a first-order
    prediction.

    Args:
        task: a task or its name.
        lengths: numbers of items of the task's sequence.
        seeds: one sequence for each, if the task draws its sequence.
        prompt: a text or its tokens, in the place of a task.
        what: the kind of part: "heads" (the output z of each), "edges" (single attention weights)
            or "layers" (what the attention or the MLP of a block adds to the residual stream).
        targets: the parts: (layer, head), (layer, head, query, key) or (layer, "attention" |
            "mlp"). None: every head or sublayer, or the `top` edges to which the last token attends
            most.
        top: how many edges, where none is named.
        measures: what is measured: "collapse", "answers"; None: all that are possible. Edges have
            no "collapse": the two prompts of a pair have different lengths. A prompt has "answers"
            with `logit` alone.
        logit: the answer's token, or two for the difference of their logits. None: a task's right
            line.
        prefilled: whether the right answer's line, up to the answer itself, is put after the
            prompt: y_n is then the token from which the answer is read (position "answer" of
            `collapse`), and else the last token of the prompt ("prompt-end").
        progress: called as progress(done, total) after each part.

    How a task's prompts are encoded: `EncodingOptions`.

    The prediction is -dm/dg at g = 1, where g is a gate on the part and m the measure. Active edits
    stay active. All is computed in float32, or in float64 for a float64 model (`computed_in`), log
    p of the right line too: an effect stands beside its derivative. That of `ost.evaluate` is in
    the model's own dtype. Raises `InputError`
    for unknown names and parts, a prompt longer than the context, a pair that rounding alone keeps
    apart, numbers that are not finite, and within `hooks.frozen`, whose derivative is another one;
    `HookError` for parts that the model does not have.
    """
    parts = None if targets is None else checked_targets(what, targets)
    work = full_precision(model, "ablation")
    require_no_freeze("ablation", work)
    names = _measure_names(what, measures, prompt is not None, logit)
    if prompt is None and task is not None and lengths is not None:
        form = tasks.task(task)
        ablated = [
            of_task(work, form, length, seed, names, logit, prefilled, **encoding)
            for length, seed in product(checked_lengths(lengths), seeds_of(form, seeds))
        ]
    elif prompt is None:
        raise InputError(
            "ablation: expected a prompt, or a task with its lengths, such as task='copy-first', "
            "lengths=[20]"
        )
    elif task is None and lengths is None and not prefilled and tuple(seeds) == (0,):
        ablated = [of_prompt(work, as_prompt(model, prompt), names, logit)]
    else:
        raise InputError(
            "ablation: expected a prompt or a task, found both: a prompt has no lengths, no seeds "
            "and no line to begin"
        )
    provenance = Provenance.collect(
        model,
        tuple(ablated[0].prompt.tolist()) if len(ablated) == 1 else None,
        measurement="ablation",
        task=ablated[0].task,
        lengths=[prompt.length for prompt in ablated],
        seeds=list(seeds),
        what=what,
        targets=parts,
        top=top,
        begun=prefilled,
        measures=list(ablated[0].measures),
        logit=logit,
        **encoding,
        computed_in=str(next(work.parameters()).dtype).removeprefix("torch."),
        **read_entry(model, map(attrgetter("read"), ablated)),
    )
    rows = []
    with torch.inference_mode(False), true_arithmetic(work):
        for ablated_prompt, part in with_progress(ablated, progress):
            ablated_parts = parts or all_targets(work, what, ablated_prompt.prompt, top)
            rows += _rows(work, ablated_prompt, ablated_parts, part)
    frame: Frame = pd.DataFrame(rows).assign(what=what)[list(_COLUMNS)]
    return Ablation(
        frame.astype(dict.fromkeys(("length", "seed", "head", "query", "key"), "Int64")), provenance
    )


def _measure_names(
    what: str,
    measures: MeasureName | Sequence[MeasureName] | None,
    is_prompt: bool,
    logit: Logit | None,
) -> Sequence[MeasureName]:
    """The measures that are asked for; of None those that a kind of part, and a prompt, can have.

    Raises `InputError` for one that they cannot have, and for a logit that no measure reads.
    """
    impossible: dict[str, str] = {}
    if what == "edges":
        impossible["collapse"] = "the two prompts of a pair have different edges: leave it out"
    if is_prompt and logit is None:
        impossible["answers"] = "the answer to a prompt is not known: give logit, its token"
    names: Sequence[MeasureName] = (
        [name for name in MEASURES if name not in impossible] or MEASURES[1:]
        if measures is None
        else distinct("measures", measures)
    )
    for name in names:
        if name in impossible:
            raise InputError(
                f"ablation: expected another measure of {what}, found {name!r}: {impossible[name]}"
            )
    if logit is not None and "answers" not in names:
        raise InputError(
            "ablation: expected 'answers' among the measures, as logit= is read there, found "
            f"{', '.join(names)}"
        )
    return names


def _rows(
    model: TransformerBridge,
    prompt: AblatedPrompt,
    targets: Sequence[Target],
    progress: Progress | None,
) -> Iterator[dict[str, object]]:
    """Rows of one prompt: the prediction for all parts at once, then each taken out in turn."""
    n = len(prompt.prompt)
    if beyond := [query for target in targets if (query := getattr(target, "query", 0)) >= n]:
        raise InputError(
            f"ablation: expected edges within the prompt's {n} tokens, found the query {beyond[0]}"
        )
    where = {"task": prompt.task, "length": prompt.length, "seed": prompt.seed, "tokens": n}
    values = {
        name: measure.value(model, "with nothing taken out")
        for name, measure in prompt.measures.items()
    }
    if "collapse" in values:
        require_apart(model, prompt.prompt, values["collapse"])
    slopes = {name: measure.slopes(model, targets) for name, measure in prompt.measures.items()}
    closed_gate = torch.zeros_like(next(model.parameters()).flatten()[:1])
    for index, target in enumerate(targets):
        for name, measure in prompt.measures.items():
            with hooks.gated(model, [target], closed_gate):
                ablated = measure.value(model, f"without {target}")
            yield {
                **where,
                **columns_of(target),
                "measure": name,
                "quantity": measure.quantity,
                "value": values[name],
                "ablated": ablated,
                "effect": ablated - values[name],
                "predicted_effect": -float(slopes[name][index]),
            }
        tell(progress, index + 1, len(targets))
