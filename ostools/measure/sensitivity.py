"""Measured sensitivity: the exact Jacobian of the last token with respect to every other.

Purpose: J_i = d y_n / d v_i^(0), a d_model x d_model matrix for every token i, its operator norm (the one that Theorem 5.1
bounds) and its Frobenius norm, in up to four linearisations. Cost: d_model backward passes over the prompt, whatever its
length, and n d_model^2 numbers of memory. The cheaper choice is `path_sum(variant="second-moment")`: a prediction of the
Frobenius norms out of one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pandas as pd
import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.errors import InputError
from ostools.measure.precision import full_precision, true_arithmetic
from ostools.measure.prompts import Progress, as_prompt, checked_names, token_columns
from ostools.models import Prompt
from ostools.results import Provenance, Result

LINEARISATIONS = ("full", "frozen", "frozen-attention", "frozen-norm")

# Prompts carried side by side through one backward pass: each has its own cotangent. CPUs like small blocks.
_ROWS = {"cpu": 4, "cuda": 32, "mps": 16}
# Running from embeddings may round otherwise than running from tokens; freezing changes no value at all.
_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}
_FROZEN_ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}


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
    names = checked_names("linearisation", linearisations, LINEARISATIONS)
    if any(edit.kind == "freeze" for edit in hooks.active_edits(model)):
        raise InputError(
            "sensitivity freezes what each linearisation asks for; leave the block of hooks.frozen() first"
        )
    tokens = as_prompt(model, prompt)
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), linearisations=names)
    work = full_precision(model, "sensitivity")
    ids = tokens.ids.to(next(work.parameters()).device)
    with torch.inference_mode(False), torch.enable_grad(), true_arithmetic(work):
        embedded, plain = _checked_embedding(work, ids)
        _refuse_if_too_large(work, embedded)
        tables = []
        for index, name in enumerate(names):
            report = _part(progress, index, len(names))
            norms = _jacobian_norms(work, ids, embedded, plain, name, report)
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
    so that a pass yields `rows` rows of every J_i. `freeze` is entered for the forward pass only. In the model's own dtype;
    refused in 16 bits, where it would be off by percents.
    """
    if embedded.dtype not in _ROUNDING:
        raise InputError(f"jacobian: expected float32 or float64, found {embedded.dtype}; cast a copy of the model")
    d_model = embedded.shape[-1]
    rows = min(_ROWS.get(embedded.device.type, 4), d_model)
    batch = embedded.detach().expand(rows, *embedded.shape).clone().requires_grad_(True)
    with torch.enable_grad(), freeze or nullcontext(), hooks.capture(model, "final_norm", detach=False) as record:
        model(batch, start_at_layer=0, logits_to_keep=1)
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


def _checked_embedding(
    model: TransformerBridge, ids: Int[Tensor, " pos"]
) -> tuple[Float[Tensor, "pos d_model"], Float[Tensor, "1 pos d_vocab"]]:
    """v^(0) of the prompt and the plain pass's logits, after proving that the network run from v^(0) gives the same."""
    with torch.no_grad():
        embedded = model.input_to_embed(ids[None])[0].detach()
        plain, from_embedding = model(ids[None]), model(embedded, start_at_layer=0)
    _require_same_logits(plain, from_embedding, "the forward pass from embeddings", _ROUNDING)
    return embedded[0], plain


def _require_same_logits(expected: Tensor, found: Tensor, what: str, rounding: Mapping[torch.dtype, float]) -> None:
    if not bool(torch.isfinite(expected).all()):
        raise InputError("the model's logits on this prompt are not finite; its weights or its dtype are broken")
    difference = float((expected - found).abs().max() / expected.abs().max())
    if not difference <= rounding[expected.dtype]:
        raise InputError(
            f"{what} changed the logits by {difference:.2g} of their size; its Jacobian would mean nothing"
        )


def _refuse_if_too_large(model: TransformerBridge, embedded: Float[Tensor, "pos d_model"]) -> None:
    """Every J_i twice (the blocks and their join), and the graph: about four matrices a head and layer, ten vectors a token."""
    pos, d_model = embedded.shape
    rows, cfg = min(_ROWS.get(embedded.device.type, 4), d_model), model.cfg
    graph = rows * pos * cfg.n_layers * (4 * cfg.n_heads * pos + 10 * d_model + 4 * int(cfg.d_mlp or 4 * d_model))
    needed = (2 * pos * d_model**2 + graph) * embedded.element_size()
    free = torch.cuda.mem_get_info()[0] if embedded.is_cuda else psutil.virtual_memory().available
    if needed > 0.8 * free:
        raise InputError(
            f"the Jacobians of {pos} tokens at d_model {d_model} need about {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free; shorten the prompt, or predict with path_sum(variants=['second-moment'])"
        )


def _jacobian_norms(
    model: TransformerBridge,
    ids: Int[Tensor, " pos"],
    embedded: Float[Tensor, "pos d_model"],
    plain: Float[Tensor, "1 pos d_vocab"],
    linearisation: str,
    progress: Progress | None,
) -> tuple[Float[Tensor, " pos"], Float[Tensor, " pos"]]:
    with torch.no_grad(), freezing(model, linearisation):
        _require_same_logits(plain, model(ids[None]), f"the {linearisation} forward pass", _FROZEN_ROUNDING)
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
        operator_norm=operator.cpu().double().numpy(),
        frobenius_norm=frobenius.cpu().double().numpy(),
    )
