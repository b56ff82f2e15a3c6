"""What the laws of this room are tried on: a model of any family, a prompt, and edits of its
forward pass in any nesting.

Nobody listed these compositions: hypothesis draws each part by itself, and names the smallest case
that breaks a law.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from tests.checkpoints import TEXT_FAMILIES, _fill, tiny_model
from tests.families import OTHERS

LOOKED_FOR = settings(
    max_examples=4 if settings().max_examples <= 20 else 25,  # one takes a second
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
"""Which lines a failure goes through is traced for minutes in code as deep as this, and says
nothing.
"""

REFUSALS = (ost.InputError, hooks.HookError, ost.mitigations.MitigationError)
"""How a composition may be refused; anything else that is raised is a fault."""

FAMILIES = (*TEXT_FAMILIES, *OTHERS)
LAYERS, HEADS = 2, 4
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def _massive_first_token(model: Any) -> None:
    """The row of `<bos>` is a thousand times as large as others, as activations of a real model's
    first token are.
    """
    model.get_input_embeddings().weight[2].mul_(1e3)


def _uneven_gains(model: Any) -> None:
    """Gains of every norm from 0.1 to 100, as those of a real Gemma are."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        if weight.ndim == 1:
            gains = 10 ** (3 * torch.rand(weight.shape, generator=generator) - 1)
            weight.copy_(gains - 1.0 if "gemma" in model.config.model_type else gains)


PLANTED: dict[str, Callable[[Any], None]] = {
    "nothing": lambda model: None,
    "massive-first-token": _massive_first_token,
    "uneven-gains": _uneven_gains,
}
"""What real models have and random weights lack."""


@dataclass(frozen=True)
class Weights:
    """A tiny model by what it is made from."""

    family: str
    seed: int = 0
    scale: float = 1.0
    sharp: float = 1.0
    dtype: str = "float64"
    planted: str = "nothing"

    def model(self) -> TransformerBridge:
        """The family's one model with these weights: building it takes longer than what is measured
        on it.
        """
        model = _built(self.family, self.dtype)
        original: Any = model.original_model
        _fill(original, self.seed, self.scale)
        for block in model.blocks:
            block.attn.q.weight.mul_(self.sharp)
        PLANTED[self.planted](original)
        return model


@cache
def _built(family: str, dtype: str) -> TransformerBridge:
    return tiny_model(
        family, dtype=DTYPES[dtype], d_model=16, d_mlp=24, n_layers=LAYERS, fresh=True
    )


@dataclass(frozen=True)
class Change:
    """One edit: its kind out of `KINDS`, and the numbers that it is made from."""

    kind: str
    amount: float = 1.0
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def of(self, model: TransformerBridge, ids: Tensor) -> AbstractContextManager[object]:
        return KINDS[self.kind](model, ids, self)


def _generator(change: Change) -> torch.Generator:
    return torch.Generator().manual_seed(int(1000 * change.amount))


def _random_mask(
    model: TransformerBridge, ids: Tensor, change: Change
) -> AbstractContextManager[None]:
    pos = len(ids)
    seen = torch.rand(pos, pos, generator=_generator(change)) < 0.5
    return hooks.mask_scores(
        model, seen | torch.eye(pos, dtype=torch.bool), layers=change.layers, heads=change.heads
    )


def _constant(
    model: TransformerBridge, ids: Tensor, change: Change
) -> AbstractContextManager[None]:
    """A causal pattern of random weights that sum to 1, the same for every layer and head."""
    drawn = torch.rand(len(ids), len(ids), generator=_generator(change), dtype=torch.float64).tril()
    pattern = (drawn / drawn.sum(-1, keepdim=True)).expand(1, HEADS, -1, -1)
    return hooks.replace_pattern(model, pattern, layers=change.layers, heads=change.heads)


def _own_pattern(
    model: TransformerBridge, ids: Tensor, change: Change
) -> AbstractContextManager[None]:
    """The numbers that the model has anyway, as constants: no value moves, and every derivative
    does.
    """
    with torch.no_grad(), hooks.exact_arithmetic(model), hooks.capture(model, "pattern") as seen:
        model(ids[None])
    own = {layer: pattern.clone() for layer, pattern in seen["pattern"].items()}
    return hooks.replace_pattern(
        model, lambda _, layer: own[layer], layers=change.layers, heads=change.heads
    )


def _squared(model: TransformerBridge, ids: Tensor, change: Change) -> AbstractContextManager[None]:
    """A pattern as a function of the model's own, through which derivatives go on."""

    def squared(pattern: Tensor, layer: int) -> Tensor:
        return pattern.square() / pattern.square().sum(-1, keepdim=True)

    return hooks.replace_pattern(model, squared, layers=change.layers, heads=change.heads)


def _cut(model: TransformerBridge, ids: Tensor, change: Change) -> AbstractContextManager[None]:
    layer = (change.layers or (0,))[0]
    head, query = (change.heads or (0,))[0], len(ids) - 1
    return hooks.ablate_edges(model, [(layer, head, query, int(change.amount) % len(ids))])


