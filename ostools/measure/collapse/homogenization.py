"""Collapse of all tokens of a text, and not of a pair: how alike their states are by layer and
context length, and the sink.

The states of a causal model's first n tokens do not depend on what follows, so that one forward
pass has every context length. A pass of each context alone checks that. Where the first token's
norm is massive, the entropy of all tokens says that and nothing of the others: each number is there
without the first token too. Cost: these passes, and the singular values of two matrices a layer and
context length.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import InputError, Position, Seed, TransformerBridge, whole_numbers
from ostools.hooks.sites import unknown_inside
from ostools.measure.attention.heads import SINK
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import (
    captured_pass,
    full_precision,
    require_no_edits,
)
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt, untrained_model
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory.distances import likeness

MODEL, UNTRAINED = "model", "untrained"
FEWEST, SHORTEST = 3, 8
"""Tokens without which nothing is left to compare; and of the shortest context where none is asked
for.
"""
_ROUNDING = 1e-2
"""By how much a row of attention in float32 may sum to more than 1."""
_SAME_STATE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Of its size, by how much a state may differ in a pass of another length: kernels add up in
another order there.
"""


@dataclass(frozen=True, eq=False)
class TokenHomogenization(Result):
    """One row a model, context length and layer.

    Columns: source ("model", or "untrained"); tokens (of the context, from the first on); layer (l
    of v^(l): 0 is the embedding, L what the last block leaves). Of the matrix of the tokens'
    states: entropy (matrix entropy, nats), normalised_entropy (over log min(n, d)), effective_rank,
    mean_cosine (over pairs); the same without the first token: rest_entropy,
    rest_normalised_entropy, rest_effective_rank, rest_mean_cosine. first_norm, rest_norm (L2 norm
    of the first token's state, and the median of the others'). Of the block that reads v^(l),
    missing at L and where patterns are not
    known: first_weight (mean attention on the first token over later queries and heads), sink_rate
    (share of heads that give it more than 0.3, mean over later queries).
    """

    tables: ClassVar = (
        TableHead(
            columns="source tokens layer normalised_entropy rest_normalised_entropy "
            "rest_mean_cosine sink_rate"
        ),
    )
    key: ClassVar = ("source", "prompt", "tokens", "layer")

    @classmethod
    def of(cls, rows: Frame, provenance: Provenance) -> "TokenHomogenization":
        """The result of stored rows. Raises `InputError` for a layer that stands there twice: rows
        of several texts.
        """
        if rows.duplicated(["source", "tokens", "layer"]).any():
            raise InputError(
                "token_homogenization: expected one row a model, context and layer, found some "
                "twice: rows of several texts; read each length by itself"
            )
        return cls(rows, provenance)

    def chart(self) -> Chart:
        from ostools.reporting.charts.all_tokens import homogenization_chart

        return homogenization_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import homogenization_findings

        return homogenization_findings(self)


