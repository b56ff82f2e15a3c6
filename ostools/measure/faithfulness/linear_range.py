"""How far the derivative carries: the stretch of the way to another token over which y_n moves as J
says.

Token i's embedding v_i moves towards that of another real token of its kind, v_i + t (v' - v_i), 0
< t <= 1. The linear prediction of y_n is off by

    error(t) = || y_n(t) - y_n(0) - t J_i (v' - v_i) || / || t J_i (v' - v_i) ||

and the linear range is the largest scale t of a fixed grid up to which error(t) <= 0.1. At t = 1
the token is replaced. A bound of J_i, a sketch of it and its exact norm all speak of moves within
this range, and of no others.

Cost: for each token and draw one product with J, and a forward pass for each scale up to the first
that fails; one more at a scale so small that what is left there is rounding, which decides from
which scale on errors are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import Count, InputError, Position, Progress, Seed, TransformerBridge, tell
from ostools.measure.faithfulness.deletion import Kinds
from ostools.measure.jacobian.certificate import last_tokens
from ostools.measure.jacobian.linearise import Linearised, differentiated
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory.profiles import rank_correlation

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
    y||, the token replaced), error (of the prediction at t = 1). A control token has no other of
    its kind: its row has no values.
    """

    tables: ClassVar = (TableHead("tokens"),)

    @property
    def tokens(self) -> pd.DataFrame:
        """Median over the draws, a row a token."""
        frame: Frame = self.frame
        columns = ["linear_range", "predicted_change", "change", "error"]
        return frame.groupby(["position", "token"], sort=False)[columns].median().reset_index()

    @property
    def spearman(self) -> float:
        """Rank correlation, over all moves, of the predicted change of y_n with the change."""
        frame: Frame = self.frame[self.frame["change"].notna()]
        return rank_correlation(
            frame["predicted_change"].to_numpy(float), frame["change"].to_numpy(float)
        )

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import linear_range_chart

        return linear_range_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.profile import linear_range_findings

        return linear_range_findings(self)


@measurement(
    command="sensitivity range",
    examples=('--prompt "The capital of France is" --draws 2 --out range.png',),
    memory=["rows"],
    in_chunks=True,
)
def linear_range(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    draws: Count = 2,
    seed: Seed = 0,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> LinearRange:
    """Find, for each token, how far towards another real token the linear prediction of y_n holds.

    Args:
        draws: how many other tokens of its kind (digits, letters or anything else, each with or
            without a blank before it) each token moves towards. Control tokens (BOS, turn markers)
            have no other.
        seed: seed of the draws.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the model runs under its hooks. It has to change the prompt or a logit, or
            it is refused.
        progress: called as progress(done, total), in scales.

    The derivative is the real one (`full`), by autograd. Each token is moved by itself, the others
    stay. Raises `InputError` within `hooks.frozen`, whose derivative is another one.
    """
    counts = {"draws": draws, "seed": seed}
    mitigated = MitigatedPrompts.of("linear_range", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    about = {**counts, "tolerance": TOLERANCE, **mitigated.described(model)}
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **about)
    moves = _moves(model, tokens, **counts)
    with differentiated(model, mitigated) as work:
        values = _measured(work, tokens, moves, progress)
    places, target_ids = zip(*moves, strict=True)
    words = [token_text(model.tokenizer, token) for token in target_ids]
    table = pd.DataFrame(
        {"position": places, "other_id": pd.array(target_ids, "Int64"), "other": words, **values}
    )
    return LinearRange(token_columns(tokens).merge(table, on="position", how="left"), provenance)


def _moves(
    model: TransformerBridge, tokens: Prompt, draws: int, seed: int
) -> list[tuple[int, int]]:
    kinds, ids = Kinds.of(model), tokens.ids.tolist()
    moves = [
        (place, target)
        for place, token in enumerate(ids)
        for target in kinds.replacements(token, draws, (seed, place))
    ]
    if not moves:
        raise InputError(
            "linear_range: expected a token that has another of its kind, found control tokens "
            "alone"
        )
    return moves


def _measured(
    model: TransformerBridge,
    tokens: Prompt,
    moves: list[tuple[int, int]],
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """The columns of every move: its range, the predicted change, the change and the error at t =
    1.
    """
    ids = tokens.ids.to(next(model.parameters()).device)
    replaced = ids.repeat(len(moves), 1)
    for row, (place, target) in enumerate(moves):
        replaced[row, place] = target
    with torch.no_grad():
        embedded, *streams = model.input_to_embed(torch.cat([ids[None], replaced]))[0].detach()
    fields = torch.stack(streams) - embedded
    linear = Linearised(model, embedded, chunk=_ROWS)
    predicted = linear.push(fields).double()
    linear.release()

    def changes(rows: Tensor, scale: float) -> Float[Tensor, "row d_model"]:
        streams = torch.cat([embedded[None], embedded + scale * fields[rows]])
        return last_tokens(linear, streams).double()

    ranges = _ranges(changes, predicted, progress)
    y, *replaced_y = changes(torch.arange(len(moves)), 1.0)
    change, size = torch.stack(replaced_y) - y, predicted.norm(dim=-1)
    columns = {
        "linear_range": ranges,
        "predicted_change": size,
        "change": change.norm(dim=-1),
        "error": (change - predicted).norm(dim=-1) / size,
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _ranges(
    changes: Callable[[Tensor, float], Float[Tensor, "row d_model"]],
    predicted: Float[Tensor, "move d_model"],
    progress: Progress | None,
) -> Float[Tensor, " move"]:
    """The scales from the smallest to 1, each of the moves whose prediction held so far."""
    size = predicted.norm(dim=-1)

    def off(rows: Tensor, scale: float) -> Float[Tensor, " row"]:
        """What the prediction is off."""
        y, *moved_y = changes(rows, scale)
        return (torch.stack(moved_y) - y - scale * predicted[rows]).norm(dim=-1)

    probed = off(torch.arange(len(size)), _PROBE)
    noise = torch.maximum(probed, probed.median())
    ranges = torch.full_like(size, torch.nan)
    holding = torch.ones_like(size, dtype=torch.bool)
    for index, scale in enumerate(SCALES):
        rows = holding.nonzero()[:, 0]
        if len(rows):
            allowed = TOLERANCE * scale * size[rows]
            resolved = noise[rows] <= _RESOLVED * allowed
            holds = off(rows, scale) <= allowed
            failed = rows[resolved & ~holds]
            ranges[rows[resolved & holds]] = scale
            if index == 0:  # later, smaller scales were hidden: then the range is not known
                ranges[failed] = 0.0
            holding[failed] = False
        tell(progress, index + 1, len(SCALES))
    return ranges
