"""Passes over one prompt with activations of another in them, or with attention edges knocked out:
many patches a pass.

Row b of a batch is the host prompt with patch b alone; its last row has none, and effects are taken
against it: the same kernels add the same numbers there. A patch that puts in what is there already
is not run.

A patch at position p and layer l changes nothing before p, nor below l. So a batch reads on from
the host's own run: keys and values of the tokens before its first patched position are the host's,
and below its first patched layer one row stands for all. A patch then costs n - p tokens and L - l
blocks; edges of the last token cost one token. Where a model or an edit does not allow that
(`reads_on`), every row is read whole.

TransformerLens' `patching` does the same with one pass a patch over all tokens and layers, the
logits of all positions, and one position at a time; the tests hold these numbers against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ostools import hooks
from ostools.ground import Cache, HookPoint, InputError, Progress, TransformerBridge, chunk, tell
from ostools.hooks.register import Order, attached, before_modules
from ostools.hooks.sites import points
from ostools.measure.passes.batches import TOKENS, reads_on
from ostools.measure.passes.contexts import contiguous_head, run_from

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicLayer

What = Literal["residual", "attention-out", "mlp-out", "heads", "edges"]
EDGES, HEADS, RESIDUAL = "edges", "heads", "residual"
SITES: Mapping[What, str] = {
    RESIDUAL: "residual_pre",
    "attention-out": "attention_output",
    "mlp-out": "mlp_output",
    HEADS: "z",
    EDGES: "pattern",
}
"""The site at which each kind of patch acts; the residual stream that the last block leaves is its
`residual_post`.
"""
_TOKENS, _ROWS = 512, 16
"""A batch that reads on has so many tokens, and at least so many rows: some fifteen times what
reading the weights once costs, and few enough that its rows begin near each other."""

Activations: TypeAlias = Mapping[int, Tensor]
"""What stands at the site in each layer, [1, pos, ...] (patterns: [1, head, query, key])."""
Numbers: TypeAlias = Float[Tensor, "row quantity"]
"""log p of the answer, in nats; its logit, or the difference of the two logits. In float64."""


class Patch(NamedTuple):
    """What is put in: the site in these layers, at these positions (edges: as keys), of one head
    (None: of all).
    """

    layers: tuple[int, ...]
    positions: tuple[int, ...]
    head: int | None = None

    def at(self, start: int) -> tuple[list[int] | int, ...]:
        """Index in what stands at the site from position `start` on."""
        places = [place - start for place in self.positions if place >= start]
        return (places,) if self.head is None else (places, self.head)


@dataclass(frozen=True)
class PromptRun:
    """A prompt without patches: what stands at the site, keys and values to read on from (None:
    rows are read whole), and the answer's numbers, in one row. logit_size: the greatest logit."""

    ids: Int[Tensor, "1 pos"]
    activations: Activations
    cache: Cache | None
    numbers: Numbers
    logit_size: float


