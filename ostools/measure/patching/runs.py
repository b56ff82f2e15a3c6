"""Passes over one prompt with activations of another in them, or with attention edges knocked out:
many patches a pass.

Row b of a batch is the host prompt with patch b alone. Its effect is taken against row b of a batch
without patches: the same kernels add the same numbers there, so that what changes nothing has an
effect of 0, bit for bit. A patch that puts in what is there already is not run. What the two
prompts share at their start is read once, where that does no harm (`shared_prefix`): there the
activations of both runs are the same.

TransformerLens' `patching` does the same with one pass a patch, the logits of all positions and one
position at a time; the tests hold these numbers against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground.lens import HookPoint, TransformerBridge
from ostools.ground.progress import Progress, tell
from ostools.hooks.register import HookBody, Order, attached
from ostools.hooks.sites import points
from ostools.measure.passes.batches import Rows
from ostools.measure.passes.contexts import run_from

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

Activations = dict[int, Tensor]
"""What stands at the site in each layer, [1, pos, ...] (patterns: [1, head, query, key])."""
Numbers = Float[Tensor, "*patch quantity"]
"""log p of the answer, in nats; its logit, or the difference of the two logits. In float64."""


class Patch(NamedTuple):
    """What is put in: the site in these layers, at these positions (edges: as keys), of one head
    (None: of all).
    """

    layers: tuple[int, ...]
    positions: tuple[int, ...]
    head: int | None = None


@dataclass(frozen=True)
class PromptRun:
    """A batch of one prompt without patches: what stands at the site after the shared tokens, and
    the answer's numbers, a row each. logit_size: the greatest logit."""

    ids: tuple[int, ...]
    activations: Activations
    numbers: Numbers
    logit_size: float


