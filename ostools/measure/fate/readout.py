"""Is the answer read? What the output makes of the direction that a probe decodes.

Cost: one pass over every prompt with all positions of the streams, one more from every layer for each of two directions, and a
probe a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
import mitigations
from mitigations import Mitigation
from ostools.ground.chunks import chunk
from ostools.ground.errors import InputError
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, tell
from ostools.measure.asked import asked
from ostools.measure.fate.begun import Begun
from ostools.measure.fate.captured import FINAL, RESIDUAL, Captured, Place
from ostools.measure.fate.decodable import Asked
from ostools.measure.fate.probes import Probe, fitted
from ostools.measure.passes.arithmetic import true_arithmetic
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.last_tokens import Unembedding
from ostools.measure.passes.precisions import Precision
from ostools.measure.passes.streams import run_from
from ostools.results import Provenance, Result
from ostools.tasks import Task

DIRECTIONS = ("probe", "data")
_RANDOM = 200  # directions of the representations' covariance
COLUMNS = {
    **{"task": "str", "mitigation": "str", "site": "str", "layer": "int64", "direction": "str", "prompts": "int64"},
    **{"cosine": "float64", "random_low": "float64", "random_high": "float64"},
    **{
        "predicted": "float64",
        "intervention": "float64",
        "log_odds": "float64",
        "asked": "int64",
        "followed": "float64",
    },
    **{"rank": "float64", "log_probability": "float64"},
}


@dataclass(frozen=True, eq=False)
class Readout(Result):
    """One row per place and direction: whether the output reads the number that a probe decodes there. In float32 or float64.

    Columns: task, mitigation, site and layer (residual: v^(l); y), direction ("probe": the ridge probe's own weights w; "data":
    S w, with S the covariance of the representations, along which they differ where the number does), prompts.

    cosine: the largest |cosine| of the direction with an output row of an answer's token, the mean of these rows taken out (at
    v^(l) the rows with the final norm's gain). random_low and random_high: where that lies for 95% of random directions of the
    same covariance (for "probe" of its inverse: their weights have it).

    Moved along the direction by as much as makes the probe say one more: predicted (by the probe: 1), intervention (by how much
    the expected answer of the output moves, over answers of one token), log_odds (by how much log p(answer + 1) - log p(answer)
    moves), followed (of the `asked` prompts whose likeliest answer was right, how many then answer one more).

    rank and log_probability of the right answer's token at that place, read by the final norm and the output (logit lens): the
    median rank (1 is the first), and the mean.
    """


@asked
@in_smaller_chunks
def readout(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Readout:
    """Whether a number that a probe decodes at the last token is what the output reads: cosine, logit lens, and intervention.

    Args: as of `decodable`. Of the prompts those are used whose right answer and the next number are one token each, so that
    the first token is the whole answer: counts up to eight, where digits are tokens.

    Raises `InputError` for what `decodable` refuses, a task whose answer is no number, a model in 16 bits (its interventions
    would be rounded), and where no prompt has an answer of one token.
    """
    if next(model.parameters()).dtype not in (torch.float32, torch.float64):
        raise InputError("readout: expected a model in float32 or float64, found 16 bits: load it with dtype='float32'")
    asked = Asked.of(model, task, lengths, seeds, "number", mitigation, chat)
    tokens = answer_tokens(asked.prompts)
    chosen = [one for one in asked.prompts if len(one.answer) == 1 and int(one.posed.key) + 1 in tokens]
    if not chosen or len(tokens) < 2:
        raise InputError(
            f"{asked.form.name}: expected right answers n of which n and n + 1 are one token each, found none among "
            f"{len(asked.prompts)} prompts: ask for shorter lengths"
        )
    asked = Asked(model, asked.form, chosen, "number", asked.mitigation)
    labels, groups = (
        np.array(column) for column in ([int(one.posed.key) for one in chosen], [one.group for one in chosen])
    )
    precision = Precision.named(str(next(model.parameters()).dtype).removeprefix("torch."))
    found = asked.captured(precision)
    places = [place for place in found if place.site == FINAL or (place.site == RESIDUAL and place.layer)]
    rows = []
    with torch.no_grad(), mitigations.running(model, asked.mitigation):
        output = _Output.of(model, chosen, tokens, found)
        for number, place in enumerate(places):
            probe = fitted("number", found[place].double().numpy(), labels, groups)
            lens = output.lens(found[place], place)
            for direction in DIRECTIONS:
                rows.append(_row(output, found, place, probe, direction) | lens)
            tell(progress, number + 1, len(places))
    provenance = Provenance.collect(
        model, measurement="readout", **asked.names, **asked.described, tokens=sorted(tokens)
    )
    frame: Any = pd.DataFrame(rows).assign(**asked.names, prompts=len(chosen))
    return Readout(frame[list(COLUMNS)].astype(COLUMNS), provenance)


def answer_tokens(prompts: Sequence[Begun]) -> dict[int, int]:
    """The token of every number that is the whole right answer to a prompt."""
    return {int(one.posed.key): one.token for one in prompts if len(one.answer) == 1}


def along(rows: Float[Tensor, "prompt d"], weights: Float[Tensor, " d"], direction: str) -> Float[Tensor, " d"]:
    """By how much a representation moves so that the probe w says one more: w / w.w, or along S w: S w / w.S w.

    Raises `InputError` for a probe without weights: it decodes nothing, in no direction.
    """
    moved = weights if direction == "probe" else torch.cov(rows.T) @ weights
    by = float(moved @ weights)
    if not by > 0:
        raise InputError("readout: expected a probe that depends on the representation, found one that does not")
    return moved / by


def largest_cosine(
    directions: Float[Tensor, "direction d"], outputs: Float[Tensor, "answer d"]
) -> Float[Tensor, " direction"]:
    """The largest |cosine| with a row of the output, the rows' mean taken out."""
    centred = outputs - outputs.mean(0)
    size = directions.norm(dim=1)[:, None] * centred.norm(dim=1)
    return ((directions @ centred.T).abs() / size.clamp_min(1e-300)).amax(1)