def _heads(model: TransformerBridge, ids: Tensor, change: Change) -> AbstractContextManager[None]:
    chosen = [
        (layer, head) for layer in change.layers or range(LAYERS) for head in change.heads or (0,)
    ]
    if change.amount < 1:
        return hooks.ablate_heads(model, chosen)
    return hooks.ablate_heads(model, chosen, method="mean", reference=ids[None])


def _gates(model: TransformerBridge, ids: Tensor, change: Change) -> AbstractContextManager[None]:
    layer, head = (change.layers or (0,))[0], (change.heads or (0,))[0]
    targets = [
        hooks.Head(layer, head),
        hooks.Sublayer(1 - layer, "mlp"),
        hooks.Edge(layer, head, len(ids) - 1, 0),
    ]
    gates = torch.full((3,), change.amount, dtype=next(model.parameters()).dtype)
    return hooks.gated(model, targets, gates)


def _integers(
    model: TransformerBridge, ids: Tensor, change: Change
) -> AbstractContextManager[None]:
    return hooks.rounded(
        model, "residual" if change.amount < 1 else "kv", "int8", calibration=ids[None]
    )


@contextmanager
def _foreign(model: TransformerBridge, ids: Tensor, change: Change) -> Iterator[None]:
    """A hook of somebody else: torch's own, which this package knows nothing of."""

    def scaled(module: Any, given: Any, found: Any) -> Any:
        if isinstance(found, tuple):  # experts, with what their router chose
            return (change.amount * found[0], *found[1:])
        return change.amount * found

    handle = model.blocks[0].mlp.register_forward_hook(scaled)
    try:
        yield
    finally:
        handle.remove()


def _part(change: Change) -> Any:
    return ("attention", "mlp", "both")[int(10 * change.amount) % 3]


KINDS: dict[str, Callable[[TransformerBridge, Tensor, Change], AbstractContextManager[object]]] = {
    "window": lambda model, ids, c: hooks.mask_scores(
        model, lambda query, key: query - key < 1 + int(c.amount), layers=c.layers, heads=c.heads
    ),
    "mask": _random_mask,
    "temperature": lambda model, ids, c: hooks.scale_scores(
        model, c.amount, layers=c.layers, heads=c.heads
    ),
    "temperature-of-query": lambda model, ids, c: hooks.scale_scores(
        model, lambda query: c.amount + 0.1 * query.double(), layers=c.layers, heads=c.heads
    ),
    "pattern": _constant,
    "own-pattern": _own_pattern,
    "squared-pattern": _squared,
    "edge": _cut,
    "heads": _heads,
    "layers": lambda model, ids, c: hooks.ablate_layers(model, c.layers or (0,), part=_part(c)),
    "gates": _gates,
    "rounded-residual": lambda model, ids, c: hooks.rounded(model, "residual", "bfloat16"),
    "rounded-kv": lambda model, ids, c: hooks.rounded(model, "kv", "float16"),
    "rounded-integers": _integers,
    "sliding-window": lambda model, ids, c: ost.mitigations.SlidingWindow(
        1 + int(c.amount), sinks=int(10 * c.amount) % 2
    ).hooks(model),
    "log-n": lambda model, ids, c: hooks.scale_scores(
        model, lambda query: (query + 1).double().log().clamp(min=1.0)
    ),
    "frozen": lambda model, ids, c: hooks.frozen(model),
    "exact": lambda model, ids, c: hooks.exact_arithmetic(model),
    "foreign": _foreign,
}
"""Every way to change a forward pass that this house has, and one that it has not."""

AMOUNTS = (0.0, 0.3, 0.5, 1.0, 1.7, 3.0, -1.0, 20.0)

changes = st.builds(
    Change,
    kind=st.sampled_from(list(KINDS)),
    amount=st.sampled_from(AMOUNTS),
    layers=st.none() | st.sampled_from([(0,), (1,), (1, 0)]),
    heads=st.none() | st.sampled_from([(0,), (3,), (1, 2)]),
)
nestings = st.lists(changes, max_size=3).map(tuple)
prompts = st.lists(st.integers(10, 200), min_size=1, max_size=6).flatmap(
    lambda ids: st.sampled_from([[2, *ids], [2, *ids, ids[-1], ids[-1]]])
)


def weights(*dtypes: str) -> st.SearchStrategy[Weights]:
    return st.builds(
        Weights,
        family=st.sampled_from(FAMILIES),
        seed=st.integers(0, 50),
        scale=st.sampled_from([0.3, 1.0, 3.0]),
        sharp=st.sampled_from([1.0, 20.0]),
        dtype=st.sampled_from(dtypes),
        planted=st.sampled_from(list(PLANTED)),
    )


@contextmanager
def edited(model: TransformerBridge, ids: Tensor, nesting: tuple[Change, ...]) -> Iterator[None]:
    """All of the edits, the first outermost."""
    with ExitStack() as stack:
        for change in nesting:
            stack.enter_context(change.of(model, ids))
        yield
