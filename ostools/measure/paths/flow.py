"""The flow of sensitivity: through which tokens, block by block, what y_n owes to each token travels.

Purpose: `second-moment` predicts ||d y_n / d v_j^(l)||_F of every token j and layer l by a recursion from the top down. Its
terms are edges: token j before block l passes on to token i after it

    w_ij^(l) = Kt_ii tr(T_ij^T Sigma_i T_ij),   sum_i w_ij^(l) + interference_j = K_jj^(l) = predicted ||d y_n / d v_j^(l)||^2

with Kt the kernel after the MLP and T_ij attention's block with its skip connection
(`ostools.theory.path_sum.second_moment`). Cost: the prediction's, and n^2 / 2 numbers a block. It is predicted, not measured:
`sensitivity(..., layers="all")` measures the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, tell
from ostools.measure.formulas.forward import forward
from ostools.measure.measurement import measurement
from ostools.measure.mitigated import Under
from ostools.measure.passes.arithmetic import float32_products, full_precision
from ostools.measure.paths.block_view import BlockView
from ostools.measure.paths.predicted import TRACES, KernelFold, Parts, chosen_traces
from ostools.measure.prompts import token_columns
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.results import Provenance, Result
from ostools.theory.path_sum import parallel_moments, second_moment


@dataclass(frozen=True, eq=False)
class Flow(Result):
    """Edges of the prediction: one row is one edge through one block.

    Columns: layer (the block l), key (the token j before it), query (the token i after it), key_token, query_token, weight
    (w_ij^(l), squared units), flow (what passes there of all that the tokens send to y_n; a block's flows sum to 1).

    `nodes`: layer (0 ... L: what enters block l; L is what the final norm reads), position, token_id, token, origin,
    frobenius_norm (predicted ||d y_n / d v^(l)||_F), interference (what paths of different queries add to its square, or take
    away).
    """

    nodes: pd.DataFrame


@measurement
@in_smaller_chunks
def flow(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> Flow:
    """How the sensitivity that `second-moment` predicts flows to the last token, edge by edge; patterns and norm scales are
    held.

    `flow` starts with ||d y_n / d v_j^(0)||_F at every token j. At every block it divides this in proportion to w_ij, and all
    of it arrives at n. `mitigation`: as in `path_sum`. Raises `InputError` as `path_sum` does.
    """
    under = Under.of("flow", model, [prompt], mitigation)
    tokens = under.prompt
    traces = chosen_traces(Shape.of(model), len(tokens.ids))
    ids, how = tuple(tokens.ids.tolist()), {"linearisation": "frozen", "traces": TRACES[traces]}
    provenance = Provenance.collect(model, ids, **how, **under.said, **tokens.asked)
    work = full_precision(model, "flow")
    with torch.inference_mode(False), torch.no_grad(), under.acting(work), float32_products():
        run = forward(work, tokens.ids)
        last = len(tokens.ids) - 1
        fold = KernelFold(run, [last])
        sizes, weights = [fold.values()[0].double()], []
        for done, block in enumerate(run.blocks(), start=1):
            view = BlockView(block, "svd", traces)
            weights.append(_weights(fold, Parts(view, fold.dtype), last))
            fold.step(view)
            sizes.append(fold.values()[0].double())
            tell(progress, done, int(work.cfg.n_layers))
    sizes, weights = sizes[::-1], weights[::-1]
    return Flow(_edges(tokens, _flows(sizes[0], weights), weights), provenance, _nodes(tokens, sizes, weights))


def _weights(fold: KernelFold, parts: Parts, last: int) -> Float[Tensor, "query key"]:
    """w_ij of one block, float64."""
    mlp, heads, moments = parts.mlp(last), parts.heads(last), fold.moments[0]
    if parts.view.parallel:
        moments = replace(moments, own=second_moment.narrow(moments.own, parts.sketches[0]))
        squares_in = partial(parallel_moments.squares, mlp, heads)
    else:
        moments, squares_in = second_moment.through_mlp(moments, mlp, parts.sketches[0]), heads.squares
    squares = squares_in(moments.own)
    if moments.shared is not None:
        squares = torch.cat([squares_in(moments.shared)[:-1], squares[-1:]])
    return moments.squares()[:, None] * squares.double()


def _flows(start: Float[Tensor, " pos"], weights: list[Tensor]) -> list[Float[Tensor, "query key"]]:
    """What each token sends, divided at every block over the edges that leave it."""
    sent, flows = start / start.sum(), []
    for block in weights:
        leaving = block.sum(0)
        flows.append(block * torch.where(leaving > 0, sent / leaving, torch.zeros_like(sent)))
        sent = flows[-1].sum(1)
    return flows


def _edges(tokens: Prompt, flows: list[Tensor], weights: list[Tensor]) -> pd.DataFrame:
    names = token_columns(tokens)["token"].to_numpy()
    tables = []
    for layer, (moved, weight) in enumerate(zip(flows, weights, strict=True)):
        query, key = (index.cpu().numpy() for index in weight.nonzero(as_tuple=True))
        table = {"layer": layer, "key": key, "query": query, "key_token": names[key], "query_token": names[query]}
        tables.append(
            pd.DataFrame({**table, "weight": weight.cpu().numpy()[query, key], "flow": moved.cpu().numpy()[query, key]})
        )
    return pd.concat(tables, ignore_index=True)


def _nodes(tokens: Prompt, sizes: list[Tensor], weights: list[Tensor]) -> pd.DataFrame:
    columns = token_columns(tokens)
    between = [size.square() - weight.sum(0) for (size, _), weight in zip(pairwise(sizes), weights, strict=True)]
    tables = [
        columns.assign(layer=layer, frobenius_norm=size.cpu().numpy(), interference=added.cpu().numpy())
        for layer, (size, added) in enumerate(zip(sizes, [*between, torch.zeros_like(sizes[-1])], strict=True))
    ]
    order = ["layer", *columns.columns, "frobenius_norm", "interference"]
    return pd.concat(tables, ignore_index=True).reindex(columns=order)
