"""Spectra of the attention that a model really has: Lemmas B.6 and B.7 and Proposition 5.2 on its
patterns.

Purpose: how fast the pattern alone, and its lazy version (A + I) / 2, would move all mass to the
first token. Cost: one forward pass, the mean
patterns (layers x n^2 numbers) and O(layers n^3) for their products. The model's heads differ; the
mean over heads is the paper's alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError, Position, TransformerBridge
from ostools.ground.errors import OF_A_LEFT_HOOK
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import (
    captured_pass,
    edits_beyond_patterns,
    full_precision,
)
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.results import Chart, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory import lemmas as theory

MATRICES = ("pattern", "lazy")
# Softmax rounds each weight; a row of n of them sums to 1 within a few roundings.
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}
_Layers = dict[str, list[Float[Tensor, "query key"]]]


@dataclass(frozen=True, eq=False)
class Spectra(Result):
    """The spectra of one prompt's patterns. `matrix`: "pattern" (A_l) or "lazy", (A_l + I) / 2.

    `frame`, one row a layer, head ("mean": the mean over heads, or a head's number), matrix and
    quantity, `value`: second_eigenvalue (max_{i>=2} of the diagonal: the rate), multiplicity (how
    often 1 is an eigenvalue; 1 is Lemma B.6's simple one), first_mass_last (the last token's weight
    on the first), first_mass_mean (its mean over all tokens), effective_tokens (exp of the entropy
    of the last token's row).

    `depth`, one row a matrix and number of `blocks` multiplied, from the embeddings up (mean over
    heads): first_mass_last, first_mass_mean, effective_tokens, second_eigenvalue of the product,
    defect (from row-stochastic and triangular: rounding).

    `limit`, one row a matrix, `layer` (that block's matrix repeated; "all": the product of the
    whole stack) and `power`: remainder (1 - mass on the first token, of the last one),
    observed_rate (remainder / remainder one power before; NaN where nothing is left),
    predicted_rate (the second eigenvalue).
    """

    tables: ClassVar = (TableHead("depth"),)

    depth: pd.DataFrame
    limit: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.spectra import spectra_chart

        return spectra_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import spectra_findings

        return spectra_findings(self)


@measurement(
    command="bounds spectra",
    examples=('--prompt "The capital of France is" --out spectra.png',),
    memory=["patterns"],
    in_chunks=True,
)
def spectra(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    powers: int = 64,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Spectra:
    """Eigenvalues of the patterns, the mass that their products move to the first token, and the
    limit of their powers.

    Args:
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the patterns are those under its hooks. It has to change the prompt or a
            logit, or it is refused.
        powers: how often each block's matrix, and that of the whole stack, is repeated (L in
            Proposition 5.2).

    Lemma B.6, B.7 and Proposition 5.2 (arXiv 2406.04267) are about row-stochastic triangular
    matrices. Raises `InputError` for patterns with rows that do not sum to 1 (an edit has cut
    edges), for edits that the pattern does not show (ablated heads), for prompts of one token, and
    for numbers that are not finite.
    """
    if powers < 2:
        raise InputError(
            f"spectra: expected powers of at least 2, found {powers}: a rate compares two of them"
        )
    mitigated = MitigatedPrompts.of("spectra", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    if len(tokens.ids) < 2:
        raise InputError(
            "spectra: expected a prompt of at least two tokens, found one: the first token has no "
            "other"
        )
    provenance = Provenance.collect(
        model, tuple(tokens.ids.tolist()), powers=powers, **mitigated.described(model)
    )
    work = full_precision(model, "spectra")
    with mitigated.acting(work):
        if unseen := edits_beyond_patterns(work):
            raise InputError(
                f"spectra: the patterns do not show the active edit {unseen[0].kind!r} at "
                f"{unseen[0].where}, so that their "
                f"products would describe another network; leave the edit's block{OF_A_LEFT_HOOK}"
            )
        rows, patterns = _patterns(work, tokens)
    layers = {"pattern": patterns, "lazy": [theory.lazy(pattern) for pattern in patterns]}
    return Spectra(pd.DataFrame(rows), provenance, _depth(layers), _limit(layers, powers))


def _patterns(
    model: TransformerBridge, tokens: Prompt
) -> tuple[list[dict[str, object]], list[Float[Tensor, "query key"]]]:
    """Rows of every head and of their mean, and the mean patterns; one layer's heads are in memory
    at a time.
    """
    rows: list[dict[str, object]] = []

    def reduce(tensor: Tensor, layer: int | None) -> Tensor:
        rounding = torch.finfo(tensor.dtype).eps
        pattern = _checked(tensor[0].double(), _ROUNDING[tensor.dtype], f"layer {layer}")
        mean = pattern.mean(0)
        heads = {"mean": mean, **{str(head): matrix for head, matrix in enumerate(pattern)}}
        for head, matrix in heads.items():
            # What the dtype rounds to 1 in A is half as far from 1 in (A + I) / 2.
            for name, of, within in (
                ("pattern", matrix, rounding),
                ("lazy", theory.lazy(matrix), rounding / 2),
            ):
                rows.extend(
                    {
                        "layer": layer,
                        "head": head,
                        "matrix": name,
                        "quantity": quantity,
                        "value": value,
                    }
                    for quantity, value in _quantities(of, within).items()
                )
        return mean

    patterns = captured_pass(model, tokens.ids[None], "pattern", reduce=reduce)[0]["pattern"]
    return rows, [patterns[layer] for layer in range(int(model.cfg.n_layers))]


def _checked(
    pattern: Float[Tensor, "*head query key"], rounding: float, where: str
) -> Float[Tensor, "*head query key"]:
    """The pattern, if the lemmas are about it."""
    if not bool(torch.isfinite(pattern).all()):
        raise InputError(f"spectra: the attention pattern of {where} is not finite")
    if (defect := theory.defect(pattern)) > rounding:
        raise InputError(
            "spectra: expected patterns with rows that sum to 1 and no weight on later tokens, "
            f"found {where} off by "
            f"{defect:.2g}: an edit of the forward pass cuts weights out (ablate_edges: use "
            "method='renormalise')"
        )
    return pattern


def _quantities(matrix: Float[Tensor, "query key"], rounding: float) -> dict[str, float]:
    return {
        "second_eigenvalue": float(theory.second_eigenvalue(matrix)),
        "multiplicity": float(theory.multiplicity(matrix, rounding)),
        **_mass(matrix),
    }


def _mass(matrix: Float[Tensor, "query key"]) -> dict[str, float]:
    return {
        "first_mass_last": float(matrix[-1, 0]),
        "first_mass_mean": float(matrix[:, 0].mean()),
        "effective_tokens": float(theory.effective_tokens(matrix[-1])),
    }


def _depth(layers: _Layers) -> pd.DataFrame:
    """Lemma B.7: products of the patterns, block after block."""
    rows = [
        {
            "matrix": name,
            "blocks": blocks,
            **_mass(product),
            "second_eigenvalue": float(theory.second_eigenvalue(product)),
            "defect": theory.defect(product),
        }
        for name in MATRICES
        for blocks, product in enumerate(theory.upward(layers[name]), start=1)
    ]
    return pd.DataFrame(rows)


def _limit(layers: _Layers, powers: int) -> pd.DataFrame:
    """Proposition 5.2: one matrix again and again."""
    tables = []
    for name in MATRICES:
        *_, stack = theory.upward(layers[name])
        repeated = {str(layer): matrix for layer, matrix in enumerate(layers[name])}
        for layer, matrix in (repeated | {"all": stack}).items():
            remainders = theory.remainders(matrix, powers).cpu().numpy()
            before = np.concatenate([[1.0], remainders[:-1]])
            with np.errstate(divide="ignore", invalid="ignore"):
                observed_rate = np.where(before > 0, remainders / before, np.nan)
            table = pd.DataFrame({"matrix": name, "layer": layer, "power": range(1, powers + 1)})
            rate = float(theory.second_eigenvalue(matrix))
            rates = {"observed_rate": observed_rate, "predicted_rate": rate}
            tables.append(table.assign(remainder=remainders, **rates))
    return pd.concat(tables, ignore_index=True)
