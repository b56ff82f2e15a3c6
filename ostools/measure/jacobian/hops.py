"""The theorem's paths by their length: how much of the frozen derivative travels in 0, 1, 2, ... attention hops.

    d y_n / d v_i^(0) = sum over paths from i to n,  B_L ... B_1,  B_l = diagonal + off-diagonal in positions      (Theorem 5.1)

A path makes a hop in a block where it changes position. With the off-diagonal part of every block times a marker x the
product is a polynomial in x. Its coefficient of x^h is the part J_i^(h) of exactly h hops. The parts add up to J_i as matrices.
They are carried through the same backward pass, one track each, so nothing is left out and nothing is counted twice.

Cost: `most` + 2 tracks for every cotangent, each one row of a sketch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import whole_number
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.jacobian.routes import ROWS, AutogradRoute, Linearised, differentiated, freezing
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import strips_where_long
from ostools.measure.prompts import token_columns
from ostools.measure.unloaded import Unloaded
from ostools.models import Prompt
from ostools.models.tokens import EncodingOptions
from ostools.results import Frame, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks.questions import Question
from ostools.theory.statistics.estimates import Sketch, orthonormal_rows

MORE, ALL = "more", "all"
"""Names of the parts of more than `most` hops, and of all paths."""
_LEVEL = 0.05
_AGREES = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Relative difference from autograd's row that rounding may make."""


@dataclass(frozen=True, eq=False)
class Hops(
    Result,
    chart="spectra:hops_chart",
    findings=("charts.spectra:hops_findings",),
    tables=(TableHead("summary"),),
):
    """One row per token and number of attention hops, of the frozen derivative at the embeddings.

    Columns: position, token_id, token, origin; hops ("0", "1", ..., "more", "all"); frobenius_norm of that part, with the 95%
    interval frobenius_lower to frobenius_upper (exact: both equal it); share, <J^(h), J> / ||J||^2, the part's signed share
    of the squared norm. The shares of a token add up to 1; they are missing of a token that nothing reaches y_n from.
    """

    @property
    def reached(self) -> Frame:
        """The rows of the tokens from which anything reaches y_n: outside of every window there is nothing to split."""
        frame: Frame = self.frame
        return frame[frame["share"].notna()]

    @property
    def summary(self) -> pd.DataFrame:
        """Medians over the tokens before the last that reach it, by hops: share, and relative size ||J^(h)|| / ||J||."""
        frame = self.reached
        frame = frame[frame["position"] < frame["position"].max()]
        size = frame[frame["hops"] == ALL].set_index("position")["frobenius_norm"]
        frame = frame.assign(relative_size=frame["frobenius_norm"] / frame["position"].map(size))
        return frame.groupby("hops", sort=False)[["share", "relative_size"]].median().reset_index()

    @property
    def cancellation(self) -> pd.DataFrame:
        """Sum of the sizes of each token's parts over the size of their sum: 1 where nothing cancels."""
        frame = self.reached
        parts = frame[frame["hops"] != ALL].groupby("position")["frobenius_norm"].sum()
        sums = frame[frame["hops"] == ALL].set_index("position")
        return sums[["token"]].assign(cancellation=parts / sums["frobenius_norm"]).reset_index()


