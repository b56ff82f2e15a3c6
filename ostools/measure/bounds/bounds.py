"""Theorem 5.1 on a real model: what is certified, and what the paper prints.

Purpose: one number a token that bounds how much of it is left in the last token, out of one forward
pass and no gradient; or that has its shape, as far as a sketch of the derivative beside it agrees
(`belief`). On Gemma 3 270M and SmolLM2 the bound is 10^74 to 10^94 too large
(docs/findings/real-models.md): measure there. Cost beside the pass: n norms of d x d matrices a
block for `local` (`mlp_norm="product"` spares them and is looser); `windowed(k)` is a diagnostic
that costs more than the measured profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from pydantic import AfterValidator
from torch import Tensor

from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.ground.lens import TransformerBridge
from ostools.ground.memory import available_memory
from ostools.ground.names import Position
from ostools.ground.out_of_memory import chunk as chunk_of
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure.bounds.certified import BlockView
from ostools.measure.bounds.variants import (
    COTANGENTS,
    LINEARISATION,
    NORM,
    USUAL,
    MlpNorm,
    Variant,
    beliefs,
    checked_variants,
    undescribed,
    variant_named,
    window_of,
)
from ostools.measure.formulas.forward import KEPT_BYTES, forward
from ostools.measure.jacobian.memory import ALLOCATOR, sensitivity_bytes
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.batches import in_full
from ostools.measure.passes.contexts import full_precision
from ostools.measure.prompts import (
    PROFILE,
    PromptResults,
    by_token,
    join_results,
    prompt_named,
    token_columns,
)
from ostools.measure.swept import READ_POSITION, Swept
from ostools.measure.unloaded import Unloaded
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.precision.torch_state import float32_products
from ostools.models.shape import Shape
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Frame, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks.questions import Question
from ostools.theory.path_sum import CHUNK_BUDGET


@dataclass(frozen=True, eq=False)
class Bounds(Result):
    """Path sums: one row is one token under one variant.

    Columns: last (the position m whose y_m is meant), position, token_id, token, origin, variant,
    kind (certified | paper), linearisation ("frozen": patterns and norm scales held, the theorem's
    assumptions), norm ("operator"), value, believed (whether a form that is no bound has the order
    and the size of a sketch of that derivative, by the rules of `ostools.measure.bounds.variants`;
    missing of a certified bound, and where it could not be tested). `beliefs` has the numbers
    behind it, one row a form: variant, believed, spearman, log10_off, words.
    """

    tables: ClassVar = (
        TableHead("beliefs", "variant words"),
        TableHead(columns="last position token value", across="variant kind linearisation norm"),
    )

    @property
    def by_token(self) -> Frame:
        """The value of each token for the last position: position, token, source (the variant),
        norm, kind.
        """
        table: Frame = self.frame
        rows = table[table["last"] == table["last"].max()]
        return by_token(rows, rows["variant"], rows["value"], rows["kind"])

    @property
    def beliefs(self) -> Frame:
        """Verdict on each form that is no bound, for the last position: one row a variant."""
        verdict_by_variant = self.provenance.parameters.get("beliefs", {})
        table = [{"variant": name, **verdict} for name, verdict in verdict_by_variant.items()]
        columns = ["variant", "believed", "spearman", "log10_off", "words"]
        return pd.DataFrame(table, columns=columns).astype({"believed": "boolean"})

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import bounds_chart

        return bounds_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import bounds_findings

        return bounds_findings(self)


@dataclass(frozen=True, eq=False)
class PromptBounds(Result, PromptResults[Bounds]):
    """The path sums of several prompts: one table, with the column `prompt`; the result of each;
    means over relative position."""

    results: tuple[Bounds, ...]

    @classmethod
    def _profiles(cls, result: Bounds) -> Frame:
        frame: Frame = result.frame
        of_last = frame[frame["last"] == frame["last"].max()]
        return of_last.assign(source=of_last["variant"], layer=0)[PROFILE]

    def chart(self) -> Chart:
        from ostools.reporting.charts.corpus import several_chart

        return several_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import prompts_findings

        return prompts_findings(self)


@measurement(
    command="bounds",
    examples=('--prompt "The capital of France is" --variants local --out bounds.png',),
    memory=lambda: bounds_memory,
    sweep=lambda: SWEPT,
    in_chunks=True,
    one=Bounds,
    several=PromptBounds,
)
def bounds(
    model: TransformerBridge,
    prompt: str | Prompt | Question | Sequence[str | Prompt | Question],
    *,
    variants: str | Sequence[str] = USUAL,
    mlp_norm: MlpNorm = "svd",
    positions: Literal["last", "all"] = "last",
    max_memory: int | None = None,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Bounds | PromptBounds:
    """Theorem 5.1's sum over paths from every token i to the last one, ( Abar^(L-1) ... Abar^(0)
    )_{n,i} times a constant.

    Args:
        prompt: a text, a `Prompt` or a task's question. A list of them gives `PromptBounds`: one
            table of all prompts. How texts and questions are encoded: `EncodingOptions`.
        variants: the forms of the sum, by name; see docs/theory.md 3. `local` (cheap) >=
            `windowed(1)` >= `windowed(2)` >= `windowed(4)` ...: certified bounds of the frozen
            operator norm, without a free constant; `windowed(k)` multiplies the norms of k blocks
            at a time, and is that norm itself from as many blocks as the model has on.
            `theorem-5.1`, `theorem-b5`, `proof`: the paper's forms, no bounds on a real model.
            `theorem-b5-literal`: equation 4 as printed (docs/fidelity.md). Beside the paper's forms
            a sketch of the frozen derivative is measured: the column `believed` says whether order
            and size agree with it.
        mlp_norm: how ||D_i|| is taken, in every variant but `windowed(k)`: "svd", the largest
            singular value, or "product" of weight norms, cheaper and larger.
        positions: which tokens are the last one: "last" alone, as in the theorem, or "all": the
            triangular matrix in long form (rows with position <= last).
        max_memory: bytes that the run may take beside the model; the default is what is free.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. It has to change the prompt
            or a logit, or it is refused. So are hooks that the formulas do not know.
        progress: called as progress(done, total), in blocks of the model.

    Raises `InputError` for a variant that does not describe the family (`ostools list models`), for
    an active edit that the formulas do not know, and where the weights as read here do not
    reproduce the model's own numbers. Source: docs/theory.md 3; arXiv 2406.04267, theorem 5.1,
    appendix B.5.
    """
    names = checked_variants(variants)
    for name, reason in undescribed(model, names).items():
        raise InputError(
            f"variant {name!r}: {reason} in {model.cfg.architecture}; use a certified variant such as 'local', or measure with "
            "sensitivity()"
        )
    is_one = isinstance(prompt, str | Prompt | Question)
    mitigated = MitigatedPrompts.of(
        "bounds", model, [prompt] if is_one else prompt, mitigation, position
    )
    needed = partial(bounds_bytes, Shape.of(model), variants=names)
    about = {"variants": names, "mlp_norm": mlp_norm, "positions": positions}
    provenance = Provenance.collect(model, **about)
    described = [
        replace(
            provenance, parameters={**provenance.parameters, **mitigated.described(model, index)}
        )
        for index in range(len(mitigated.prompts))
    ]
    work, results, count = full_precision(model, "bounds"), [], len(mitigated.prompts)
    with mitigated.acting(work):
        for index, tokens in enumerate(mitigated.prompts):
            prompt_progress = (
                progress if count == 1 else part_of(progress, index, index + 1, count, units=100)
            )
            with prompt_named(mitigated.prompts, index):
                _require_memory(
                    needed(len(tokens.ids)),
                    len(tokens.ids),
                    next(work.parameters()).device,
                    max_memory,
                )
                results.append(_of_one(work, tokens, described[index], max_memory, prompt_progress))
    return (
        results[0]
        if is_one
        else PromptBounds(*join_results(results, ("beliefs", "read_at", "next_tokens")))
    )


def _of_one(
    model: TransformerBridge,
    tokens: Prompt,
    provenance: Provenance,
    max_memory: int | None,
    progress: Progress | None,
) -> Bounds:
    """Path sum of one prompt, on the model in the precision in which its blocks are read: fold,
    believe, tabulate.
    """
    options, n = provenance.parameters, len(tokens.ids)
    last = [n - 1] if options["positions"] == "last" else list(range(n))
    values = _fold(model, tokens, options["variants"], last, options["mlp_norm"], progress)
    verdicts = beliefs(model, tokens, {name: rows[-1] for name, rows in values.items()}, max_memory)
    tables = [
        _table(tokens, variant_named(name), last, rows).assign(
            believed=verdicts[name].believed if name in verdicts else None
        )
        for name, rows in values.items()
    ]
    parameters = dict(options)
    if verdicts:
        parameters["beliefs"] = {name: verdict.as_dict for name, verdict in verdicts.items()}
    frame = pd.concat(tables, ignore_index=True).astype({"believed": "boolean"})
    return Bounds(
        frame, replace(provenance, token_ids=tuple(tokens.ids.tolist()), parameters=parameters)
    )


def _require_memory(needed: int, pos: int, device: torch.device, max_memory: int | None) -> None:
    limit = available_memory(device) if max_memory is None else max_memory
    if needed > limit:
        raise InsufficientMemoryError(
            f"the path sums of {pos} tokens need about {needed / 2**30:.2f} GiB, {limit / 2**30:.2f} GiB are allowed: "
            f"shorten the prompt, free memory or raise max_memory, or ask for 'local', which reads the least"
        )


def _fold(
    model: TransformerBridge,
    tokens: Prompt,
    names: Sequence[str],
    last: list[int],
    mlp_norm: str,
    progress: Progress | None,
) -> dict[str, Float[Tensor, "last pos"]]:
    """One forward pass, then the blocks from the last to the first through every variant at once."""
    with torch.no_grad(), float32_products():
        run = forward(model, tokens.ids)
        folds = {name: variant_named(name).fold(run, last) for name in names}
        for block in run.blocks():
            blocks_done = int(model.cfg.n_layers) - block.layer
            view = BlockView(block, mlp_norm)
            for fold in folds.values():
                fold.step(view)
            # Before the next block is read: a long prompt's patterns fill the memory. (enumerate()
            # would keep the block.)
            del view, block
            tell(progress, blocks_done, int(model.cfg.n_layers))
        return {name: fold.values() for name, fold in folds.items()}


def _table(
    tokens: Prompt, variant: Variant, last: list[int], values: Float[Tensor, "last pos"]
) -> pd.DataFrame:
    if not bool(torch.isfinite(values).all()):
        raise InputError(
            f"variant {variant.name!r} is not finite on this prompt: the product over layers overflows float64"
        )
    columns = token_columns(tokens)
    lengths = [m + 1 for m in last]
    token_indices = np.concatenate([np.arange(length) for length in lengths])
    variant_columns = {"kind": variant.kind, "linearisation": LINEARISATION, "norm": NORM}
    flat_values = (
        torch.cat([row[:length] for row, length in zip(values, lengths, strict=True)]).cpu().numpy()
    )
    token_values = {name: column.take(token_indices).array for name, column in columns.items()}
    return pd.DataFrame(
        {
            "last": np.repeat(last, lengths),
            **token_values,
            "variant": variant.name,
            **variant_columns,
            "value": flat_values,
        }
    )


def bounds_bytes(shape: Shape, pos: int, variants: Sequence[str]) -> int:
    """Bytes of all variants on a prompt of `pos` tokens, out of the same blocks, one at a time:
    read, then folded, in float64.
    """
    model, element = in_full(shape), 8
    squares, square = model.n_heads * pos**2 * model.element, pos**2 * element
    sites, d_squared = model.site_bytes(pos), shape.d_model**2 * element
    reading = ALLOCATOR + (sites if sites <= chunk_of(KEPT_BYTES) else 0)
    reading += max(7 * squares // 2, squares + 5 * square)
    reading += pos * (6 * shape.d_mlp + 20 * shape.d_model) * element
    # Beside a block's weights matrices: ff x d and d x d for the Jacobian of a position.
    position = shape.d_mlp * shape.d_model * element + d_squared
    terms = min(pos * position, max(position, chunk_of(CHUNK_BUDGET))) + 8 * d_squared
    folded = reading + 2 * element * shape.block_parameters + terms
    for window in filter(None, map(window_of, variants)):
        # The blocks of one group, and what one token's cotangents go through.
        blocks = min(window, shape.n_layers)
        folded += blocks * shape.n_heads * square + (blocks + 8) * pos * d_squared
    if all(variant_named(name).kind == "certified" for name in variants):
        return folded
    # One after the other: the larger of the two.
    return max(folded, sensitivity_bytes(shape, pos, method="sketch", cotangents=COTANGENTS))


def bounds_memory(model: Unloaded, pos: int, *, variants: str | Sequence[str] = USUAL) -> int:
    """Bytes of a prompt's path sums."""
    return bounds_bytes(model.shape, pos, checked_variants(variants))


SWEPT = Swept(
    read=Bounds,
    options={"variants": AfterValidator(checked_variants), **READ_POSITION},
)
