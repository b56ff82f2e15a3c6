"""Measured sensitivity: the exact Jacobian of the last token with respect to every other.

Purpose: J_i = d y_n / d v_i^(0), a d_model x d_model matrix for every token i, its operator norm (the one that Theorem 5.1
bounds) and its Frobenius norm, in up to four linearisations. Cost: d_model backward passes over the prompt, whatever its
length, and n d_model^2 numbers of memory. The cheaper choice is `path_sum(variant="second-moment")`: a prediction of the
Frobenius norms out of one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pandas as pd
import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.errors import InputError, unknown_name
from ostools.measure.precision import full_precision, true_arithmetic
from ostools.measure.prompts import Progress, as_prompt, token_columns
from ostools.models import Prompt
from ostools.results import Provenance, Result

LINEARISATIONS = ("full", "frozen", "frozen-attention", "frozen-norm")

# Prompts carried side by side through one backward pass: each has its own cotangent. CPUs like small blocks.
_ROWS = {"cpu": 4, "cuda": 32, "mps": 16}
_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}


@dataclass(frozen=True, eq=False)
class Sensitivity(Result):
    """Measured norms: one row is one token under one linearisation.

    Columns: position, token_id, token, linearisation (full | frozen | frozen-attention | frozen-norm), method ("exact"),
    operator_norm, frobenius_norm; both are pure numbers, change of y_n per change of v_i^(0).
    """

    def plot(self):
        from ostools.reporting import charts

        return charts.sensitivity_chart(self)


def sensitivity(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    linearisations: Sequence[str] = ("full", "frozen"),
    progress: Progress | None = None,
) -> Sensitivity:
    """||J_i||_2 and ||J_i||_F of J_i = d y_n / d v_i^(0) for every token i of the prompt, n its last token.

    v_i^(0) is the embedded token (after Gemma's scaling, before any block), y_n the last token's residual stream after the
    final norm: the quantity of Theorem 5.1 (arXiv 2406.04267). Exact, by reverse-mode differentiation, in float32 (in
    float64 throughout for a float64 model; a 16-bit model is copied to float32).

    Args:
        linearisations: what is held constant. `full`: nothing, the real derivative. `frozen`: attention patterns and norm
            scales, the theorem's two assumptions. `frozen-attention`, `frozen-norm`: one of the two.
        progress: called as progress(done, total) after each block of rows.

    Checked on every run, and refused with `InputError` where it fails: the pass from embeddings and every frozen pass give
    the logits of the plain pass; every number is finite; the Jacobian fits into memory. Active edits are respected.
    Source: THEORY section 2.
    """
    names = _checked(linearisations)
    tokens = as_prompt(model, prompt)
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), linearisations=names)
    work = full_precision(model, "sensitivity")
    ids = tokens.ids.to(next(work.parameters()).device)
    with true_arithmetic(work), torch.enable_grad():
        embedded = _checked_embedding(work, ids)
        _refuse_if_too_large(embedded)
        tables = []
        for index, name in enumerate(names):
            report = _part(progress, index, len(names))
            norms = _jacobian_norms(work, ids, embedded, name, report)
            tables.append(_table(tokens, name, *norms))
    return Sensitivity(pd.concat(tables, ignore_index=True), provenance)


def jacobian(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    *,
    freeze: AbstractContextManager[None] | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "pos d_out d_model"]:
    """J_i = d y_n / d v_i^(0) for every position i; row k of J_i is the gradient of component k of y_n.

    One graph over `rows` copies of the prompt, walked backwards d_model / rows times; copy b carries the cotangent e_{k+b},
    so that a pass yields `rows` rows of every J_i. `freeze` is entered for the forward pass only.
    """
    d_model = embedded.shape[-1]
    rows = min(_ROWS.get(embedded.device.type, 4), d_model)
    batch = embedded.detach().expand(rows, *embedded.shape).clone().requires_grad_(True)
    with freeze or nullcontext(), hooks.capture(model, "final_norm", detach=False) as record:
        model(batch, start_at_layer=0)
    last: Float[Tensor, "rows d_model"] = record["final_norm"][:, -1]
    blocks = []
    for start in range(0, d_model, rows):
        cotangent = torch.zeros_like(last)
        here = torch.arange(min(rows, d_model - start), device=last.device)
        cotangent[here, start + here] = 1.0
        (gradient,) = torch.autograd.grad(last, batch, cotangent, retain_graph=True)
        blocks.append(gradient[: len(here)].transpose(0, 1))
        if progress is not None:
            progress(start + len(here), d_model)
    return torch.cat(blocks, dim=1)


def freezing(model: TransformerBridge, linearisation: str) -> AbstractContextManager[None]:
    """The context in which a forward pass has that linearisation."""
    if linearisation == "full":
        return nullcontext()
    return hooks.frozen(model, attention=linearisation != "frozen-norm", norms=linearisation != "frozen-attention")


def _checked(linearisations: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys([linearisations] if isinstance(linearisations, str) else linearisations))
    if not names:
        raise InputError(f"expected at least one linearisation of {', '.join(LINEARISATIONS)}, found none")
    for name in names:
        if name not in LINEARISATIONS:
            raise unknown_name("linearisation", name, LINEARISATIONS)
    return names


def _checked_embedding(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Float[Tensor, "pos d_model"]:
    """v^(0) of the prompt, after proving that the network run from it is the network run from the tokens."""
    with torch.no_grad():
        embedded = model.input_to_embed(ids[None])[0].detach()
        plain, from_embedding = model(ids[None]), model(embedded, start_at_layer=0)
    _require_same_logits(plain, from_embedding, "the forward pass from embeddings")
    return embedded[0]


def _require_same_logits(expected: Tensor, found: Tensor, what: str) -> None:
    if not bool(torch.isfinite(expected).all()):
        raise InputError("the model's logits on this prompt are not finite; its weights or its dtype are broken")
    difference = float((expected - found).abs().max() / expected.abs().max())
    if not difference <= _ROUNDING[expected.dtype]:
        raise InputError(
            f"{what} changed the logits by {difference:.2g} of their size; its Jacobian would mean nothing"
        )


def _refuse_if_too_large(embedded: Float[Tensor, "pos d_model"]) -> None:
    pos, d_model = embedded.shape
    needed = 2 * pos * d_model**2 * embedded.element_size()
    free = torch.cuda.mem_get_info()[0] if embedded.is_cuda else psutil.virtual_memory().available
    if needed > 0.8 * free:
        raise InputError(
            f"the Jacobians of {pos} tokens at d_model {d_model} need {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free; shorten the prompt, or predict with path_sum(variants=['second-moment'])"
        )


def _jacobian_norms(
    model: TransformerBridge,
    ids: Int[Tensor, " pos"],
    embedded: Float[Tensor, "pos d_model"],
    linearisation: str,
    progress: Progress | None,
) -> tuple[Float[Tensor, " pos"], Float[Tensor, " pos"]]:
    with torch.no_grad():
        plain = model(ids[None])
        with freezing(model, linearisation):
            _require_same_logits(plain, model(ids[None]), f"the {linearisation} forward pass")
    jacobians = jacobian(model, embedded, freeze=freezing(model, linearisation), progress=progress)
    if not bool(torch.isfinite(jacobians).all()):
        raise InputError(f"the {linearisation} Jacobian is not finite on this prompt")
    return torch.linalg.matrix_norm(jacobians, ord=2), torch.linalg.matrix_norm(jacobians, ord="fro")


def _part(progress: Progress | None, index: int, parts: int) -> Progress | None:
    """The progress of one of several equal parts, told as progress of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(index * total + done, parts * total)


def _table(
    tokens: Prompt, linearisation: str, operator: Float[Tensor, " pos"], frobenius: Float[Tensor, " pos"]
) -> pd.DataFrame:
    return token_columns(tokens).assign(
        linearisation=linearisation,
        method="exact",
        operator_norm=operator.double().cpu().numpy(),
        frobenius_norm=frobenius.double().cpu().numpy(),
    )