@measurement(
    command="sensitivity hops",
    examples=('--prompt "The capital of France is" --out hops.png',),
    memory="measure.jacobian.hops:hops_memory",
)
def hops(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    most: int = 3,
    cotangents: int = 16,
    seed: int = 0,
    position: str | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Hops:
    """Split the frozen derivative d y_n / d v_i by the number of attention hops on the way from i to n (Theorem 5.1's paths).

    Args:
        most: parts of 0, 1, ..., `most` hops; all longer paths are one part, "more".
        cotangents: random rows from which norms are estimated, each with an interval; of all d_model rows they are exact.
        seed: seed of the random cotangents.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it rewrites, and the model
            runs under its hooks. It has to change the prompt or a logit, or it is refused.
        progress: called as progress(done, total).

    Patterns and norm scales are held. A random row of the sum of the parts is held against autograd on every run. Raises
    `InputError` for a model or an edit that the formulas of a block do not describe, and for settings that cannot be used.
    Cost: `most` + 2 rows of a sketch for each cotangent.
    """
    mitigated = MitigatedPrompts.of("hops", model, [prompt], mitigation, position)
    whole_number("most", most, 1)
    whole_number("seed", seed)
    if whole_number("cotangents", cotangents, 2) > model.cfg.d_model:
        raise InputError(f"hops: expected at most d_model = {model.cfg.d_model} cotangents, found {cotangents}")
    tokens = mitigated.prompt
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **mitigated.described(model))
    with differentiated(model, mitigated) as work, strips_where_long(work, len(tokens.ids)):
        linear = Linearised(work, tokens.ids, "frozen")
        generator = torch.Generator().manual_seed(seed)
        directions = orthonormal_rows(cotangents, int(work.cfg.d_model), generator).to(linear.norm.factor)
        tracks = linear.pull_by_hops(directions, most, progress)
        error = _against_autograd(work, tokens, directions[:1], tracks[-1, :1])
    settings = {"most": most, "cotangents": cotangents, "seed": seed, "against_autograd": error}
    return Hops(_table(tokens, tracks), replace(provenance, parameters={**provenance.parameters, **settings}))


def hops_memory(model: Unloaded, pos: int, *, most: int = 3, cotangents: int = 16) -> int:
    """Bytes of the tracks, of the products of one block with some of their rows, and of a track's norms in float64."""
    shape = model.shape
    track = cotangents * pos * shape.d_model
    widths = 8 * shape.d_model + 2 * shape.d_mlp + 4 * shape.n_heads * shape.d_head
    products = max(ROWS, most + 2) * pos * widths * shape.element
    tracks = (most + 2) * track * shape.element + products + 6 * track * 8
    return tracks + sensitivity_memory(model, pos, linearisations="frozen", method="sketch")


def _against_autograd(
    model: TransformerBridge,
    tokens: Prompt,
    cotangent: Float[Tensor, "1 d_model"],
    row: Float[Tensor, "1 pos d_model"],
) -> float:
    """Relative difference of one row of the sum from the row that autograd gives; refused where it is more than rounding."""
    with torch.no_grad():
        embedded = model.input_to_embed(tokens.ids[None].to(cotangent.device))[0][0].detach()
    oracle = AutogradRoute(model, embedded, freeze=freezing(model, "frozen"), rows=1).pull(cotangent)
    error = float((row - oracle).norm() / oracle.norm())
    if not error <= _AGREES[oracle.dtype]:
        raise InputError(f"hops: the sum of the parts differs from autograd's derivative by {error:.2g} of its size")
    return error


def _table(tokens: Prompt, tracks: Float[Tensor, "track row pos d_model"]) -> pd.DataFrame:
    """The tracks' norms and shares, a row for each token and part."""
    total = tracks[-1].double()
    size, remainder, tables = total.square().sum((0, -1)), total.clone(), []
    for name in (*map(str, range(len(tracks) - 1)), MORE, ALL):
        part = {MORE: remainder, ALL: total}.get(name)
        if part is None:
            part = tracks[int(name)].double()
            remainder -= part
        interval = Sketch.of(part).trace_interval(_LEVEL)
        norms = {
            "frobenius_norm": interval.value.sqrt(),
            "frobenius_lower": interval.lower.sqrt(),
            "frobenius_upper": interval.upper.sqrt(),
            "share": (part * total).sum((0, -1)) / size,
        }
        columns = {column: values.cpu().numpy() for column, values in norms.items()}
        tables.append(token_columns(tokens).assign(hops=name, **columns))
    return pd.concat(tables, ignore_index=True)
