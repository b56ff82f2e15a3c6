"""The check that comes with every measured Jacobian: the network itself, moved a little, moves as J says.

    (y_n(v + h u e_i) - y_n(v - h u e_i)) / 2h  =  J_i u + O(h^2)

for a few random positions i and directions u, with patterns and norm scales imposed where the linearisation holds them. No
derivative is taken, so that an error in the formulas, in autograd or in a hook's gradient cannot hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks.register import Order, attached
from hooks.sites import points
from ostools.ground.errors import InputError
from ostools.measure.jacobian.linearisations import HELD
from ostools.measure.passes.streams import run_from, unread

# Pairs (i, u) -> J_i u, all at once: one pass through the network.
Product = Callable[[Sequence[int], Float[Tensor, "pair d_model"]], Float[Tensor, "pair d_out"]]

PAIRS = 3
"""Random (position, direction) pairs of one certificate."""
# Steps relative to |v_i|: the one whose truncation and rounding are smallest together is taken. Sharp attention needs small
# ones, a token that hardly matters large ones.
_STEPS = {torch.float32: (3e-2, 1e-2, 3e-3, 1e-3, 3e-4), torch.float64: (1e-3, 1e-4, 1e-5)}
# What a derivative may be off beside that: float32 Jacobians agree with float64 ones to 1e-4.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 1e-5}
# Rounding of y_n over its size, what a difference of two of them starts from.
_NOISE = {torch.float32: 2e-6, torch.float64: 1e-14}
# Scores of one pass over moved prompts: a long prompt goes through alone.
_SQUARES = 1 << 21
_SEED = 0
ADDS_UP = {torch.float32: 1e-5, torch.float64: 1e-12}
"""What the parts of a linear network may be off y_n, relative to the sizes of what is added."""


@dataclass(frozen=True)
class Certificate:
    """`error`: the largest |finite difference - J u| / |J u| among the `informative` of the `pairs` tried.

    A pair says something where rounding and truncation leave an error bar below a tenth of J u; in float32 a token that
    hardly matters, or a network at the edge of a step, may not.
    """

    error: float
    informative: int
    pairs: int


def certify(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    linearisation: str,
    product: Product,
    layer: int = 0,
    towards: Float[Tensor, " d_model"] | None = None,
) -> Certificate:
    """Compare `product` = J_i u, J_i = d y_n / d v_i^(layer), with finite differences; `InputError` where they differ.

    With `towards` = w the product is w^T J_i u, and the differences are of w^T y_n.
    The last token is always among the positions. Cost: 10 forward passes a pair (6 in float64), from that layer on.
    """
    generator = torch.Generator().manual_seed(_SEED)
    pos, d_model = embedded.shape
    stream = stream_of(model, embedded, layer)

    def network(moved: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row d_model"]:
        return held_last_tokens(model, embedded, moved, linearisation, layer)

    positions = [pos - 1, *torch.randint(pos, (PAIRS - 1,), generator=generator).tolist()]
    drawn = [torch.randn(d_model, generator=generator, dtype=torch.float64).to(embedded) for _ in positions]
    directions = torch.stack([direction / direction.norm() for direction in drawn])
    errors, what = [], "y_n" if towards is None else "w^T y_n"
    for position, direction, expected in zip(
        positions, directions, product(positions, directions).double(), strict=True
    ):
        found, bar = _difference(network, stream, position, direction, towards)
        error, size = float((found - expected).norm()), float(expected.norm())
        if not error <= 4 * bar + _TOLERANCE[embedded.dtype] * size:
            raise InputError(
                f"the {linearisation} Jacobian at position {position} failed its check: moving the token by a small step "
                f"moves {what} by {float(found.norm()):.4g} a unit, J says {size:.4g}, and they differ by {error:.2g} "
                f"(error bar {bar:.2g}); its norms are not to be trusted"
            )
        if bar < 0.1 * size:
            errors.append(error / size)
    return Certificate(max(errors, default=float("nan")), len(errors), len(positions))


def certify_sum(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    linearisation: str,
    layer: int,
    total: Callable[[Float[Tensor, "pos d_model"]], Float[Tensor, " d_model"]],
    within: float | None = None,
) -> float:
    """sum_i J_i v_i + bias terms = y_n, for a linearisation that holds all parts; the error, relative to what is added.

    `total` gives sum_i J_i v_i of any v. The bias terms are what the network, held at this prompt, makes of v = 0: by no
    formula. y_n is the plain network's. Raises `InputError` where they do not add up `within` rounding, that of the dtype if
    none is given. Cost: 4 forward passes.
    """
    stream = stream_of(model, embedded, layer)
    parts, bias = total(stream).double(), bias_terms(model, embedded, linearisation, layer).double()
    y = last_token(model, embedded).double()
    error = float((parts + bias - y).norm() / (parts.norm() + bias.norm() + y.norm()))
    require_adds_up(error, within or ADDS_UP[embedded.dtype], "sum_i J_i v_i + bias terms", "y_n")
    return error


def require_adds_up(error: float, within: float, parts: str, whole: str) -> None:
    """Refuse, with `InputError`, a sum that is off by more than rounding of its terms."""
    if not error <= within:
        raise InputError(
            f"the detached linearisation failed its check: {parts} differs from {whole} by {error:.2g} of what is added, "
            f"expected {within:g} at most. Either an edit is active that the held network does not repeat, or rounding in "
            "float32 is too large: leave the edit's block, or load the model with dtype='float64'"
        )


def bias_terms(
    model: TransformerBridge, embedded: Float[Tensor, "pos d_model"], linearisation: str, layer: int
) -> Float[Tensor, " d_model"]:
    """What the network, held at this prompt, makes of v^(layer) = 0: all that its biases add to y_n."""
    return held_last_tokens(model, embedded, torch.zeros_like(embedded)[None], linearisation, layer)[0]


def last_token(model: TransformerBridge, embedded: Float[Tensor, "pos d_model"]) -> Float[Tensor, " d_model"]:
    """y_n of the plain network."""
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        run_from(model, embedded[None], logits_to_keep=unread(model))
    return record["final_norm"][0, -1]


def stream_of(
    model: TransformerBridge, embedded: Float[Tensor, "pos d_model"], layer: int
) -> Float[Tensor, "pos d_model"]:
    """v^(layer) of the prompt, as edited."""
    if layer == 0:
        return embedded
    name, block = _place(model, layer)
    with torch.no_grad(), hooks.capture(model, name, layers=[block]) as record:
        run_from(model, embedded[None], logits_to_keep=unread(model))
    return record[name][block][0]


def _place(model: TransformerBridge, layer: int) -> tuple[str, int]:
    """The site, and its block, that a v^(layer) above the embeddings is read from."""
    last = int(model.cfg.n_layers)
    return ("residual_pre", layer) if layer < last else ("residual_post", last - 1)


def _imposed(
    model: TransformerBridge, layer: int, stream: Float[Tensor, "row pos d_model"]
) -> AbstractContextManager[None]:
    """`stream` as v^(layer), whatever an edit there would make of it; at the embeddings a pass starts with it anyway."""
    if layer == 0:
        return nullcontext()
    name, block = _place(model, layer)
    return attached([(points(model, name, [block])[block], lambda _: stream, Order.OBSERVE)])


def _difference(
    network: Callable[[Float[Tensor, "row pos d_model"]], Float[Tensor, "row d_model"]],
    stream: Float[Tensor, "pos d_model"],
    position: int,
    direction: Float[Tensor, " d_model"],
    towards: Float[Tensor, " d_model"] | None = None,
) -> tuple[Float[Tensor, " d_out"], float]:
    """Of the central differences over the steps, the one that its wider neighbour and rounding bound best; that bound."""
    size = float(stream[position].norm()) or 1.0
    steps = [step * size for step in _STEPS[stream.dtype]]
    moved = stream.expand(2 * len(steps), *stream.shape).clone()
    for index, step in enumerate(steps):
        moved[2 * index, position] += step * direction
        moved[2 * index + 1, position] -= step * direction
    values = network(moved).double()
    # The steps that were taken, after rounding of v + h u.
    taken = ((moved[0::2, position] - moved[1::2, position]).double() @ direction.double())[:, None]
    slopes = (values[0::2] - values[1::2]) / taken
    noise = _NOISE[stream.dtype] * float(values.norm(dim=-1).max())
    if towards is not None:
        slopes, noise = slopes @ towards.double()[:, None], noise * float(towards.double().norm())
    best, bar = slopes[-1], float("inf")
    for wide, narrow, step in zip(slopes, slopes[1:], steps[1:], strict=False):
        this = float((wide - narrow).norm()) + 2 * noise / step
        if this < bar:
            best, bar = narrow, this
    return best, bar


def held_last_tokens(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    moved: Float[Tensor, "row pos d_model"],
    linearisation: str,
    layer: int = 0,
) -> Float[Tensor, "row d_model"]:
    """y_n from every moved v^(layer); what the linearisation holds is held at the values of the prompt itself."""
    parts = HELD[linearisation]
    held = hooks.held(model, parts.attention, parts.norms, parts.activations)
    together = max(1, _SQUARES // (int(model.cfg.n_heads) * len(embedded) ** 2))
    found = []
    with torch.no_grad(), held, hooks.capture(model, "final_norm") as record:
        if parts.any:
            run_from(model, embedded[None], logits_to_keep=unread(model))
        for part in moved.split(together):
            with _imposed(model, layer, part):
                run_from(model, part, min(layer, int(model.cfg.n_layers) - 1), unread(model))
            found.append(record["final_norm"][:, -1])
    return torch.cat(found)
