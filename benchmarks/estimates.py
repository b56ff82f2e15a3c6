"""Estimated sensitivity against the exact one: passes, time, errors, widths, and how often the
intervals hold.

    python -m benchmarks.estimates

1. Trained weights (the embedded model), 500 repetitions on the exact Jacobians: coverage of the
worst token. 2. A Llama of d_model 2048, two blocks, whose weights have the singular values k^-0.75
of trained ones: the same passes, all 2048 of them against those of the estimate. The exact part
takes three minutes on one free core.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.hooks.freeze import holding
from ostools.measure import jacobian
from ostools.measure.jacobian import norms as exact
from ostools.measure.jacobian.linearise import FROZEN_PARTS, Linearised
from ostools.measure.jacobian.norms import BATCH, COTANGENTS, Pull, SketchedNorms, sketched
from ostools.models import encode
from tests.checkpoints import tiny_model

TEXT = (
    "The old man had two sons. The elder went to sea, and the younger stayed at home to mind the garden. Every evening "
    "they wrote to one another, 12 lines or 3, and what they wrote was kept in a box beside the door."
)
REPETITIONS, SEEDS, D_MODEL, HEADS, TOKENS = 500, 3, 2048, 16, 32


@dataclass
class Dense:
    """Matrices J_i that are known."""

    jacobians: Tensor

    def pull(self, cotangents: Tensor, progress: object = None) -> Tensor:
        pos, d_out, d_model = self.jacobians.shape
        flat = self.jacobians.transpose(0, 1).reshape(d_out, pos * d_model)
        return (cotangents.to(flat) @ flat).view(len(cotangents), pos, d_model)


def estimated(pull: Pull, like: Tensor, cotangents: int | None, seed: int) -> SketchedNorms:
    return sketched(pull, like, torch.Generator().manual_seed(seed), cotangents=cotangents)


def spectral_llama(power: float) -> TransformerBridge:
    """Random weights of the usual size, the k-th singular value of each proportional to k^-power
    (nearly).
    """
    model = tiny_model(
        "llama",
        d_model=D_MODEL,
        n_heads=HEADS,
        n_key_value_heads=HEADS,
        d_head=128,
        d_mlp=2 * D_MODEL,
    )
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.original_model.named_parameters():
        if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:
            rank = min(weight.shape)
            left = (
                torch.randn(weight.shape[0], rank, generator=generator)
                * torch.arange(1.0, rank + 1) ** -power
            )
            made = left @ torch.randn(rank, weight.shape[1], generator=generator)
            weight.data.copy_(made * (weight.norm() / made.norm()))
    return model


def _report(title: str, true: tuple[Tensor, Tensor], found: list[SketchedNorms]) -> None:
    operator, frobenius = true

    def stack(column: str) -> Tensor:
        return torch.stack([getattr(each, column) for each in found])

    held = (stack("frobenius_lower") <= frobenius) & (frobenius <= stack("frobenius_upper"))
    below = stack("operator_lower") / operator
    error = (stack("frobenius") / frobenius - 1).abs()
    print(
        f"\nestimated sensitivity, {title}: {len(found)} runs, {statistics.median(e.rows_seen for e in found):.0f} rows"
    )
    print(f"  Frobenius norm: error median {error.median():.4f}, largest {error.max():.4f}")
    print(
        f"    95% interval holds: all {held.double().mean():.3f}, worst token {held.double().mean(0).min():.3f}"
    )
    print(
        f"    half-width of the median token, median: {statistics.median(e.account['half_width'] for e in found):.3f}"
    )
    print(f"  operator norm: lower / exact median {below.median():.3f}, smallest {below.min():.3f}")


def _trained() -> None:
    model = ost.load_model(device="cpu")
    ids = encode(model, TEXT).ids
    embedded = model.input_to_embed(ids[None])[0][0].detach()
    for linearisation in ("full", "frozen"):
        jacobians = jacobian(
            model, embedded, freeze=holding(model, [FROZEN_PARTS[linearisation]])
        ).double()
        true = exact.exact_norms(jacobians, embedded.device)
        for cotangents in (COTANGENTS, None):
            found = [
                estimated(Dense(jacobians).pull, embedded, cotangents, seed)
                for seed in range(REPETITIONS)
            ]
            _report(f"embedded model, {len(ids)} tokens, {linearisation}", true, found)


def _wide() -> None:
    model = spectral_llama(0.75)
    ids = torch.randint(10, 200, (TOKENS,), generator=torch.Generator().manual_seed(0))
    embedded = model.input_to_embed(ids[None])[0][0].detach()
    linear = Linearised(model, embedded, chunk=BATCH)
    found, seconds = [], []
    for seed in range(SEEDS):
        start = time.process_time()
        found.append(estimated(linear.pull, embedded, None, seed))
        seconds.append(time.process_time() - start)
    start = time.process_time()
    rows = exact.exact_jacobians(linear.pull, embedded)
    passed = time.process_time() - start
    true = exact.exact_norms(rows, embedded.device)
    whole, once = time.process_time() - start, statistics.median(seconds)
    _report(f"Llama, 2 blocks, d_model {D_MODEL}, {TOKENS} tokens", true, found)
    print(
        f"  CPU {once:.1f} s, all rows {passed:.0f} s ({passed / once:.1f}x), with their norms {whole:.0f} s"
    )


def main() -> None:
    _trained()
    _wide()


if __name__ == "__main__":
    main()
