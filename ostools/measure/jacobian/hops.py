"""The theorem's paths by their length: how much of the frozen derivative travels in 0, 1, 2, ...
attention hops.

    d y_n / d v_i^(0) = sum over paths from i to n of B_L ... B_1               (Theorem 5.1)
    B_l = diagonal + off-diagonal in positions

A path makes a hop in a block where it changes position. With the off-diagonal part of every block
times a marker x the product is a polynomial in x. Its coefficient of x^h is the part J_i^(h) of
exactly h hops. The parts add up to J_i as matrices. They are carried back block by block, one track
each: what the heads move, less what each position has from itself, is its hop.

Cost: `most` + 2 tracks for every cotangent, each one row of a sketch.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import (
    AtLeast,
    Count,
    InputError,
    Position,
    Progress,
    Seed,
    TransformerBridge,
    tell,
)
from ostools.hooks.register import Order, attached, with_input
from ostools.hooks.sites import points, require_open
from ostools.measure.jacobian.certificate import Claim, certify
from ostools.measure.jacobian.linearisation_run import planned, require_norms
from ostools.measure.jacobian.linearise import (
    Cotangents,
    Linearised,
    Start,
    differentiated,
    linearised,
    vjp,
)
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import PATTERN_EDITS, require_no_edits
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory.statistics.estimates import Sketch, orthonormal_rows

MORE, ALL = "more", "all"
"""Names of the parts of more than `most` hops, and of all paths."""
_LEVEL = 0.05
_ROWS = 128
"""Rows of all tracks that go back through a block together."""
_MIXES = {torch.float64: 1e-12, torch.float32: 1e-5}
"""What pattern times value may be off a head's output, of its size."""


@dataclass(frozen=True, eq=False)
class Hops(Result):
    """One row per token and number of attention hops, of the frozen derivative at the embeddings.

    Columns: position, token_id, token, origin; hops ("0", "1", ..., "more", "all"); frobenius_norm
    of that part, with the 95% interval frobenius_lower to frobenius_upper (exact: both equal it);
    share, <J^(h), J> / ||J||^2, the part's signed share of the squared norm. The shares of a token
    add up to 1; they are missing of a token that nothing reaches y_n from.
    """

    tables: ClassVar = (TableHead("summary"),)
    key: ClassVar = ("hops", "position")

    @property
    def in_reach(self) -> Frame:
        """The rows of the tokens from which anything reaches y_n: outside of every window there is
        nothing to split.
        """
        frame: Frame = self.frame
        return frame[frame["share"].notna()]

    @property
    def is_estimated(self) -> bool:
        """Whether norms and shares are of fewer drawn rows than y_n has numbers."""
        frame: Frame = self.frame
        return bool((frame["frobenius_lower"] < frame["frobenius_upper"]).any())

    @property
    def summary(self) -> pd.DataFrame:
        """Medians over the tokens before the last that reach it, by hops: share, and relative size
        ||J^(h)|| / ||J||.
        """
        frame = self.in_reach
        frame = frame[frame["position"] < frame["position"].max()]
        size = frame[frame["hops"] == ALL].set_index("position")["frobenius_norm"]
        frame = frame.assign(relative_size=frame["frobenius_norm"] / frame["position"].map(size))
        return frame.groupby("hops", sort=False)[["share", "relative_size"]].median().reset_index()

    @property
    def cancellation(self) -> pd.DataFrame:
        """Sum of the sizes of each token's parts over the size of their sum: 1 where nothing
        cancels.
        """
        frame = self.in_reach
        parts = frame[frame["hops"] != ALL].groupby("position")["frobenius_norm"].sum()
        sums = frame[frame["hops"] == ALL].set_index("position")
        return sums[["token"]].assign(cancellation=parts / sums["frobenius_norm"]).reset_index()

    def chart(self) -> Chart:
        from ostools.reporting.charts.all_tokens import hops_chart

        return hops_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.all_tokens import hops_findings

        return hops_findings(self)


@measurement(
    command="sensitivity hops",
    examples=('--prompt "The capital of France is" --out hops.png',),
    memory=["rows"],
)
def hops(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    most: Count = 3,
    cotangents: Annotated[int, AtLeast(2)] = 16,
    seed: Seed = 0,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Hops:
    """Split the frozen derivative d y_n / d v_i by the number of attention hops on the way from i
    to n (Theorem 5.1's paths).

    Args:
        most: parts of 0, 1, ..., `most` hops; all longer paths are one part, "more".
        cotangents: random rows from which norms are estimated, each with an interval; of all
            d_model rows they are exact.
        seed: seed of the random cotangents.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the model runs under its hooks. It has to change the prompt or a logit, or
            it is refused.
        progress: called as progress(done, total).

    Patterns and norm scales are held. The sum of the parts is held against finite differences on
    every run. Raises `InputError` for an edit that may move something between positions outside of
    the heads, and for settings that cannot be used; `HookError` for a model whose patterns or
    values are not known. Cost: `most` + 2 rows of a sketch for each cotangent.
    """
    require_open(model, "hops")
    mitigated = MitigatedPrompts.of("hops", model, [prompt], mitigation, position)
    if cotangents > model.cfg.d_model:
        raise InputError(
            f"hops: expected at most d_model = {model.cfg.d_model} cotangents, found {cotangents}"
        )
    tokens = mitigated.prompt
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **mitigated.described(model))
    with differentiated(model, mitigated) as work:
        require_no_edits("hops", work, "what it moves would count as no hop", PATTERN_EDITS)
        start = Start.of(work, tokens.ids)
        plan = planned(work, len(tokens.ids), method="sketch", cotangents=cotangents)
        generator = torch.Generator().manual_seed(seed)
        directions = orthonormal_rows(cotangents, int(work.cfg.d_model), generator).to(
            start.embedded
        )
        with linearised(work, start, ["frozen"], chunk=plan.chunk, keeps_graph=False) as linear:
            tracks = _tracks(work, linear, directions, most, progress)
            jacobian_rows = tracks[-1].transpose(0, 1)
            require_norms("frozen", jacobian_rows.double().norm(dim=(1, 2)))
            claim = Claim.of(linear, jacobian_rows, directions)
            account = certify(linear, {"frozen": claim}, start.choices)["frozen"]
    settings = {"most": most, "cotangents": cotangents, "seed": seed, **account}
    return Hops(
        _table(tokens, tracks),
        replace(provenance, parameters={**provenance.parameters, **settings}),
    )


