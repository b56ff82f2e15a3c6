"""Theorem 5.1 on a real model: what is certified, what the paper prints, and what is predicted.

Purpose: one number a token that bounds, or predicts, how much of it is left in the last token, out of one forward pass and
no gradient. Cost beside the pass: `ostools.measure.paths.certified` has that of the certified variants, from n norms of d x d
matrices a block (`uniform`, `local`; `mlp_norm="frobenius"` spares them and is looser) to n^2 / 2 (`heads` to `edge-full`);
`windowed(k)`, k >= 2, is a diagnostic that costs more than the measured profile; `second-moment` O(H n^3) and some
dozen products with a block's weights, `second-moment-full` O(n^2 d) beside. In CPU time of one thread these two take 6 and 10
plain passes on the embedded model at 64 tokens, 6 and 11 at 256 tokens; 5 and 7 at d_model 512, d_mlp 2048 and 64 tokens. 3 of
them are the pass itself, the check that the weights as read give the model's own numbers, and the weights' hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.errors import InputError, InsufficientMemoryError, unknown_name
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import in_smaller_chunks
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.formulas.forward import forward
from ostools.measure.formulas.scores import require_softmax
from ostools.measure.measurement import measurement
from ostools.measure.mitigated import Under
from ostools.measure.passes.arithmetic import float32_products, full_precision
from ostools.measure.paths.block_view import BlockView
from ostools.measure.paths.cost import path_sum_cost
from ostools.measure.paths.described import undescribed
from ostools.measure.paths.predicted import TRACES, chosen_traces
from ostools.measure.paths.variants import USUAL, MlpNorm, Variant, checked_variants, variant_named
from ostools.measure.prompts import token_columns
from ostools.measure.several import PROFILE, Several, together
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance, Result
from ostools.theory.path_sum.certificates import OUTCOMES
from ostools.theory.path_sum.mlp_certificates import QUOTIENT


@dataclass(frozen=True, eq=False)
class PathSum(Result):
    """Path sums: one row is one token under one variant.

    Columns: last (the position m whose y_m is meant), position, token_id, token, origin, variant, kind (certified |
    paper | predicted), linearisation ("frozen": patterns and norm scales held, the theorem's assumptions; "full": the real
    derivative), norm (operator | frobenius), value.
    """


@dataclass(frozen=True, eq=False)
class PathSums(Result, Several[PathSum]):
    """The path sums of several prompts: one table, with the column `prompt`; the result of each; means over relative
    position."""

    results: tuple[PathSum, ...]

    @classmethod
    def _profiles(cls, result: PathSum) -> Frame:
        frame: Frame = result.frame
        of_last = frame[frame["last"] == frame["last"].max()]
        return of_last.assign(source=of_last["variant"], layer=0)[PROFILE]


@overload
def path_sum(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    variants: str | Sequence[str] = ...,
    mlp_norm: MlpNorm | str = ...,
    traces: Literal["auto", "exact", "probes"] | str = ...,
    positions: Literal["last", "all"] | str = ...,
    max_memory: int | None = ...,
    mitigation: Mitigation | str | None = ...,
    announce: Callable[[str], None] | None = ...,
    progress: Progress | None = ...,
) -> PathSum: ...


@overload
def path_sum(
    model: TransformerBridge,
    prompt: Sequence[str | Prompt],
    *,
    variants: str | Sequence[str] = ...,
    mlp_norm: MlpNorm | str = ...,
    traces: Literal["auto", "exact", "probes"] | str = ...,
    positions: Literal["last", "all"] | str = ...,
    max_memory: int | None = ...,
    mitigation: Mitigation | str | None = ...,
    announce: Callable[[str], None] | None = ...,
    progress: Progress | None = ...,
) -> PathSums: ...


@measurement
@in_smaller_chunks
def path_sum(
    model: TransformerBridge,
    prompt: str | Prompt | Sequence[str | Prompt],
    *,
    variants: str | Sequence[str] = USUAL,
    mlp_norm: MlpNorm | str = "certified",
    traces: Literal["auto", "exact", "probes"] | str = "auto",
    positions: Literal["last", "all"] | str = "last",
    max_memory: int | None = None,
    mitigation: Mitigation | str | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> PathSum | PathSums:
    """Theorem 5.1's sum over paths from every token i to the last one, ( Abar^(L-1) ... Abar^(0) )_{n,i} times a constant.

    Args:
        prompt: a text or a `Prompt`. A list of them gives `PathSums`: one table of all prompts, each with the numbers that it
            has alone.
        variants: the forms of the sum, by name. The default is `local`, a bound, and `second-moment`, a prediction. With these
            `compare` says whether a bound holds, and whether shape and size are predicted.
            `uniform` >= `local` >= `heads` >= `edge` >= `windowed(1)` >= `windowed(2)` ...: certified bounds of the frozen
            operator norm, without a free constant. `local-full` >= `edge-full`: certified bounds of the real derivative's.
            `theorem-5.1`, `theorem-b5`, `proof`, `multi-head`: the papers' forms, which are not bounds on a real model.
            `theorem-5.1-literal`, `theorem-b5-literal`: the sums of equations 1 and 4 as printed (docs/fidelity.md), with one
            more index, k_L.
            `second-moment`: a prediction of the frozen Frobenius norm. `second-moment-full`: a prediction of the real
            derivative's. `second-moment-diagonal`: cheaper, but it does not see interference (repeated tokens).
            `rollout`: a ranking. `cesaro`: the shape that uniform causal attention would have with each block's own residual
            weight, in closed form (arXiv 2603.10123; docs/theory.md 3.3). It shows what the mask and the skip connections do
            without any pattern.
        mlp_norm: how ||D_i|| is taken, in every variant of a chain but `windowed(k)` and `edge-full`, which take (I + D_i)
            T_ij as a whole. "certified": proved from above, within 0.1%, by one direction each or by repeated squaring. The
            provenance counts how each was proved. What is proved is the norm of the exact product of weights and slopes as
            float64 has them, or of the D_i that float64 computed from them. The norms of `heads` and `edge` are then proved by
            squaring. "svd": exact singular values. "frobenius" (||D_i||_F) and "product" (of weight norms): cheaper and
            larger.
        traces: how the predictions take traces of second moments. "exact": over all d_model directions. "probes": from a few
            random ones, whose number and seed are in the provenance. "auto": probes if they take less than half the operations
            and exact traces take more than 10^9 a block. Against the measured norms of 21 prompts (64 to 128 tokens, d_model 64
            to 256) the mean rank correlation was .978 with probes and .982 with exact traces for `second-moment`, and .963 and
            .974 for `second-moment-full`, whose pairs were asked at 32 columns.
        positions: "last": the last token n alone, as in the theorem. "all": every position m as the last one. This is the
            triangular matrix in long form (rows with position <= last).
        max_memory: bytes that the run may take beside the model; the default is what is free.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it rewrites, and the model
            runs under its hooks. It has to change the prompt or a logit, or it is refused. So are hooks that the formulas do
            not know.
        announce: called with the forecast of its memory before it runs.
        progress: called as progress(done, total), in blocks of the model.

    Raises `InputError` for an unknown variant; for one that does not describe the family (`ostools models` lists them); for an
    active edit of the forward pass that the formulas do not know; for numbers that are not finite; and if the weights as read
    here do not reproduce the model's own attention and MLP. Source: docs/theory.md 3; Barbero et al., arXiv 2406.04267,
    theorem 5.1 and appendix B.5.
    """
    names = checked_variants(variants)
    _refuse_undescribed(model, names)
    if mlp_norm not in get_args(MlpNorm):
        raise unknown_name("mlp_norm", mlp_norm, get_args(MlpNorm))
    if traces not in ("auto", *TRACES):
        raise unknown_name("traces", traces, ("auto", *TRACES))
    if positions not in ("last", "all"):
        raise unknown_name("positions", positions, ("last", "all"))
    is_one = isinstance(prompt, str | Prompt)
    under = Under.of("path_sum", model, [prompt] if is_one else prompt, mitigation)
    how = _How(Shape.of(model), names, mlp_norm, traces, positions, max_memory, announce)
    provenance = Provenance.collect(model, variants=names, mlp_norm=mlp_norm, positions=positions, **under.said)
    work, found, count = full_precision(model, "path_sum"), [], len(under.prompts)
    with torch.inference_mode(False), under.acting(work):
        for name in names:
            if variant_named(name).linearisation == "full":
                require_softmax(work, f"variant {name!r}", "use a variant of the frozen derivative")
        for index, tokens in enumerate(under.prompts):
            told = progress if count == 1 else part_of(progress, index, index + 1, count, units=100)
            try:
                found.append(_of_one(work, tokens, how, provenance, told))
            except InputError as error:
                if count == 1:
                    raise
                raise type(error)(f"prompt {index + 1} of {count}: {error}") from error
    return found[0] if is_one else PathSums(*together(found, ("traces", "norms_proved")))


@dataclass(frozen=True)
class _How:
    """What is asked of every prompt; `shape`: of the model as the user gave it."""

    shape: Shape
    names: Sequence[str]
    mlp_norm: str
    traces: str
    positions: str
    max_memory: int | None
    announce: Callable[[str], None] | None


def _of_one(
    model: TransformerBridge, tokens: Prompt, how: _How, provenance: Provenance, progress: Progress | None
) -> PathSum:
    """Of one prompt, on the model in the precision in which its blocks are read."""
    shape, n = how.shape, len(tokens.ids)
    traces = chosen_traces(shape, n) if how.traces == "auto" else how.traces
    last = [n - 1] if how.positions == "last" else list(range(n))
    reading = {"mlp_norm": how.mlp_norm, "traces": traces, "positions": how.positions}
    needed = path_sum_cost(shape, n, how.names, **reading).memory
    _require_memory(needed, n, next(model.parameters()).device, how.max_memory, how.announce)
    tally: Counter[str] = Counter()
    values = _fold(model, tokens, how.names, last, (how.mlp_norm, traces, tally), progress)
    own: dict[str, Any] = {"traces": TRACES[traces], **tokens.asked}
    if tally:
        own["norms_proved"] = ", ".join(f"{tally[name]} {name}" for name in (QUOTIENT, *OUTCOMES))
    tables = [_table(tokens, variant_named(name), last, values[name]) for name in how.names]
    where = replace(provenance, token_ids=tuple(tokens.ids.tolist()), parameters={**provenance.parameters, **own})
    return PathSum(pd.concat(tables, ignore_index=True), where)


def _require_memory(
    needed: int,
    pos: int,
    device: torch.device,
    max_memory: int | None,
    announce: Callable[[str], None] | None,
) -> None:
    limit = available_memory(device) if max_memory is None else max_memory
    if announce is not None:
        announce(f"path sums: {needed / 2**30:.2f} GiB of memory")
    if needed > limit:
        raise InsufficientMemoryError(
            f"the path sums of {pos} tokens need about {needed / 2**30:.2f} GiB, {limit / 2**30:.2f} GiB are allowed: "
            f"shorten the prompt, free memory or raise max_memory, or ask for 'local', which reads the least"
        )


def _refuse_undescribed(model: TransformerBridge, names: Sequence[str]) -> None:
    for name, reason in undescribed(model, names).items():
        raise InputError(
            f"variant {name!r}: {reason} in {model.cfg.architecture}; use a certified variant such as 'local', or measure with "
            "sensitivity()"
        )


def _fold(
    model: TransformerBridge,
    tokens: Prompt,
    names: Sequence[str],
    last: list[int],
    reading: tuple[str, str, Counter[str]],
    progress: Progress | None,
) -> dict[str, Float[Tensor, "last pos"]]:
    """One forward pass, then the blocks from the last to the first through every variant at once."""
    predicted = all(variant_named(name).kind == "predicted" for name in names)
    # Bounds are computed in float64; a prediction is off by percents, whatever the precision.
    dtype = next(model.parameters()).dtype if predicted else torch.float64
    with torch.no_grad(), float32_products():
        run = forward(model, tokens.ids, live=any(variant_named(name).linearisation == "full" for name in names))
        folds = {name: variant_named(name).fold(run, last) for name in names}
        for block in run.blocks(dtype):
            done = int(model.cfg.n_layers) - block.layer
            view = BlockView(block, *reading)
            for fold in folds.values():
                fold.step(view)
            # Before the next block is read: a long prompt's patterns fill the memory. (enumerate() would keep the block.)
            del view, block
            tell(progress, done, int(model.cfg.n_layers))
        return {name: fold.values() for name, fold in folds.items()}


def _table(tokens: Prompt, variant: Variant, last: list[int], value: Float[Tensor, "last pos"]) -> pd.DataFrame:
    if not bool(torch.isfinite(value).all()):
        raise InputError(
            f"variant {variant.name!r} is not finite on this prompt: the product over layers overflows float64"
        )
    columns = token_columns(tokens)
    lengths = [m + 1 for m in last]
    tokens_of = np.concatenate([np.arange(length) for length in lengths])
    said = {name: getattr(variant, name) for name in ("kind", "linearisation", "norm")}
    values = torch.cat([row[:length] for row, length in zip(value, lengths, strict=True)]).cpu().numpy()
    asked = {name: column.take(tokens_of).array for name, column in columns.items()}
    return pd.DataFrame({"last": np.repeat(last, lengths), **asked, "variant": variant.name, **said, "value": values})
