"""The exact Jacobian d y_n / d v_i for every i: this package against the three ways that one would
write by hand; and what a prediction costs beside a plain forward pass.

Share of the machine's rate: numerator, the dense floating-point operations of one full backward
pass times d_model, the same for every route; denominator, the best float32 2048^3 product in the
same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from benchmarks.timing import in_turn
from ostools import hooks
from ostools.measure.jacobian import norms as exact
from ostools.measure.jacobian.linearisation_run import memory_plan
from ostools.measure.jacobian.linearise import Linearised
from ostools.models import Prompt
from ostools.models.shape import Shape
from tests.checkpoints import tiny_model

ROUNDS = 3


def _last_token(model: TransformerBridge, embedded: Tensor) -> Tensor:
    with hooks.capture(model, "final_norm", detach=False) as record:
        model(embedded, start_at_layer=0)
    return record["final_norm"][:, -1]


def _row_loop(model: TransformerBridge, embedded: Tensor) -> Tensor:
    x = embedded[None].clone().requires_grad_(True)
    y = _last_token(model, x)[0]
    return torch.stack(
        [torch.autograd.grad(component, x, retain_graph=True)[0][0] for component in y], dim=1
    )


def _functional(model: TransformerBridge, embedded: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(lambda x: _last_token(model, x[None])[0], embedded)
    return torch.as_tensor(found).transpose(0, 1)


def _grads_batched(model: TransformerBridge, embedded: Tensor, rows: int = 8) -> Tensor:
    x = embedded[None].clone().requires_grad_(True)
    y = _last_token(model, x)[0]
    eye = torch.eye(len(y))
    blocks = [
        torch.autograd.grad(y, x, eye[k : k + rows], retain_graph=True, is_grads_batched=True)[0][
            :, 0
        ]
        for k in range(0, len(y), rows)
    ]
    return torch.cat(blocks).transpose(0, 1)


def _linearised(model: TransformerBridge, ids: Tensor) -> Tensor:
    """What `sensitivity` does: one pass, whose graph is walked with as many rows at a time as its
    plan has them.
    """
    chunk = memory_plan(Shape.of(model), len(ids), method="exact").chunk
    embedded = _embedded(model, ids)
    return exact.exact_jacobians(Linearised(model, embedded, chunk=chunk).pull, embedded)


def _embedded(model: TransformerBridge, ids: Tensor) -> Tensor:
    return model.input_to_embed(ids[None])[0][0].detach()


BY_HAND: dict[str, Callable[[TransformerBridge, Tensor], Tensor]] = {
    "loop over rows": _row_loop,
    "autograd.functional.jacobian": _functional,
    "is_grads_batched, 8 rows": _grads_batched,
}


ROUTES: dict[str, Callable[[TransformerBridge, Tensor], Tensor]] = {
    "ostools": _linearised,
    **{
        name: lambda model, ids, route=route: route(model, _embedded(model, ids))
        for name, route in BY_HAND.items()
    },
}


def _flops(model: TransformerBridge, ids: Tensor) -> int:
    """One full backward pass, counted by torch; times d_model."""
    x = _embedded(model, ids)[None].clone().requires_grad_(True)
    y = _last_token(model, x)[0]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(y[0], x)
    return counter.get_total_flops() * len(y)


def _matmul_rate() -> float:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 2048**3 / best


def _compare(title: str, model: TransformerBridge, ids: Tensor) -> None:
    results = {name: route(model, ids) for name, route in ROUTES.items()}
    reference = results["loop over rows"]
    for name, found in results.items():
        torch.testing.assert_close(
            found, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()), msg=name
        )
    seconds = in_turn(
        {name: lambda route=route: route(model, ids) for name, route in ROUTES.items()}, ROUNDS
    )
    flops, rate = _flops(model, ids), _matmul_rate()
    print(
        f"\nexact sensitivity, {title}: {flops / 1e9:.0f} GFLOP, matmul rate {rate / 1e9:.0f} GFLOP/s"
    )
    for name, taken in seconds.items():
        speedup = taken / seconds["ostools"]
        print(
            f"  {name:30s} {taken:8.2f} s   {flops / taken / rate:5.2f} of the matmul rate   {speedup:5.2f}x ostools' time"
        )


def _path_sums(title: str, model: TransformerBridge, pos: int, rounds: int) -> None:
    """Each path sum in plain forward passes, and as a share of the exact profile of the real
    derivative.
    """
    prompt = Prompt.from_ids(
        model, torch.randint(10, 200, (pos,), generator=torch.Generator().manual_seed(0)).tolist()
    )

    def plain() -> None:
        with torch.no_grad():
            model(prompt.ids[None], logits_to_keep=1)

    runs: dict[str, Callable[[], object]] = {"a plain forward pass": plain}
    for variant in ("local", "theorem-5.1"):
        runs[variant] = lambda variant=variant: ost.bounds(model, prompt, variants=variant)
    exactly = "sensitivity, exact"
    runs[exactly] = lambda: ost.sensitivity(model, prompt, linearisations=["full"])
    for run in runs.values():
        run()
    seconds = in_turn(runs, rounds)
    print(f"\npath sums, {title}, {pos} tokens")
    for name, taken in seconds.items():
        passes, share = taken / seconds["a plain forward pass"], taken / seconds[exactly]
        print(
            f"  {name:30s} {taken:8.3f} s   {passes:6.1f} plain passes   {share:5.2f} of the exact profile"
        )


def main() -> None:
    embedded_model = ost.load_model(device="cpu")
    ids = torch.randint(10, 200, (128,), generator=torch.Generator().manual_seed(0))
    _compare("embedded model, 128 tokens", embedded_model, ids)
    for pos in (64, 256):
        _path_sums("embedded model", embedded_model, pos, 5)
    wide = tiny_model(
        "gemma",
        d_model=256,
        n_layers=6,
        n_heads=8,
        n_key_value_heads=1,
        d_head=32,
        d_mlp=1024,
        context=512,
    )
    wider = tiny_model(
        "gemma", d_model=512, n_layers=4, n_heads=8, n_key_value_heads=4, d_head=64, d_mlp=2048
    )
    _path_sums("random Gemma, 4 layers, d_model 512", wider, 64, ROUNDS)
    ids = torch.randint(10, 200, (256,), generator=torch.Generator().manual_seed(0))
    _compare("random Gemma, 6 layers, d_model 256, 256 tokens", wide, ids)


if __name__ == "__main__":
    main()