def moved_answers(
    before: Float[Tensor, "prompt answer"],
    after: Float[Tensor, "prompt answer"],
    numbers: Int[Tensor, " answer"],
    right: Int[Tensor, " prompt"],
) -> dict[str, float | int]:
    """Of the logits of answers before and after a move by one: intervention, log_odds, asked, followed; see `Readout`.

    `right`: the index of the right answer; the next one stands behind it.
    """
    expected = [logits.double().softmax(1) @ numbers.double() for logits in (before, after)]
    here = torch.arange(len(right))
    odds = [logits[here, right + 1] - logits[here, right] for logits in (before, after)]
    was_right = before.argmax(1) == right
    follows = (after.argmax(1) == right + 1)[was_right].double()
    return {
        "intervention": float((expected[1] - expected[0]).mean()),
        "log_odds": float((odds[1] - odds[0]).mean()),
        "asked": int(was_right.sum()),
        "followed": float(follows.mean()) if len(follows) else np.nan,
    }


@dataclass(frozen=True)
class _Output:
    """What reads y, and answers of one token: their numbers, in order, and their tokens."""

    model: TransformerBridge
    prompts: list[Begun]
    numbers: Int[Tensor, " answer"]
    tokens: Int[Tensor, " answer"]
    right: Int[Tensor, " prompt"]
    before: Float[Tensor, "prompt answer"]

    @classmethod
    def of(cls, model: TransformerBridge, prompts: list[Begun], tokens: dict[int, int], found: Captured) -> _Output:
        numbers = sorted(tokens)
        right = [numbers.index(int(one.posed.key)) for one in prompts]
        ids = torch.tensor([tokens[number] for number in numbers])
        return cls(model, prompts, torch.tensor(numbers), ids, torch.tensor(right), found[max(found)][:, ids])

    def logits(self, y: Float[Tensor, "prompt d"]) -> Float[Tensor, "prompt d_vocab"]:
        device = next(self.model.parameters()).device
        return Unembedding.of(self.model)(y.to(device)).cpu()

    def normed(self, rows: Float[Tensor, "prompt d"], place: Place) -> Float[Tensor, "prompt d"]:
        device = next(self.model.parameters()).device
        with true_arithmetic(self.model):
            return rows if place.site == FINAL else self.model.ln_final(rows[None].to(device))[0].cpu()

    def lens(self, rows: Float[Tensor, "prompt d"], place: Place) -> dict[str, float]:
        """The right token at that place."""
        scores = self.logits(self.normed(rows, place)).double().log_softmax(1)
        own = scores.gather(1, self.tokens[self.right][:, None])
        return {"rank": float(((scores > own).sum(1) + 1).double().median()), "log_probability": float(own.mean())}

    def rows(self, place: Place) -> Float[Tensor, "answer d"]:
        """The output rows of the answers; at v^(l) as the norm's gain weighs them."""
        weights = self.model.W_U.detach()[:, self.tokens].T.double().cpu()
        if place.site == FINAL:
            return weights
        norm = hooks.norms(self.model)["ln_final"]
        return weights * norm.gain.detach().double().cpu()

    def after(self, rows: Float[Tensor, "prompt d"], place: Place, step: Float[Tensor, " d"]) -> Tensor:
        """The logits of the answers once the last token is moved there."""
        if place.site == FINAL:
            return self.logits(rows + step.to(rows))[:, self.tokens]
        if place.layer == int(self.model.cfg.n_layers):
            return self.logits(self.normed(rows + step.to(rows), place))[:, self.tokens]
        moved = torch.empty(len(self.prompts), len(self.tokens))
        for batch in batches([len(one.ids) for one in self.prompts], False, chunk(TOKENS)):
            ids = torch.tensor([self.prompts[index].ids for index in batch])
            moved[batch] = self._through(ids, place.layer, step)[:, self.tokens].to(moved)
        return moved

    def _through(self, ids: Int[Tensor, "batch pos"], layer: int, step: Float[Tensor, " d"]) -> Tensor:
        """The logits of the blocks from `layer` on, the last token moved before them."""
        with true_arithmetic(self.model):
            with hooks.capture(self.model, "residual_pre", layers=[layer]) as record:
                self.model(ids.to(next(self.model.parameters()).device), use_cache=False, logits_to_keep=1)
            stream = record["residual_pre"][layer].clone()
            stream[:, -1] += step.to(stream)
            return run_from(self.model, stream, layer)[:, -1].cpu()


def _row(output: _Output, found: Captured, place: Place, probe: Probe, direction: str) -> dict[str, Any]:
    rows = found[place].double()
    weights = torch.from_numpy(probe.weights[0])
    step = along(rows, weights, direction)
    outputs = output.rows(place)
    centred = rows - rows.mean(0)
    drawn = torch.randn(_RANDOM, len(rows), generator=torch.Generator().manual_seed(0)).double()
    # Of covariance S; weights of a probe have its inverse, here on the directions in which the prompts differ.
    random = drawn @ (centred if direction == "data" else torch.linalg.pinv(centred, rtol=1e-6).T)
    ends = torch.quantile(largest_cosine(random, outputs), torch.tensor([0.025, 0.975]).double())
    moved = moved_answers(output.before, output.after(found[place], place, step), output.numbers, output.right)
    named = {"site": place.site, "layer": place.layer, "direction": direction, "predicted": 1.0}
    cosine = float(largest_cosine(step[None], outputs))
    return named | {"cosine": cosine, "random_low": float(ends[0]), "random_high": float(ends[1])} | moved
