"""Measured sensitivity: the Jacobian of the last token with respect to every other, exact or estimated.

Purpose: J_i = d y_n / d v_i^(l), a d_model x d_model matrix for every token i, its operator norm (the one that Theorem 5.1
bounds) and its Frobenius norm, in up to four linearisations, at the embeddings (l = 0) or at every layer. Cost, exact:
d_model backward passes over the prompt, whatever its length and however many layers, and n d_model^2 numbers a layer;
estimated: some 64 passes, whatever d_model. The cheaper choice is `path_sum(variants="second-moment")`: a prediction of the
Frobenius norms out of one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.names import checked_names
from ostools.ground.progress import Progress, part_of
from ostools.measure.jacobian import exact
from ostools.measure.jacobian.estimate import check_settings
from ostools.measure.jacobian.linearisations import LINEARISATIONS, freezing
from ostools.measure.jacobian.one_linearisation import METHODS, MeasuredNorms, OneLinearisation, Settings, checked_start
from ostools.measure.jacobian.routes import AutogradRoute
from ostools.measure.passes.arithmetic import full_precision, true_arithmetic
from ostools.measure.passes.strips import strips_where_long
from ostools.measure.prompts import as_prompt, checked_layers, token_columns
from ostools.models import Prompt
from ostools.results import Provenance, Result

# Prompts carried side by side through one backward pass: each has its own cotangent. CPUs like small blocks.
_ROWS = {"cpu": 4, "cuda": 32, "mps": 16}


@dataclass(frozen=True, eq=False)
class Sensitivity(Result):
    """Measured norms: one row is one token at one layer under one linearisation.

    Columns: position, token_id, token, linearisation (full | frozen | frozen-attention | frozen-norm), layer (l of v_i^(l):
    0 the embedded token, L what the last block leaves), method ("exact" | "estimate"), operator_norm, operator_lower,
    operator_upper, frobenius_norm, frobenius_lower, frobenius_upper; pure numbers, change of y_n per change of v_i^(l).

    Exact rows have both limits equal to the norm. An estimate's Frobenius norm has a confidence interval a token, and its
    operator norm a bracket: `operator_lower` is a true lower bound and stands as `operator_norm` too, `operator_upper` holds
    at the confidence of the run. `provenance.parameters["runs"]` says how each linearisation was computed and checked.
    """


def sensitivity(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    linearisations: Sequence[str] = ("full", "frozen"),
    layers: Literal["all"] | Iterable[int] = (0,),
    method: str = "auto",
    relative_error: float = 0.1,
    confidence: float = 0.95,
    max_memory: int | None = None,
    seed: int = 0,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """||J_i||_2 and ||J_i||_F of J_i = d y_n / d v_i^(l) for every token i of the prompt, n its last token.

    v_i^(0) is the embedded token (after Gemma's scaling, before any block), y_n the last token's residual stream after the
    final norm: the quantity of Theorem 5.1 (arXiv 2406.04267). By reverse-mode differentiation, in float32 (in float64
    throughout for a float64 model; the weights of a 16-bit model are cast to float32 where they are read): a block is
    linearised, matrix products carry all rows through it, and it is dropped; a model, or an edit, that the formulas do not
    describe goes through autograd.

    Args:
        linearisations: what is held constant. `full`: nothing, the real derivative. `frozen`: attention patterns and norm
            scales, the theorem's two assumptions. `frozen-attention`, `frozen-norm`: one of the two.
        layers: which residual streams, all out of the same passes: 0 ... L, or "all".
        method: "exact"; "estimate": norms from random cotangents, each with its interval; "auto": exact unless it does not
            fit or costs over 16 times the passes. The column `method` and the provenance say which.
        relative_error, confidence, seed: of an estimate: it stops when every Frobenius interval is that narrow.
        max_memory: bytes that the run may take beside the model; what is free by default.
        announce: called with each linearisation's forecast of its memory before it runs.
        progress: called as progress(done, total), in percent, after each block of rows.

    Checked on every run, and refused with `InputError` where it fails: the pass from embeddings and every frozen pass give
    the logits of the plain pass; the Jacobian at the lowest layer agrees with finite differences of the network, or with
    autograd where those cannot decide; every number is finite; the forecast fits into the memory. Active edits are
    respected. A long prompt (a block's pattern above 64 MiB) goes through attention in strips of queries, which are made again
    wherever they are needed; every strip is checked once. A replaced pattern is refused there. Source: docs/theory.md 2.
    """
    settings = Settings(method, relative_error, confidence, max_memory, seed)
    names, chosen = _validated(model, linearisations, layers, settings)
    tokens = as_prompt(model, prompt)
    runs: dict[str, Any] = {}
    asked: dict[str, Any] = {"linearisations": names, "layers": chosen, **asdict(settings)}
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **asked, runs=runs)
    work = full_precision(model, "sensitivity")
    tables = []
    with torch.inference_mode(False), strips_where_long(work, len(tokens.ids)), true_arithmetic(work):
        start = checked_start(work, tokens.ids.to(next(work.parameters()).device))
        for index, name in enumerate(names):
            told = part_of(progress, index, index + 1, len(names), units=100)
            found = OneLinearisation(work, start, name, chosen, settings).measured(announce, told)
            runs[name] = found.account
            tables.extend(_tables(tokens, name, chosen, found))
    return Sensitivity(pd.concat(tables, ignore_index=True), provenance)


def _validated(
    model: TransformerBridge,
    linearisations: Sequence[str],
    layers: Literal["all"] | Iterable[int],
    settings: Settings,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of the linearisations, and the layers. Refuses, with `InputError`, what cannot be measured."""
    names = checked_names("linearisation", linearisations, LINEARISATIONS)
    if settings.method not in METHODS:
        raise unknown_name("method", settings.method, METHODS)
    if any(edit.kind == "freeze" for edit in hooks.active_edits(model)):
        raise InputError(
            "sensitivity freezes what each linearisation asks for; leave the block of hooks.frozen() first"
        )
    check_settings(settings.relative_error, settings.confidence)
    return names, checked_layers(model, layers)


def jacobian(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    *,
    freeze: AbstractContextManager[None] | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "pos d_out d_model"]:
    """J_i = d y_n / d v_i^(0) for every position i by autograd; row k of J_i is the gradient of component k of y_n.

    The generic route and the oracle of the faster one: one graph over `rows` copies of the prompt, walked backwards
    d_model / rows times; copy b carries the cotangent e_{k+b}, so that a pass yields `rows` rows of every J_i. `freeze` is
    entered for the forward pass only. In the model's own dtype; refused in 16 bits, where it would be off by percents.
    """
    if embedded.dtype not in (torch.float32, torch.float64):
        raise InputError(f"jacobian: expected float32 or float64, found {embedded.dtype}; cast a copy of the model")
    d_model = embedded.shape[-1]
    rows = min(_ROWS.get(embedded.device.type, 4), d_model)
    route = AutogradRoute(model, embedded, freeze=freeze, rows=rows)
    with exact.jacobians(route, len(embedded), embedded, None, progress) as found:
        return found


def _tables(tokens: Prompt, linearisation: str, layers: Sequence[int], found: MeasuredNorms) -> list[pd.DataFrame]:
    """One table a layer; the measured places are the tokens of each layer, layer by layer."""
    pos = len(tokens.ids)
    norms = {name: values.view(-1, pos) for name, values in found.columns.items()}
    return [
        token_columns(tokens).assign(
            linearisation=linearisation,
            layer=layer,
            method=found.method,
            **{name: values[row].numpy() for name, values in norms.items()},
        )
        for row, layer in enumerate(layers)
    ]


__all__ = ["LINEARISATIONS", "Sensitivity", "freezing", "jacobian", "sensitivity"]
