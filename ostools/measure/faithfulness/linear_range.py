"""How far the derivative carries: the stretch of the way to another token over which y_n moves as J
says.

Token i's embedding v_i moves towards that of another real token, v_i + t (v' - v_i), 0 < t <= 1,
which is drawn from those that the prompt does not hold. The linear prediction of y_n is off by

    error(t) = || y_n(t) - y_n(0) - t J_i (v' - v_i) || / || t J_i (v' - v_i) ||

and the linear range is the largest scale t of a fixed grid up to which error(t) <= 0.1. At t = 1
the token is replaced. A bound of J_i, a sketch of it and its exact norm all speak of moves within
this range, and of no others.

Cost: for each token one product with J, and a forward pass for each scale; one more at a scale so
small that what is left there is rounding, which decides from which scale on errors are judged.
"""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import Position, Progress, Seed, TransformerBridge, tell
from ostools.hooks.freeze import HeldParts
from ostools.measure.jacobian.certificate import moved_prompts
from ostools.measure.jacobian.linearise import Linearised, differentiated
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.tokenizer_calls import control_ids
from ostools.models.tokens import token_text
from ostools.results import Chart, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory.profiles import acting, rank_correlation

SCALES = tuple(2.0 ** (exponent / 2) for exponent in range(-16, 1))
"""The scales t that are tried, from 1/256 to 1; neighbours are a factor of 1.41 apart."""
_PROBE = SCALES[0] / 64
"""A scale so small that what the prediction is off there is rounding."""
_RESOLVED = 0.2
"""A scale is judged where rounding of y_n is at most this share of the error that is tolerated."""
_ROWS = 4
TOLERANCE = 0.1
"""Largest error of the prediction, relative to its size."""


@dataclass(frozen=True, eq=False)
class LinearRange(Result):
    """Linear range of the derivative: one row is one token on its way to one other token.

    Columns: position, token_id, token, origin; other_id, other (the token it moves towards);
    linear_range (the largest t up to which the prediction holds, 0 where it fails at the smallest
    scale, missing where rounding hides it), predicted_change (||J_i (v' - v_i)||), change (||y' -
    y||, the token replaced), error (of the prediction at t = 1).
    """

    tables: ClassVar = (TableHead(),)
    key: ClassVar = ("position",)

    @property
    def spearman(self) -> float:
        """Rank correlation, over the tokens that reach y_n, of the predicted change of y_n with the
        change.
        """
        predicted, change = self.frame[["predicted_change", "change"]].to_numpy(float).T
        in_reach = acting(predicted, change)
        return rank_correlation(predicted[in_reach], change[in_reach])

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import linear_range_chart

        return linear_range_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.profile import linear_range_findings

        return linear_range_findings(self)


@measurement(
    command="sensitivity range",
    examples=('--prompt "The capital of France is" --out range.png',),
    memory=["rows"],
    in_chunks=True,
)
def linear_range(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    seed: Seed = 0,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> LinearRange:
    """Find, for each token, how far towards another real token the linear prediction of y_n holds.

    Args:
        seed: seed of the other tokens, one for each token of the prompt.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the model runs under its hooks. It has to change the prompt or a logit, or
            it is refused.
        progress: called as progress(done, total), in scales.

    The derivative is the real one (`full`), by autograd. Each token is moved by itself, the others
    stay. Raises `InputError` within `hooks.frozen`, whose derivative is another one.
    """
    mitigated = MitigatedPrompts.of("linear_range", model, [prompt], mitigation, position)
    tokens, tokenizer = mitigated.prompt, model.tokenizer
    about = {"seed": seed, "tolerance": TOLERANCE, **mitigated.described(model)}
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **about)
    rows = int(model.W_E.shape[0])
    # Tokens that were added to a tokenizer alone have no embedding.
    count = rows if tokenizer is None else min(len(tokenizer), rows)
    control = () if tokenizer is None else control_ids(tokenizer)
    other_ids = np.setdiff1d(np.arange(count), [*control, *tokens.ids.tolist()])
    targets = torch.from_numpy(np.random.default_rng(seed).choice(other_ids, len(tokens.ids)))
    with differentiated(model, mitigated) as work:
        values = _measured(work, tokens.ids, targets, progress)
    words = [token_text(tokenizer, token) for token in targets.tolist()]
    columns = {name: column.cpu().numpy() for name, column in values.items()}
    frame = token_columns(tokens).assign(other_id=targets.numpy(), other=words, **columns)
    return LinearRange(frame, provenance)


def _measured(
    model: TransformerBridge,
    ids: Int[Tensor, " pos"],
    targets: Int[Tensor, " pos"],
    progress: Progress | None,
) -> dict[str, Float[Tensor, " pos"]]:
    """Range, predicted change, change and error at t = 1 of every token on its way to its
    target.
    """
    ids = ids.to(next(model.parameters()).device)
    prompts = ids.repeat(len(ids) + 1, 1)
    prompts[1:].diagonal().copy_(targets)
    with torch.no_grad():
        embedded, *replaced = model.input_to_embed(prompts)[0].detach()
    fields = torch.stack(replaced) - embedded
    linear = Linearised(model, embedded, chunk=_ROWS)
    predicted = linear.push(fields).double()
    linear.release()
    size, changes = predicted.norm(dim=-1), {}
    for index, scale in enumerate((_PROBE, *SCALES)):
        streams = torch.cat([embedded[None], embedded + scale * fields])
        y = moved_prompts(linear, streams, [HeldParts()] * len(streams))[0].double()
        changes[scale] = y[1:] - y[0]
        tell(progress, index, len(SCALES))
    off = [(change - scale * predicted).norm(dim=-1) for scale, change in changes.items()]
    return {
        "linear_range": _ranges(torch.stack(off[1:]), torch.maximum(off[0], off[0].median()), size),
        "predicted_change": size,
        "change": changes[1.0].norm(dim=-1),
        "error": off[-1] / size,
    }


def _ranges(
    off: Float[Tensor, "scale move"], noise: Float[Tensor, " move"], size: Float[Tensor, " move"]
) -> Float[Tensor, " move"]:
    """Largest of `SCALES` up to which every prediction held that rounding does not hide."""
    scales = off.new_tensor(SCALES)[:, None]
    allowed = TOLERANCE * scales * size
    resolved, holds = noise <= _RESOLVED * allowed, off <= allowed
    holds_so_far = (holds | ~resolved).cumprod(0).bool() & resolved
    ranges = torch.where(holds_so_far, scales, -1.0).amax(0)
    # Where smaller scales were hidden before the first failure, the range is not known.
    ranges = ranges.masked_fill(ranges < 0, torch.nan)
    return ranges.masked_fill(resolved[0] & ~holds[0], 0.0)
