"""Which variants of the path sum describe the blocks of a model, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable

from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.measure.formulas.layout import is_parallel
from ostools.measure.paths.variants import variant_named


def undescribed(model: TransformerBridge, names: Iterable[str]) -> dict[str, str]:
    """The variants among `names` that do not describe this model's blocks, each with the reason in a few words.

    The papers' forms are of a block with a norm before attention and then one before the MLP; the prediction of the real
    derivative is of one whose MLP reads what attention leaves, and whose queries and keys have a norm of each head or none.
    """
    parallel = "attention and MLP side by side" if is_parallel(model) else None
    before = "no norm before attention" if "norm1_scale" not in hooks.available_sites(model) else None
    qk_norm = hooks.norms(model).get("blocks.0.attn.q_norm")
    mixed = qk_norm is not None and qk_norm.gain.shape[-1] != model.cfg.d_head
    heads = "one norm over the queries of all heads" if mixed else None
    papers = (
        f"expected the paper's block, a norm before attention and then one before the MLP, found {parallel or before}"
    )
    full = f"expected attention and then the MLP, each head by itself, found {parallel or heads}"
    found = {}
    for name in names:
        if variant_named(name).kind == "paper" and (parallel or before):
            found[name] = papers
        elif name == "second-moment-full" and (parallel or heads):
            found[name] = full
    return found