@dataclass(frozen=True)
class Patcher:
    """Passes of one model, patched at one kind of site.

    answer: the token that is scored, or it and the one that it is held against. shared: so many
    first tokens are the same in both prompts. queries: of `edges`, the positions that no longer see
    the keys.
    """

    model: TransformerBridge
    what: What
    answer: tuple[int, ...]
    shared: int
    queries: tuple[int, ...] = ()

    def run(self, ids: Sequence[int]) -> PromptRun:
        """Run the prompt without a patch."""
        prompt = torch.tensor([[*ids]], device=next(self.model.parameters()).device)
        cache = _cache([]) if reads_on(self.model) else None
        with torch.no_grad():
            activations, logits = self._recorded(partial(self._logits, prompt, cache))
        numbers = self._numbers(logits)
        return PromptRun(prompt, activations, cache, numbers, float(logits.abs().max()))

    def patched(
        self, host: PromptRun, donor: PromptRun, patches: Sequence[Patch], progress: Progress | None
    ) -> tuple[Numbers, Numbers]:
        """The host's numbers under each patch by itself (what the donor has there put in, or the
        edges cut), and the effect.
        """
        numbers = host.numbers.repeat(len(patches), 1)
        effects = torch.zeros_like(numbers)
        acting = [index for index, patch in enumerate(patches) if self._acts(host, donor, patch)]
        patches_done = 0
        for batch in self._batches(host, patches, acting):
            with torch.no_grad():
                rows = self._batch_numbers(host, donor, [patches[index] for index in batch])
            numbers[batch], effects[batch] = rows[:-1], rows[:-1] - rows[-1]
            patches_done += len(batch)
            tell(progress, patches_done, len(acting))
        return numbers, effects

    def predicted(self, host: PromptRun, donor: PromptRun, patches: Sequence[Patch]) -> Numbers:
        """Effect of each patch to first order: the gradient at the site, times what the patch
        changes there.

        Cost: a pass over the whole prompt whose graph is kept, and two backward passes.
        """
        with torch.enable_grad():
            start = self.model.input_to_embed(host.ids)[0].detach().requires_grad_(True)
            activations, logits = self._recorded(partial(run_from, self.model, start))
            numbers = self._numbers(logits)[0]
        slopes = [
            torch.autograd.grad(number, [*activations.values()], retain_graph=True)
            for number in numbers
        ]
        effects: dict[int, Callable[[Patch], Float[Tensor, " quantity"]]] = {}
        for layer, *layer_slopes in zip(activations, *slopes, strict=True):
            slope, old = torch.cat(layer_slopes).double(), activations[layer].detach()[0].double()
            if self.what == EDGES:
                queries = list(self.queries)
                effects[layer] = partial(_edge_effect, old[:, queries], slope[:, :, queries])
            else:  # what a patch does at each position adds up
                change = donor.activations[layer][0].double() - old
                parts = (slope * change).sum(-1)[:, self.shared :]
                effects[layer] = partial(_summed, parts, self.shared)
        return torch.stack(
            [
                torch.stack([effects[layer](patch) for layer in patch.layers]).sum(0)
                for patch in patches
            ]
        ).cpu()

    def _acts(self, host: PromptRun, donor: PromptRun, patch: Patch) -> bool:
        """Whether the patch changes anything: a bit of an activation, or an edge that a query has.

        Before the first token that differs the runs are the same but for rounding.
        """
        if self.what == EDGES:
            return min(patch.positions) <= max(self.queries)
        at = patch.at(self.shared)
        return any(
            not torch.equal(
                host.activations[layer][0, self.shared :][at],
                donor.activations[layer][0, self.shared :][at],
            )
            for layer in patch.layers
        )

    def _start(self, patch: Patch) -> int:
        """The first position at which the patch may change anything."""
        return min(self.queries or (place for place in patch.positions if place >= self.shared))

    def _batches(
        self, host: PromptRun, patches: Sequence[Patch], acting: Sequence[int]
    ) -> Iterator[list[int]]:
        """Which patches go through a pass together: those that begin at near positions and layers,
        as many as there is room for beside a row without a patch.
        """
        pos = host.ids.shape[1]
        width = {index: pos - self._start(patches[index]) for index in acting}
        most = chunk(TOKENS) // pos
        batch: list[int] = []
        for index in sorted(acting, key=lambda i: (width[i].bit_length(), patches[i].layers[0])):
            rows, widest = len(batch) + 2, max(width[i] for i in (*batch, index))
            room = most if host.cache is None else min(most, max(_ROWS, _TOKENS // widest))
            if batch and rows > room:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _batch_numbers(
        self, host: PromptRun, donor: PromptRun, patches: Sequence[Patch]
    ) -> Numbers:
        """The answer's numbers, a row a patch; the last row has none."""
        rows = len(patches) + 1
        with ExitStack() as stack:
            if host.cache is None:
                self._enter(stack, patches, donor, 0)
                return self._numbers(self._logits(host.ids.expand(rows, -1), None))
            start = min(map(self._start, patches))
            # v^(L) is put in behind the last block.
            first = min(*(patch.layers[0] for patch in patches), int(self.model.cfg.n_layers) - 1)
            block = self.model.blocks[first]
            stack.enter_context(before_modules({f"blocks.{first}": block}, partial(_widened, rows)))
            self._enter(stack, patches, donor, start)
            cache = _cache(
                [
                    part[:, :, :start].expand(rows if layer >= first else 1, -1, -1, -1)
                    for part in (cast(Tensor, states.keys), cast(Tensor, states.values))
                ]
                for layer, states in enumerate(cast("Sequence[DynamicLayer]", host.cache.layers))
            )
            return self._numbers(self._logits(host.ids[:, start:], cache))

    def _enter(
        self, stack: ExitStack, patches: Sequence[Patch], donor: PromptRun, start: int
    ) -> None:
        """Enter the edits of one batch that reads from position `start` on: row b has patch b."""
        for layer in sorted({layer for patch in patches for layer in patch.layers}):
            at_layer = {row: patch for row, patch in enumerate(patches) if layer in patch.layers}
            if self.what == EDGES:
                pos = donor.ids.shape[1]
                visible = torch.ones(len(patches) + 1, pos - start, pos, dtype=torch.bool)
                queries = torch.tensor(self.queries)[:, None] - start
                for row, patch in at_layer.items():
                    visible[row, queries, torch.tensor(patch.positions)] = False
                stack.enter_context(hooks.mask_scores(self.model, visible, layers=[layer]))
            else:
                body = partial(_put_in, donor.activations[layer][0, start:], at_layer, start)
                placement = (self._points()[layer], body, Order.EDIT)
                stack.enter_context(attached([placement], kind="patch"))

    def _points(self) -> dict[int, HookPoint]:
        at_layer = cast("dict[int, HookPoint]", points(self.model, SITES[self.what]))
        last = int(self.model.cfg.n_layers)
        if self.what == RESIDUAL:
            at_layer |= {last: points(self.model, "residual_post", [last - 1])[last - 1]}
        return at_layer

    def _recorded(self, run: Callable[[], Tensor]) -> tuple[Activations, Tensor]:
        """What stands at the site in each layer of a pass, in order, and its last logits."""
        activations: dict[int, Tensor] = {}

        def keep(layer: int, tensor: Tensor) -> Tensor:
            # The copy goes on: a pass may go around the tensor that a hook is shown, and no
            # gradient would reach that.
            activations[layer] = tensor.clone()
            return activations[layer]

        with attached(
            [
                (point, partial(keep, layer), Order.OBSERVE)
                for layer, point in self._points().items()
            ]
        ):
            logits = run()
        return activations, logits

    def _logits(self, ids: Int[Tensor, "row pos"], cache: Cache | None) -> Tensor:
        """The last token's logits; with a cache those of `ids` after what it holds."""
        options = {} if cache is None else {"past_key_values": cache}
        with contiguous_head(self.model):
            return self.model(ids, logits_to_keep=1, use_cache=cache is not None, **options)

    def _numbers(self, logits: Float[Tensor, "row 1 d_vocab"]) -> Numbers:
        last = logits[:, -1].double()
        answer, *against = self.answer
        logit = last[:, answer] - (last[:, against[0]] if against else 0.0)
        numbers = torch.stack([last.log_softmax(-1)[:, answer], logit], dim=-1).cpu()
        if not bool(torch.isfinite(numbers).all()):
            raise InputError(
                "patch: the answer's logits are not finite: check the model's weights, or use "
                "another dtype"
            )
        return numbers


def _cache(layers: Iterable[Sequence[Tensor]]) -> Cache:
    """A cache with these keys and values, layer by layer."""
    from transformers.cache_utils import DynamicCache

    # Without the configuration: sliding layers would drop old keys, and edits count positions from
    # the first key.
    return DynamicCache([tuple(layer) for layer in layers])


def _widened(
    rows: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block's arguments with the one row that enters it so many times."""
    if args:
        return (args[0].expand(rows, -1, -1), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": kwargs["hidden_states"].expand(rows, -1, -1)}


def _put_in(donor: Tensor, patches: Mapping[int, Patch], start: int, tensor: Tensor) -> Tensor:
    new = tensor.clone()
    for row, patch in patches.items():
        new[row][patch.at(start)] = donor[patch.at(start)]
    return new


def _summed(
    parts: Float[Tensor, "quantity pos *head"], start: int, patch: Patch
) -> Float[Tensor, " quantity"]:
    return parts[:, *patch.at(start)].sum(-1)


def _edge_effect(
    rows: Float[Tensor, "head query key"],
    slope: Float[Tensor, "quantity head query key"],
    patch: Patch,
) -> Float[Tensor, " quantity"]:
    """Effect to first order of hiding keys: what is left of the rows, and what a sink outside of
    them takes, grow to 1.
    """
    cut = rows.clone()
    cut[..., list(patch.positions)] = 0.0
    outside = (1 - rows.sum(-1, keepdim=True)).clamp_min(0)
    change = cut / (cut.sum(-1, keepdim=True) + outside) - rows
    return (slope * change).sum((1, 2, 3))