def _tracks(
    model: TransformerBridge,
    linear: Linearised,
    cotangents: Cotangents,
    most: int,
    progress: Progress | None,
) -> Float[Tensor, "track row pos d_model"]:
    """Split w^T d y_n / d v_i by the blocks in which a path changes position: tracks of 0, 1, ...,
    `most` hops, and of all.

    What a block moves to another position is one hop: it goes on in the next track. What stays goes
    on in the same one.
    """
    tracks = cotangents.new_zeros(most + 2, len(cotangents), linear.pos, cotangents.shape[-1])
    tracks[0] = tracks[-1] = linear.top(cotangents)
    for layer in reversed(range(linear.n_layers)):
        block = _split_block(model, linear, layer)
        for part in tracks.split(max(1, _ROWS // (most + 2)), dim=1):
            rows = part.flatten(0, 1)[:, None]
            past_heads, at_z = (
                gradient.unflatten(0, part.shape[:2])
                for gradient in vjp(block.out, block.inputs, rows)
            )
            # Of the track of `most` hops one hop more is not asked for, of all paths no split.
            heads = _back(block.z, block.inputs[0], torch.cat([at_z[:-2], at_z[-1:]]))
            stays = _back(block.own_z, block.inputs[0], at_z[:-1])
            part.copy_(past_heads[:, :, 0])
            part[:-1] += stays
            part[1:-1] += heads[:-1] - stays[:-1]
            part[-1] += heads[-1]
        tell(progress, linear.n_layers - layer, linear.n_layers)
    return tracks


def _back(
    z: Float[Tensor, "1 pos head d_head"],
    entry: Float[Tensor, "1 pos d_model"],
    rows: Float[Tensor, "track row 1 pos head d_head"],
) -> Float[Tensor, "track row pos d_model"]:
    """Every row of every track from the heads' outputs to what the block reads."""
    return vjp(z, [entry], rows.flatten(0, 1))[0][:, 0].unflatten(0, rows.shape[:2])


class _SplitBlock(NamedTuple):
    """A block cut at its heads' outputs. `inputs`: what it reads, and what stands in for z behind
    the cut; `z`: as the heads make it; `own_z`: what of it each query has from its own position, by
    the same patterns."""

    out: Float[Tensor, "1 pos d_model"]
    inputs: tuple[Float[Tensor, "1 pos d_model"], Float[Tensor, "1 pos head d_head"]]
    z: Float[Tensor, "1 pos head d_head"]
    own_z: Float[Tensor, "1 pos head d_head"]


def _split_block(model: TransformerBridge, linear: Linearised, layer: int) -> _SplitBlock:
    """Run a block again, cut at z: what goes past the heads and through the MLP is the same for
    every path.
    """
    heads: list[tuple[Tensor, Tensor, Tensor]] = []

    def cut(value: Tensor, z: Tensor) -> Tensor:
        heads.append((value, z, z.detach().requires_grad_(True)))
        return heads[0][2]

    value_at, z_at = (points(model, name, [layer])[layer] for name in ("value", "z"))
    placed = with_input(value_at, z_at, cut, Order.FREEZE, reads=Order.FREEZE)
    with (
        hooks.capture(model, "pattern", layers=[layer]) as record,
        attached(placed, kind="freeze"),
    ):
        entry, _, out = linear.block(layer)
    (value, z, cut_z), pattern = heads[0], record["pattern"][layer][0]
    value = value.repeat_interleave(z.shape[-2] // value.shape[-2], dim=-2)
    mixed = (pattern @ value.detach()[0].transpose(0, 1)).transpose(0, 1)
    off = float((mixed - cut_z[0]).detach().abs().max() / cut_z.detach().abs().max())
    if not off <= _MIXES[z.dtype]:
        raise InputError(
            f"hops: the heads of block {layer} are not their patterns times their values, but "
            f"{off:.2g} off: an edit is active that acts between the two, or the attention is of "
            "another kind; leave the edit's block"
        )
    with torch.enable_grad():
        own_z = pattern.diagonal(dim1=-2, dim2=-1).T[None, :, :, None] * value
    return _SplitBlock(out, (entry, cut_z), z, own_z)


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
        table = token_columns(tokens).assign(
            hops=name,
            frobenius_norm=interval.value.sqrt().cpu().numpy(),
            frobenius_lower=interval.lower.sqrt().cpu().numpy(),
            frobenius_upper=interval.upper.sqrt().cpu().numpy(),
            share=((part * total).sum((0, -1)) / size).cpu().numpy(),
        )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
