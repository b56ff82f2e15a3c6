"""Which variants of the path sum describe the blocks of a model, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable

from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.measure.bounds.variants import variant_named
from ostools.measure.formulas.weights import is_parallel


def undescribed(model: TransformerBridge, names: Iterable[str]) -> dict[str, str]:
    """The variants among `names` that do not describe this model's blocks, each with the reason in a few words.

    The papers' forms are of a block with a norm before attention and then one before the MLP: their beta_1 and beta_2 are the
    scales of these two norms, and their MLP reads what attention leaves.
    """
    parallel = "attention and MLP side by side" if is_parallel(model) else None
    before = "no norm before attention" if "norm1_scale" not in hooks.available_sites(model) else None
    if parallel is None and before is None:
        return {}
    papers = (
        f"expected the paper's block, a norm before attention and then one before the MLP, found {parallel or before}"
    )
    return {name: papers for name in names if variant_named(name).kind == "paper"}
