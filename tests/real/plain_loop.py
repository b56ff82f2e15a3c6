"""One patch by PyTorch's hooks on a model of transformers alone: the independent route to a patched
run's logits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def patched_logits(
    plain: Any, clean: Sequence[int], corrupt: Sequence[int], what: str, layer: int, place: int
) -> Tensor:
    """The corrupt run's last logits with the clean run's part put in; for "edges" the clean run's,
    whose last token does not see that place in that layer; for "heads" `place` is the head."""
    block, seen = plain.model.layers[layer], []

    def body(module: Any, args: Any, kwargs: Any, out: Any = None) -> Any:
        if what == "edges":
            mask = kwargs["attention_mask"].clone()
            mask[..., -1, place] = torch.finfo(mask.dtype).min
            return args, kwargs | {"attention_mask": mask}
        value = args[0] if out is None else out[0] if isinstance(out, tuple) else out
        if not seen:
            seen.append(value.clone())
            return None
        new, d_head = value.clone(), plain.model.layers[0].self_attn.head_dim
        at = (
            (0, slice(None), slice(place * d_head, (place + 1) * d_head))
            if what == "heads"
            else (0, place)
        )
        new[at] = seen[0][at]
        if out is None:
            return (new, *args[1:]), kwargs
        return (new, *out[1:]) if isinstance(out, tuple) else new

    # Gemma adds what stands after a norm behind attention and MLP.
    attention = (
        block.post_attention_layernorm
        if hasattr(block, "post_feedforward_layernorm")
        else block.self_attn
    )
    modules = {
        "residual": block,
        "heads": block.self_attn.o_proj,
        "edges": block.self_attn,
        "attention-out": attention,
        "mlp-out": getattr(block, "post_feedforward_layernorm", block.mlp),
    }
    register = "register_forward_hook" if what.endswith("-out") else "register_forward_pre_hook"
    handle = getattr(modules[what], register)(body, with_kwargs=True)
    with torch.no_grad():
        logits = plain(torch.tensor([list(clean)])).logits[0, -1]
        if what != "edges":
            logits = plain(torch.tensor([list(corrupt)])).logits[0, -1]
    handle.remove()
    return logits
