"""The contract at run time: hooks are active and `verify` has looked at every forward pass, or an
error is raised.

Cost: `verify` on the pattern and the scores of every layer, which the pass computes anyway; nothing
is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor

from ostools import hooks
from ostools.ground.lens import TransformerBridge
from ostools.mitigations.base import Mitigation, MitigationError, parts


@contextmanager
def running(model: TransformerBridge, mitigation: Mitigation | None) -> Iterator[None]:
    """Run the block under the mitigation's hooks, and let it verify every layer of every forward
    pass.

    None, and a mitigation that only rewrites prompts, do not change anything. Raises
    `MitigationError` if its invariant is broken, and if it has one but no forward pass ran on which
    it could have been seen.
    """
    verifies = any(type(part).verify is not Mitigation.verify for part in parts(mitigation))
    scores_by_layer: dict[int | None, Tensor] = {}
    verified = False

    def keep(scores: Tensor, layer: int | None) -> None:
        scores_by_layer[layer] = scores

    def verify(pattern: Tensor, layer: int | None) -> None:
        nonlocal verified
        place = cast(int, layer)  # a pattern is always one layer's
        # The scores come first; both are dropped then.
        scores = scores_by_layer.pop(place)
        cast(Mitigation, mitigation).verify(
            {"scores": {place: scores}, "pattern": {place: pattern}}
        )
        verified = True

    with ExitStack() as stack:
        if mitigation is not None:
            stack.enter_context(mitigation.hooks(model))
        if verifies:
            reduce = {"scores": keep, "pattern": verify}
            stack.enter_context(hooks.capture(model, "pattern", "scores", reduce=reduce))
        yield
    if verifies and not verified:
        raise MitigationError(
            f"{type(mitigation).__name__}: expected a forward pass to verify, found none in the "
            "block"
        )


def changes_pass(mitigation: Mitigation | None) -> bool:
    """Whether it has hooks of its own. A mitigation without them only rewrites prompts."""
    return any(type(part).hooks is not Mitigation.hooks for part in parts(mitigation))


def acts(model: TransformerBridge, mitigation: Mitigation | None, ids: Int[Tensor, " pos"]) -> bool:
    """Whether its hooks change any logit of this prompt, bit for bit. A window wider than the
    prompt does not.

    Cost: two forward passes; none for a mitigation without hooks. A mitigation that did not change
    anything is inactive. It is never counted as a success.
    """
    if not changes_pass(mitigation):
        return False
    prompt = ids[None].to(next(model.parameters()).device)
    with torch.no_grad():
        without = model(prompt, use_cache=False)
        with running(model, mitigation):
            changed = model(prompt, use_cache=False)
    return not torch.equal(without, changed)