@dataclass(frozen=True)
class Patcher:
    """Passes of one model, patched at one kind of site.

    answer: the token that is scored, or it and the one that it is held against. shared: so many
    first tokens are the same in both prompts, and read once. size: rows of a batch. queries: of
    `edges`, the positions that no longer see the keys.
    """

    model: TransformerBridge
    what: What
    answer: tuple[int, ...]
    shared: int
    size: int
    queries: tuple[int, ...] = ()

    def run(self, ids: Sequence[int]) -> PromptRun:
        """Run the prompt without a patch."""
        rows = Rows(self.model, [ids] * self.size, cached=False, shared=self.shared)
        with torch.no_grad():
            activations, logits = self._recorded(rows.logits)
        return PromptRun(tuple(ids), activations, self._numbers(logits), float(logits.abs().max()))

    def patched(
        self, host: PromptRun, donor: PromptRun, patches: Sequence[Patch], progress: Progress | None
    ) -> tuple[Numbers, Numbers]:
        """The host's numbers under each patch by itself (what the donor has there put in, or the
        edges cut), and the effect.
        """
        numbers, effects = (
            host.numbers[:1].repeat(len(patches), 1),
            torch.zeros(len(patches), 2, dtype=torch.float64),
        )
        acting = [index for index, patch in enumerate(patches) if self._acts(host, donor, patch)]
        for start in range(0, len(acting), self.size):
            batch = acting[start : start + self.size]
            rows = Rows(self.model, [host.ids] * self.size, cached=False, shared=self.shared)
            with torch.no_grad(), ExitStack() as stack:
                self._enter(stack, [patches[index] for index in batch], donor, len(host.ids))
                numbers[batch] = self._numbers(rows.logits())[: len(batch)]
            effects[batch] = numbers[batch] - host.numbers[: len(batch)]
            tell(progress, start + len(batch), len(acting))
        return numbers, effects

    def predicted(self, host: PromptRun, donor: PromptRun, patches: Sequence[Patch]) -> Numbers:
        """Effect of each patch to first order: the gradient at the site, times what the patch
        changes there.

        Cost: a pass over the whole prompt whose graph is kept, and one or two backward passes.
        """
        ids = torch.tensor([host.ids], device=next(self.model.parameters()).device)
        with torch.enable_grad():
            start = self.model.input_to_embed(ids)[0].detach().requires_grad_(True)
            activations, logits = self._recorded(lambda: run_from(self.model, start))
            (numbers,) = self._numbers(logits)
        layers = sorted(activations)
        slopes = [
            torch.autograd.grad(number, [activations[layer] for layer in layers], retain_graph=True)
            for number in numbers
        ]
        effects = torch.zeros(len(patches), len(slopes), dtype=torch.float64)
        for index, patch in enumerate(patches):
            for layer in patch.layers:
                change = self._change(activations[layer], donor, patch, layer)
                at_layer = [slope[layers.index(layer)] for slope in slopes]
                effects[index] += torch.stack(
                    [(slope.double() * change.double()).sum().cpu() for slope in at_layer]
                )
        return effects

    def _change(self, at_site: Tensor, donor: PromptRun, patch: Patch, layer: int) -> Tensor:
        """New activation minus old at the site, 0 where the patch leaves it."""
        old = at_site.detach()
        if self.what == EDGES:
            cut = old.clone()
            cut[..., *self._edges(patch)] = 0.0
            # What is left of the rows, and what a sink outside of them takes, grow to 1.
            return (
                cut / (cut.sum(-1, keepdim=True) + (1 - old.sum(-1, keepdim=True)).clamp_min(0))
                - old
            )
        new, at = old.clone(), _at(patch, self.shared)
        new[0, self.shared :][at] = donor.activations[layer][0][at]
        return new - old

    def _acts(self, host: PromptRun, donor: PromptRun, patch: Patch) -> bool:
        """Whether the patch changes anything: a bit of an activation, or an edge that a query has."""
        if self.what == EDGES:
            return any(key <= query for key in patch.positions for query in self.queries)
        return any(
            not torch.equal(
                *(run.activations[layer][0][_at(patch, self.shared)] for run in (host, donor))
            )
            for layer in patch.layers
        )

    def _enter(
        self, stack: ExitStack, patches: Sequence[Patch], donor: PromptRun, pos: int
    ) -> None:
        """Enter the edits of one batch: row b has patch b."""
        layers = sorted({layer for patch in patches for layer in patch.layers})
        rows_at = {
            layer: [row for row, patch in enumerate(patches) if layer in patch.layers]
            for layer in layers
        }
        if self.what == EDGES:
            for layer in layers:
                seen = torch.ones(self.size, pos - self.shared, pos, dtype=torch.bool)
                for row in rows_at[layer]:
                    queries, keys = self._edges(patches[row])
                    seen[row, queries - self.shared, keys] = False
                stack.enter_context(hooks.mask_scores(self.model, seen, layers=[layer]))
            return

        def body(layer: int) -> HookBody:
            def patched(tensor: Tensor) -> Tensor:
                new = tensor.clone()
                for row in rows_at[layer]:
                    at = _at(patches[row], self.shared)
                    new[row][at] = donor.activations[layer][0][at]
                return new

            return patched

        at_layer = self._points()
        placements = [(at_layer[layer], body(layer), Order.EDIT) for layer in layers]
        stack.enter_context(attached(placements, kind="patch"))

    def _edges(self, patch: Patch) -> tuple[Int[Tensor, "query 1"], Int[Tensor, "1 key"]]:
        return torch.tensor(self.queries)[:, None], torch.tensor(patch.positions)[None]

    def _points(self) -> dict[int, HookPoint]:
        at_layer: Any = points(self.model, SITES[self.what])
        last = int(self.model.cfg.n_layers)
        if self.what == RESIDUAL:
            at_layer |= {last: points(self.model, "residual_post", [last - 1])[last - 1]}
        return at_layer

    def _recorded(self, run: Callable[[], Tensor]) -> tuple[Activations, Tensor]:
        """What stands at the site in each layer of a pass, without a graph of the first row alone,
        and its last logits.
        """
        activations: Activations = {}

        def keep(layer: int) -> HookBody:
            def body(tensor: Tensor) -> Tensor:
                # The copy goes on: a pass may go around the tensor that a hook is shown, and no
                # gradient would reach that.
                copied = tensor.clone()
                activations[layer] = copied if copied.requires_grad else copied[:1].clone()
                return copied

            return body

        with attached(
            [(point, keep(layer), Order.OBSERVE) for layer, point in self._points().items()]
        ):
            logits = run()
        return activations, logits

    def _numbers(self, logits: Float[Tensor, "batch 1 d_vocab"]) -> Numbers:
        last = logits[:, -1].double()
        answer, *others = self.answer
        logit = last[:, answer] - (last[:, others[0]] if others else 0.0)
        return torch.stack([last.log_softmax(-1)[:, answer], logit], dim=-1).cpu()


def _at(patch: Patch, shared: int) -> tuple[Any, ...]:
    """Index of the patch in what stands at the site after the shared tokens, where alone the two
    runs differ.
    """
    places = [place - shared for place in patch.positions if place >= shared]
    return (places,) if patch.head is None else (places, patch.head)
