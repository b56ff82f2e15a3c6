"""Is the answer read? What the output makes of a move along the direction that a probe decodes.

Cost, in every dtype: one pass over every prompt with all positions of the streams, one more from
every layer for each of two directions, and a probe a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Progress, TransformerBridge, tell, with_progress
from ostools.ground.out_of_memory import chunk
from ostools.measure.answers.prefilled import require_telling_first_tokens, running
from ostools.measure.measurement import measurement
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.contexts import (
    captured_pass,
    contiguous_head,
    run_from,
    true_arithmetic,
)
from ostools.measure.passes.last_tokens import Unembedding
from ostools.measure.passes.precisions import Precision, checked_precisions
from ostools.measure.position import ReadPrompt
from ostools.measure.probes.probe import FLOAT32, ProbeTask, probe
from ostools.measure.probes.ridge import Probe, fitted
from ostools.measure.probes.scores import FINAL, RESIDUAL, Captured, Place
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Task

DIRECTIONS = ("probe", "data")
_NUMBERS = ("arrived", "predicted", "intervention", "log_odds")
COLUMNS = (
    dict.fromkeys(("task", "mitigation", "dtype", "site"), "str")
    | {"layer": "int64", "direction": "str", "prompts": "int64", "moved": "int64"}
    | dict.fromkeys(_NUMBERS, "float64")
    | {"asked": "int64", "followed": "float64"}
)


@dataclass(frozen=True, eq=False)
class ProbeIntervention(Result):
    """One row per dtype, place and direction: whether the output reads the number that a probe
    decodes there.

    An answer is known by its first token after the begun line: no two answers that were asked begin
    with the same one.

    Columns: task, mitigation, dtype, site and layer (residual: v^(l); y), direction ("probe": the
    ridge probe's own weights w; "data": S w, with S the covariance of the representations, along
    which they differ where the number does), prompts (on all of them the probe is fitted), moved
    (those with a next answer: all but the prompts of the largest).

    Moved along the direction by as much as makes the probe say the next answer: arrived (how much
    of the move is left once the dtype has rounded the sum; 1 is all), predicted (by how much the
    probe's number moves: 1 where every number was asked), intervention (by how much the expected
    answer of the output moves, over the first tokens of the answers), log_odds (by how much log
    p(next) - log p(right) moves), followed (of the `asked` prompts at which the right answer's
    first token was likelier than those of the other answers, at how many that of the next answer
    then is). An answer is not read to its end here: after the 2 of a right answer a model may go on
    to 20.
    """

    tables: ClassVar = (
        TableHead(columns="dtype site layer direction arrived predicted intervention followed"),
    )

    def chart(self) -> Chart:
        from ostools.reporting.charts.components import intervention_chart

        return intervention_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.probes import intervention_findings

        return intervention_findings(self)


@measurement(
    command="probe intervention",
    examples=("--task count-ones-bernoulli --lengths 2:9 --out intervention.png",),
    defaults={"task": "count-ones-bernoulli", "lengths": "2:9"},
    lines_of=(probe,),
    memory=["probes"],
    in_chunks=True,
    checks=(checked_precisions,),
)
def probe_intervention(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    dtypes: Sequence[str] = (FLOAT32,),
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> ProbeIntervention:
    """Test whether the output reads the number that a probe decodes at the last token, by moving
    it.

    Args: as in `probe`. In 16 bits the probe is fitted on the rounded representations. The
    representation that the intervention moves is rounded again, and the column `arrived` says how
    much of the move is left.

    Raises `InputError` for what `probe` refuses, for a task whose answer is not a number, and for
    two right answers that begin with the same token (1 and 10, if digits are tokens): there the
    first token does not say which of the two the output answers.
    """
    probe_task = ProbeTask.of(model, task, lengths, seeds, mitigation, **encoding)
    precisions = checked_precisions(dtypes)
    tokens = first_tokens(probe_task)
    rows = []
    for precision, part in with_progress(precisions, progress):
        rows += _rows(probe_task, precision, tokens, part)
    provenance = Provenance.collect(
        model,
        measurement="probe-intervention",
        **probe_task.names,
        **probe_task.described,
        dtypes=[precision.name for precision in precisions],
        tokens={str(number): token for number, token in tokens.items()},
    )
    frame: Frame = pd.DataFrame(rows).assign(**probe_task.names, prompts=len(probe_task.prompts))
    return ProbeIntervention(frame[list(COLUMNS)].astype(COLUMNS), provenance)


def _rows(
    probe_task: ProbeTask,
    precision: Precision,
    tokens: Mapping[int, int],
    progress: Progress | None,
) -> list[dict[str, object]]:
    questions = probe_task.questions
    numbers, groups = questions["label"].to_numpy(), questions["group"].to_numpy()
    representations = probe_task.captured(precision)
    places = [
        place
        for place in representations
        if place.site == FINAL or (place.site == RESIDUAL and place.layer)
    ]
    rows = []
    with (
        torch.no_grad(),
        running(probe_task.model, probe_task.prompts, precision, probe_task.mitigation) as prepared,
    ):
        output = _Output(prepared, probe_task.prompts, tokens, representations)
        for number, place in enumerate(places):
            probe = fitted(representations[place].double().numpy(), numbers, groups)
            for direction in DIRECTIONS:
                row = _row(output, representations, place, probe, direction)
                rows.append({"dtype": precision.name} | row)
            tell(progress, number + 1, len(places))
    return rows


def first_tokens(probe_task: ProbeTask) -> dict[int, int]:
    """First token of every right answer, in order. Raises `InputError` where two begin with the
    same.
    """
    require_telling_first_tokens(probe_task.model, probe_task.prompts)
    return dict(sorted((prompt.number, prompt.token) for prompt in probe_task.prompts))


def along(
    rows: Float[Tensor, "prompt d"], weights: Float[Tensor, " d"], direction: str
) -> Float[Tensor, " d"]:
    """Step of a representation that makes the probe w predict one more: w / w.w, or along S w: S w
    / w.S w.

    Raises `InputError` for a probe without weights: it decodes nothing, in no direction.
    """
    step = weights if direction == "probe" else torch.cov(rows.T) @ weights
    by = float(step @ weights)
    if not by > 0:
        raise InputError(
            "probe_intervention: expected a probe that depends on the representation, found one "
            "that does not"
        )
    return step / by


def arrived(rows: Float[Tensor, "prompt d"], steps: Float[Tensor, "prompt d"]) -> float:
    """Share of the moves that is left once the sum is rounded to the dtype of `rows`: along them,
    of their squared length.
    """
    actual_steps = (rows + steps.to(rows)).double() - rows.double()
    return float((actual_steps * steps).sum() / (steps**2).sum())


def moved_answers(
    before: Float[Tensor, "prompt answer"],
    after: Float[Tensor, "prompt answer"],
    numbers: Int[Tensor, " answer"],
    right: Int[Tensor, " prompt"],
) -> dict[str, float | int]:
    """Columns of the logits of answers before and after a move to the next: intervention, log_odds,
    asked, followed; see `ProbeIntervention`.

    `right`: the index of the right answer; the next one stands after it.
    """
    rows = torch.arange(len(right))
    expected, odds = [], []
    for logits in (before.double(), after.double()):
        expected.append(logits.softmax(1) @ numbers.double())
        odds.append(logits[rows, right + 1] - logits[rows, right])
    was_right = before.argmax(1) == right
    follows = (after.argmax(1) == right + 1)[was_right].double()
    return {
        "intervention": float((expected[1] - expected[0]).mean()),
        "log_odds": float((odds[1] - odds[0]).mean()),
        "asked": int(was_right.sum()),
        "followed": float(follows.mean()) if len(follows) else np.nan,
    }


class _Output:
    """Output that reads y, and the answers: their numbers, in order, and their first tokens.
    `moves`: the prompts that have a next answer; `gaps`: by how much that is larger; `before`:
    their logits of the answers."""

    def __init__(
        self,
        model: TransformerBridge,
        prompts: Sequence[ReadPrompt],
        tokens: Mapping[int, int],
        representations: Captured,
    ) -> None:
        self.model, self.prompts = model, prompts
        self.numbers, self.tokens = (torch.tensor([*part]) for part in (tokens, tokens.values()))
        keys = torch.tensor([prompt.number for prompt in prompts])
        self.right = torch.searchsorted(self.numbers, keys)
        self.moves = torch.nonzero(self.right + 1 < len(self.numbers))[:, 0]
        right = self.right[self.moves]
        self.gaps = (self.numbers[right + 1] - self.numbers[right]).double()
        logits = representations[max(representations)]
        self.before = logits[self.moves][:, self.tokens]

    def logits(
        self, rows: Float[Tensor, "prompt d"], place: Place
    ) -> Float[Tensor, "prompt d_vocab"]:
        """Of rows at a place behind which nothing but the final norm is left. A norm of
        transformers computes in float32.
        """
        y = rows.to(next(self.model.parameters()).device)
        if place.site != FINAL and rows.dtype == torch.float64:
            y = hooks.norms(self.model)["ln_final"](y)
        elif place.site != FINAL:
            with true_arithmetic(self.model):
                y = self.model.ln_final(y[None])[0]
        return Unembedding.of(self.model)(y).cpu()

    def after(
        self, rows: Float[Tensor, "prompt d"], place: Place, step: Float[Tensor, " d"]
    ) -> Tensor:
        """The logits of the answers once the last token of every moved prompt is moved there."""
        steps = self.gaps[:, None] * step
        if place.site == FINAL or place.layer == int(self.model.cfg.n_layers):
            return self.logits(rows[self.moves] + steps.to(rows), place)[:, self.tokens]
        logits_after = torch.empty_like(self.before)
        lengths = [len(self.prompts[index].ids) for index in self.moves.tolist()]
        for batch in batches(lengths, False, chunk(TOKENS)):
            ids = torch.tensor([self.prompts[int(self.moves[index])].ids for index in batch])
            record, _ = captured_pass(self.model, ids, "residual_pre", layers=[place.layer])
            stream = record["residual_pre"][place.layer].clone()
            stream[:, -1] += steps[batch].to(stream)
            with true_arithmetic(self.model), contiguous_head(self.model):
                logits = run_from(self.model, stream, place.layer)[:, -1].cpu()
            logits_after[batch] = logits[:, self.tokens].to(logits_after)
        return logits_after


def _row(
    output: _Output, representations: Captured, place: Place, probe: Probe, direction: str
) -> dict[str, object]:
    rows = representations[place].double()
    weights = torch.from_numpy(probe.weights)
    step = along(rows, weights, direction)
    after = output.after(representations[place], place, step)
    return {
        "site": place.site,
        "layer": place.layer,
        "direction": direction,
        "moved": len(output.moves),
        "arrived": arrived(representations[place][output.moves], output.gaps[:, None] * step),
        "predicted": float(output.gaps.mean()),
        **moved_answers(output.before, after, output.numbers, output.right[output.moves]),
    }
