"""What would make a certified bound tighter: figures of docs/findings/tighter-bounds.md, median log10 of bound / measured.

    python -m benchmarks.tighter_bounds TEXT_FILE [MODEL_DIRECTORY]        (without a directory: the embedded model)

Trials, not bounds to use: most are computed from the exact Jacobian, to show the most that an idea could give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
import ostools as ost
from benchmarks.timing import in_turn
from ostools.measure import jacobian
from ostools.measure.formulas.forward import forward
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.jacobian.sensitivity import freezing
from ostools.measure.paths import certified
from ostools.measure.paths.block_view import BlockView
from ostools.models import Prompt, encode
from ostools.theory.path_sum import edges
from ostools.theory.statistics.estimates import Sketch, orthonormal_rows

TOKENS, PATHS, REPEATS, ROWS = 64, 400, 100, 6
norm = edges.spectral_norms


def exact_jacobians(model: TransformerBridge, prompt: Prompt) -> list[Tensor]:
    """d y_n / d v_i^(l) from l = L down to 0, frozen, [pos, d_model, d_model]."""
    layers = range(int(model.cfg.n_layers), -1, -1)
    pulled = Linearised(model, prompt.ids, "frozen", layers).pull(torch.eye(int(model.cfg.d_model)))
    return list(pulled.double().transpose(0, 1).split(len(prompt.ids)))


def exact_above(exact: list[Tensor], views: list[BlockView], blocks: int) -> Tensor:
    """The last blocks exactly, `edge` norms below."""
    row = norm(exact[blocks])
    for view in views[blocks:]:
        row = row @ certified.edge(view)
    return row


def floors(front: Tensor, views: list[BlockView], generator: torch.Generator) -> Tensor:
    """sum over paths of ||the exact product along the path||: below it no path sum can go, whatever its norms.

    Paths are drawn with the probabilities of the `edge` path sum; value / probability is unbiased.
    """
    n = len(views[0].scales)
    above, blocks = torch.eye(n, dtype=torch.float64)[-1], []
    for view in views:
        heads = view.block.weights.left @ view.block.weights.right
        edge, pattern = certified.edge(view), view.block.pattern / view.scales
        blocks.insert(0, (above[:, None] * edge, edge, pattern, heads, view.rows(slice(None))))
        above = above @ edge
    found = []
    for start in range(n):
        at, product, chance = torch.full((PATHS,), start), torch.eye(len(front), dtype=torch.float64), 1.0
        for likely, edge, pattern, heads, rows in blocks:
            to = torch.multinomial(likely[:, at].T, 1, generator=generator)[:, 0]
            moved = torch.einsum("hs,hab->sab", pattern[:, to, at], heads) @ product
            product = rows[to] @ (moved + (to == at)[:, None, None] * product)
            chance, at = chance * edge[to, at], to
        found.append(above[start] * (norm(front @ product) / chance).mean())
    return torch.stack(found)


def trials(model: TransformerBridge, prompt: Prompt) -> Iterator[tuple[str, Tensor]]:
    """Each trial's log10 of bound / measured, token by token."""
    with torch.no_grad():
        exact, views = (
            exact_jacobians(model, prompt),
            [BlockView(b, "svd") for b in forward(model, prompt.ids).blocks()],
        )
    target, generator = norm(exact[-1]), torch.Generator().manual_seed(0)
    for blocks in range(len(exact)):
        yield f"last {blocks} blocks exactly, `edge` below", (exact_above(exact, views, blocks) / target).log10()
    yield "floor of every path sum", (floors(exact[0][-1], views, generator) / target).log10()
    for level, tokens in ((0.05, "each token"), (0.05 / len(target), "all tokens")):
        draws = [orthonormal_rows(ROWS, exact[0].shape[-1], generator) for _ in range(REPEATS)]
        limits = [upper_end(torch.einsum("ka,iab->kib", rows, exact[-1]), level) for rows in draws]
        yield f"limit from {ROWS} cotangents, 95%, {tokens}", (torch.stack(limits).sqrt() / target).log10()


def upper_end(rows: Tensor, level: float) -> Tensor:
    """||J_i||_2^2 <= ||J_i||_F^2, which is above this with that probability."""
    return Sketch.of(rows).trace_interval(2 * level).upper


def limit(model: TransformerBridge, embedded: Tensor, copies: int = 2) -> Tensor:
    """The same limit by autograd: one forward pass, ROWS / copies backward passes."""
    start = embedded.expand(copies, -1, -1).clone().requires_grad_(True)
    with freezing(model, "frozen"), hooks.capture(model, "final_norm", detach=False) as record:
        model(start, start_at_layer=0, logits_to_keep=1)
    last = record["final_norm"][:, -1]
    drawn = orthonormal_rows(ROWS, last.shape[-1], torch.Generator().manual_seed(0)).to(last).split(copies)
    rows = [torch.autograd.grad(last, start, cotangents, retain_graph=True)[0] for cotangents in drawn]
    return upper_end(torch.cat(rows), 0.05)


def main(text: str, directory: str | None) -> None:
    model = ost.load_model(directory, device="cpu") if directory else ost.load_model(device="cpu")
    prompt = Prompt.from_ids(model, encode(model, Path(text).read_text(encoding="utf-8")[:300]).ids[:TOKENS].tolist())
    for name, digits in trials(model, prompt):
        print(f"  {name:50s} {float(digits.median()):6.2f}")
    embedded = model.input_to_embed(prompt.ids[None])[0][0].detach()
    contenders = {
        "limit": lambda: limit(model, embedded),
        "Jacobian": lambda: jacobian(model, embedded, freeze=freezing(model, "frozen")),
        "local": lambda: ost.path_sum(model, prompt, variants="local"),
    }
    for run in contenders.values():
        run()
    print({name: f"{taken * 1e3:.0f} ms" for name, taken in in_turn(contenders, 9).items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
