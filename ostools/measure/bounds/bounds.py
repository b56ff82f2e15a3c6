"""Theorem 5.1 on a real model: what is certified, and what the paper prints.

Purpose: one number a token that bounds how much of it is left in the last token, out of one forward
pass and no gradient; or that has its shape, as far as the derivative measured beside it agrees
(`belief`). On Gemma 3 270M and SmolLM2 the bound is 10^74 to 10^94 too large
(docs/findings/real-models.md): measure there. Cost beside the pass: n norms of d x d matrices a
block for `local` (`mlp_norm="product"` spares them and is looser); `windowed(k)` is a diagnostic
that costs more than the measured profile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from pydantic import AfterValidator
from torch import Tensor

from ostools.ground import (
    InputError,
    InsufficientMemoryError,
    Position,
    Progress,
    TransformerBridge,
    available_memory,
    tell,
)
from ostools.hooks.torch_state import float32_products
from ostools.measure.bounds.variants import (
    LINEARISATION,
    NORM,
    USUAL,
    MlpNorm,
    RowFold,
    Variant,
    WindowedFold,
    checked_variants,
    undescribed,
    variant_named,
)
from ostools.measure.first_order import Belief, belief
from ostools.measure.formulas.block import forward
from ostools.measure.jacobian.norms import choose_method
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.memory import blocks_bytes
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import full_precision
from ostools.measure.prompts import by_token, token_columns
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.shape import Shape
from ostools.results import Chart, Frame, Provenance, Result, TableHead, of_earlier_version
from ostools.tasks import Question
from ostools.theory import path_sum

# Of the sketch that a form is held against.
_COTANGENTS = 8


@dataclass(frozen=True, eq=False)
class Bounds(Result):
    """Path sums: one row is one token under one variant.

    Columns: position, token_id, token, origin, variant, kind (certified | paper), linearisation
    ("frozen": patterns and norm scales held, the theorem's assumptions), norm ("operator"), value,
    believed (whether a form that is no bound has the order
    and the size of that derivative's norms, by the rules of `ostools.measure.first_order`;
    missing of a certified bound, where it could not be tested, and where a sketch does not decide
    it). `beliefs` has the numbers behind it, one row a form: variant, believed, spearman,
    log10_off_lower, log10_off_upper, words.
    """

    tables: ClassVar = (
        TableHead("beliefs", "variant words"),
        TableHead(columns="position token value", across="variant kind linearisation norm"),
    )
    key: ClassVar = ("variant", "linearisation", "norm", "position")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "last" in self.frame and len(set(self.frame["last"])) > 1:
            raise of_earlier_version(self, "those of every position")
        verdicts = self.provenance.parameters.get("beliefs", {}).values()
        if any("log10_off" in verdict for verdict in verdicts):
            raise of_earlier_version(self, "forms held against one end of a sketch's interval")

    @property
    def by_token(self) -> Frame:
        """The value of each token: position, token, source (the variant), norm, kind."""
        rows: Frame = self.frame
        return by_token(rows, rows["variant"], rows["value"], rows["kind"])

    @property
    def beliefs(self) -> Frame:
        """Verdict on each form that is no bound: one row a variant."""
        verdict_by_variant = self.provenance.parameters.get("beliefs", {})
        table = [{"variant": name, **verdict} for name, verdict in verdict_by_variant.items()]
        columns = ["variant", *Belief.__annotations__]
        return pd.DataFrame(table, columns=columns).astype({"believed": "boolean"})

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import bounds_chart

        return bounds_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import bounds_findings

        return bounds_findings(self)


@measurement(
    command="bounds",
    examples=('--prompt "The capital of France is" --variants local --out bounds.png',),
    python_only={"believe": "`compare` holds the forms against norms that are measured already"},
    memory=["blocks"],
    sweep=lambda: SWEPT,
    in_chunks=True,
    checks=(checked_variants,),
)
def bounds(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    variants: str | Sequence[str] = USUAL,
    mlp_norm: MlpNorm = "svd",
    max_memory: int | None = None,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    believe: bool = True,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Bounds:
    """Theorem 5.1's sum over paths from every token i to the last one, ( Abar^(L-1) ... Abar^(0)
    )_{n,i} times a constant.

    Args:
        variants: the forms of the sum, by name; see docs/theory.md 3. `local` (cheap) >=
            `windowed(1)` >= `windowed(2)` >= `windowed(4)` ...: certified bounds of the frozen
            operator norm, without a free constant; `windowed(k)` multiplies the norms of k blocks
            at a time, and is that norm itself from as many blocks as the model has on.
            `theorem-5.1`, `theorem-b5`, `proof`: the paper's forms, no bounds on a real model.
            `theorem-b5-literal`: equation 4 as printed (docs/fidelity.md). Beside the paper's forms
            the frozen derivative is measured, exactly up to d_model 256 and else by a sketch: the
            column `believed` says whether order and size agree with it.
        mlp_norm: how ||D_i|| is taken, in every variant but `windowed(k)`: "svd", the largest
            singular value, or "product" of weight norms, cheaper and larger.
        max_memory: bytes that the run may take beside the model; the default is what is free.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. It has to change the prompt
            or a logit, or it is refused. So are hooks that the formulas do not know.
        believe: False measures no derivative, and `believed` is missing: for `compare`, which has
            norms of its own to hold the forms against.
        progress: called as progress(done, total), in blocks of the model.

    Raises `InputError` for a variant that does not describe the family (`ostools list models`), for
    an active edit that the formulas do not know, and where the weights as read here do not
    reproduce the model's own numbers. Source: docs/theory.md 3; arXiv 2406.04267, theorem 5.1,
    appendix B.5.
    """
    names = checked_variants(variants)
    for name, reason in undescribed(model, names).items():
        raise InputError(
            f"variant {name!r}: {reason} in {model.cfg.architecture}; use a certified variant such "
            "as 'local', or measure with sensitivity()"
        )
    mitigated = MitigatedPrompts.of("bounds", model, [prompt], mitigation, position)
    tokens, shape = mitigated.prompt, Shape.of(model)
    ids = tuple(tokens.ids.tolist())
    about: dict[str, object] = {} if believe else {"believe": False}
    about |= mitigated.described(model)
    provenance = Provenance.collect(model, ids, variants=names, mlp_norm=mlp_norm, **about)
    work = full_precision(model, "bounds")
    with mitigated.acting(work):
        _require_memory(shape, names, len(ids), max_memory)
        values = _fold(work, tokens, names, mlp_norm, progress)
        verdicts = _beliefs(work, tokens, values if believe else {}, max_memory)
    parameters = dict(provenance.parameters)
    if verdicts:
        parameters["beliefs"] = {name: verdict.as_dict for name, verdict in verdicts.items()}
    tables = [
        _table(tokens, variant_named(name), row).assign(
            believed=verdicts[name].believed if name in verdicts else None
        )
        for name, row in values.items()
    ]
    frame = pd.concat(tables, ignore_index=True).astype({"believed": "boolean"})
    return Bounds(frame, replace(provenance, parameters=parameters))


def _require_memory(
    shape: Shape, variants: Sequence[str], pos: int, max_memory: int | None
) -> None:
    limit = available_memory(torch.device(shape.device)) if max_memory is None else max_memory
    needed = blocks_bytes(shape, pos, variants)
    if needed > limit:
        raise InsufficientMemoryError(
            f"the path sums of {pos} tokens need about {needed / 2**30:.2f} GiB, "
            f"{limit / 2**30:.2f} GiB are allowed: shorten the prompt, free memory or raise "
            "max_memory, or ask for 'local', which reads the least"
        )


def _fold(
    model: TransformerBridge,
    tokens: Prompt,
    names: Sequence[str],
    mlp_norm: str,
    progress: Progress | None,
) -> dict[str, Float[Tensor, " pos"]]:
    """One forward pass, then the blocks, last first, through every variant at once."""
    with torch.no_grad(), float32_products():
        run = forward(model, tokens.ids)
        folds = {
            form.name: WindowedFold(run, form.window) if form.window else RowFold(form, run)
            for form in map(variant_named, names)
        }
        for block in run.blocks():
            blocks_done = int(model.cfg.n_layers) - block.layer
            if mlp_norm == "product":
                block.mlp_norm = path_sum.mlp_norm_products
            for fold in folds.values():
                fold.step(block)
            # Before the next block is read: a long prompt's patterns fill the memory. (enumerate()
            # would keep the block.)
            del block
            tell(progress, blocks_done, int(model.cfg.n_layers))
        return {name: fold.values() for name, fold in folds.items()}


def _table(tokens: Prompt, variant: Variant, values: Float[Tensor, " pos"]) -> pd.DataFrame:
    if not bool(torch.isfinite(values).all()):
        raise InputError(
            f"variant {variant.name!r} is not finite on this prompt: the product over layers "
            "overflows float64"
        )
    names = {"variant": variant.name, "kind": variant.kind}
    names |= {"linearisation": LINEARISATION, "norm": NORM}
    return token_columns(tokens).assign(**names, value=values.cpu().numpy())


def _beliefs(
    model: TransformerBridge,
    tokens: Prompt,
    values: Mapping[str, Float[Tensor, " pos"]],
    max_memory: int | None,
) -> dict[str, Belief]:
    """Verdict on each variant that is no bound, beside the frozen derivative.

    `values`: of the last token, by variant. Active edits are respected. Where the derivative is
    refused the form is untested, with the reason.
    """
    forms = {
        name: variant_named(name) for name in values if variant_named(name).kind != "certified"
    }
    if not forms:
        return {}
    try:
        frame: Frame = sensitivity(
            model,
            tokens,
            linearisations=LINEARISATION,
            # Not "auto": a verdict would hang on the memory that is free.
            method=choose_method(int(model.cfg.d_model), exact_fits=True)[0],
            cotangents=_COTANGENTS,
            max_memory=max_memory,
            progress=False,
        ).frame
    except InputError as error:
        reason = f"not tested here: {error}"
        return dict.fromkeys(forms, Belief(None, math.nan, math.nan, math.nan, reason))
    lower, upper = (frame[f"{NORM}_{end}"].to_numpy(float) for end in ("lower", "upper"))
    # Of a sketch, which knows two limits of an operator norm, the order is the Frobenius norms'.
    order = frame[f"{NORM}_norm"].fillna(frame["frobenius_norm"]).to_numpy(float)
    return {
        name: belief(values[name].cpu().numpy(), order, lower, upper, scaled=form.scaled)
        for name, form in forms.items()
    }


SWEPT = Swept(
    read=Bounds,
    options={"variants": AfterValidator(checked_variants), **READ_POSITION},
)
