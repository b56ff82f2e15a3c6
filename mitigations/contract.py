"""The contract at run time: hooks are active and `verify` has looked at every forward pass, or an error is raised.

Cost: `verify` on the pattern and the scores of every layer, which the pass computes anyway; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from mitigations.base import Mitigation, MitigationError, parts

_VERIFIED = ("pattern", "scores")


@contextmanager
def running(model: TransformerBridge, mitigation: Mitigation | None) -> Iterator[None]:
    """Run the block under the mitigation's hooks, and let it verify every layer of every forward pass.

    None, and a mitigation that only rewrites prompts, do not change anything. Raises `MitigationError` if its invariant is
    broken, and if it has one but no forward pass ran on which it could have been seen.
    """
    if mitigation is None:
        yield
        return
    if not _verifies(mitigation):
        with mitigation.hooks(model):
            yield
        return
    watch = _Watch(mitigation)
    with (
        mitigation.hooks(model),
        hooks.capture(model, *_VERIFIED, reduce={"scores": watch.scores, "pattern": watch.pattern}),
    ):
        yield
    if not watch.passed:
        raise MitigationError(
            f"{type(mitigation).__name__}: expected a forward pass to verify, found none in the block"
        )


class _Watch:
    """Verification of a pass, layer by layer: scores come first, then their pattern, then the layer is verified and dropped."""

    def __init__(self, mitigation: Mitigation) -> None:
        self.mitigation = mitigation
        self.passed = False
        self._scores: Tensor | None = None

    def scores(self, tensor: Tensor, layer: int | None) -> None:
        self._scores = tensor

    def pattern(self, tensor: Tensor, layer: int | None) -> None:
        self.mitigation.verify({"scores": {layer: self._scores}, "pattern": {layer: tensor}})
        self.passed, self._scores = True, None


def changes_pass(mitigation: Mitigation | None) -> bool:
    """Whether it has hooks of its own. A mitigation without them only rewrites prompts."""
    return any(type(part).hooks is not Mitigation.hooks for part in parts(mitigation))


def acts(model: TransformerBridge, mitigation: Mitigation | None, ids: Int[Tensor, " pos"]) -> bool:
    """Whether its hooks change any logit of this prompt, bit for bit. A window wider than the prompt does not.

    Cost: two forward passes; none for a mitigation without hooks. A mitigation that did not change anything is inactive. It is
    never counted as a success.
    """
    if not changes_pass(mitigation):
        return False
    prompt = ids[None].to(next(model.parameters()).device)
    with torch.no_grad():
        without = model(prompt, use_cache=False)
        with running(model, mitigation):
            changed = model(prompt, use_cache=False)
    return not torch.equal(without, changed)


def _verifies(mitigation: Mitigation) -> bool:
    return any(type(part).verify is not Mitigation.verify for part in parts(mitigation))