@measurement(
    command="collapse tokens",
    examples=('--prompt "The capital of France is Paris, and" --untrained --out tokens.png',),
    memory=["patterns"],
    untrained_by="untrained",
    sweep=lambda: SWEPT,
)
def token_homogenization(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    contexts: Iterable[int] | None = None,
    untrained: bool = False,
    seed: Seed = 0,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> TokenHomogenization:
    """Measure how alike all tokens of a text are, layer by layer: entropy, effective rank and
    cosines of their states, the first token's norm, and the attention that sinks into it.

    Args:
        contexts: numbers of tokens, each a beginning of the text, from 3 on; None: 8, 16, 32, ...
            and all.
        untrained: whether `ost.models.untrained_model(model, "initialised")` is measured on the
            same tokens.
        seed: seed of the untrained model.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options, as in `ost.sensitivity`.

    In float32, or float64 of a float64 model. Raises `InputError` for a text of fewer than three
    tokens, a context beyond it, a state that is 0 or not finite, and for an edit beside
    `untrained`. Refused is a context whose states depend on what follows it. Cost: a forward pass
    of the text and of each context, and the singular values of the states. Source: docs/theory.md
    4.
    """
    mitigated = MitigatedPrompts.of("token_homogenization", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    sizes = _contexts(contexts, len(tokens.ids))
    ids = tuple(tokens.ids.tolist())
    provenance = Provenance.collect(
        model, ids, contexts=sizes, untrained=untrained, seed=seed, **mitigated.described(model)
    )
    if untrained:
        require_no_edits("token_homogenization", model, "an untrained model would not have it")
    tables = [_layers(model, mitigated, sizes).assign(source=MODEL)]
    if untrained:
        twin = untrained_model(model, "initialised", seed=seed)
        tables.append(_layers(twin, mitigated, sizes).assign(source=UNTRAINED))
    table: Frame = pd.concat(tables, ignore_index=True)
    return TokenHomogenization(table[["source", *table.columns.drop("source")]], provenance)


def _contexts(contexts: Iterable[int] | None, pos: int) -> list[int]:
    doubled = [SHORTEST << power for power in range(pos.bit_length()) if SHORTEST << power < pos]
    sizes = (
        [*doubled, pos] if contexts is None else sorted(whole_numbers("contexts", contexts, FEWEST))
    )
    if not FEWEST <= sizes[-1] <= pos:
        raise InputError(
            f"contexts: expected from {FEWEST} to the {pos} tokens of the text, found {sizes[-1]}: "
            "give a longer text"
        )
    return sizes


def _layers(model: TransformerBridge, mitigated: MitigatedPrompts, sizes: list[int]) -> Frame:
    work = full_precision(model, mitigated.what)
    ids = mitigated.prompt.ids[None]

    def first_column(pattern: Tensor, layer: int | None) -> Tensor:
        # Written so that NaN fails too. Rows may sum to less: gpt-oss has a sink beside the tokens,
        # an edit may cut weights.
        if not bool((pattern.sum(-1) < 1 + _ROUNDING).all()):
            raise InputError(
                "token_homogenization: expected rows of attention that sum to 1, found others in "
                f"layer {layer}"
            )
        return pattern[0, :, 1:, 0].double().cpu()

    with mitigated.acting(work):
        reduce = {} if unknown_inside(work, "patterns") else {"pattern": first_column}
        sites = "embedding", "residual_post", *reduce
        record, _ = captured_pass(work, ids, *sites, reduce=reduce)
        _require_beginnings(work, ids, record["residual_post"], sizes)
    columns: dict[int, Tensor] = record["pattern"] if reduce else {}
    streams = {0: record["embedding"]} | {
        block + 1: stream for block, stream in record["residual_post"].items()
    }
    return pd.DataFrame(
        [
            {
                "tokens": size,
                "layer": layer,
                **_of_states(stream[0, :size].cpu()),
                **_sink(columns.get(layer), size),
            }
            for size in sizes
            for layer, stream in sorted(streams.items())
        ]
    )


def _require_beginnings(
    work: TransformerBridge,
    ids: Int[Tensor, "1 pos"],
    streams: Mapping[int, Tensor],
    sizes: list[int],
) -> None:
    """Require that each context's last state is the same alone and within the text; else
    `InputError`.

    The two differ where the model's rotary angles or an edit depend on how long the text is. Cost:
    a pass of every context.
    """
    last_block = max(streams)
    for size in sizes:
        if size == ids.shape[-1]:
            continue
        record, _ = captured_pass(work, ids[:, :size], "residual_post", layers=[last_block])
        alone = record["residual_post"][last_block][0, -1]
        within = streams[last_block][0, size - 1].to(alone.device)
        error = float((alone - within).norm() / alone.norm())
        if not error <= _SAME_STATE[alone.dtype]:
            raise InputError(
                f"token_homogenization: expected the states of the first {size} tokens to be "
                f"theirs alone, found {error:.2g} of their size between them: the model or an edit "
                "reads how long the text is; give that beginning as a text of its own, or "
                "contexts=[all of its tokens]"
            )


def _of_states(states: Float[Tensor, "pos d_model"]) -> dict[str, float]:
    norms = states.double().norm(dim=-1)
    later = likeness(states[1:])._asdict()
    return {
        **likeness(states)._asdict(),
        **{f"rest_{name}": value for name, value in later.items()},
        "first_norm": float(norms[0]),
        "rest_norm": float(norms[1:].quantile(0.5)),
    }


def _sink(column: Float[Tensor, "head query"] | None, size: int) -> dict[str, float]:
    """Of the first token's column of a pattern, which begins with the second query."""
    if column is None:
        return {"first_weight": float("nan"), "sink_rate": float("nan")}
    weights = column[:, : size - 1].mean(-1)
    return {
        "first_weight": float(weights.mean()),
        "sink_rate": float((weights > SINK).double().mean()),
    }


SWEPT = Swept(read=TokenHomogenization.of, options={"untrained": None, **READ_POSITION})
