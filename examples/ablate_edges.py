"""Which tokens does the last one need to look at? Cut the edges that it attends to most, and a
whole layer's attention.

Run it: .venv/bin/python examples/ablate_edges.py (under a minute)
"""

from __future__ import annotations

from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.models import Prompt


def frobenius_norms(model: TransformerBridge, prompt: Prompt) -> list[float]:
    """||d y_n / d v_i||_F for every token i, under whatever edits are active."""
    return ost.sensitivity(model, prompt, linearisations=["full"]).frame["frobenius_norm"].to_list()


def main(task: str = "copy-first:hint=true", length: int = 8, top: int = 8) -> None:
    model = ost.load_model()

    # Edges, beside their prediction: y_n is read where the right line has been begun, and the next
    # token is the answer.
    edges = ost.ablation(model, task, lengths=[length], what="edges", top=top, prefilled=True)
    print(edges.top(3)[["target", "quantity", "value", "effect", "predicted_effect"]])

    # Layers by hand: what of the sensitivity is left without the first block's attention, without
    # the last one's?
    prompt = ost.encode(model, ost.tasks.task(task).prompt(length))
    whole = frobenius_norms(model, prompt)
    for layer in (0, model.cfg.n_layers - 1):
        with hooks.ablate_layers(model, [layer], part="attention"):
            left = frobenius_norms(model, prompt)
        change = sum(left[:-1]) / sum(whole[:-1])
        print(
            f"without the attention of layer {layer}: {change:5.2f} of the sensitivity to all earlier tokens"
        )


if __name__ == "__main__":
    main()
