"""Which heads carry the first digit to the answer? Take each one out, and measure what is left of d y_n / d v_i.

Run it: .venv/bin/python examples/ablate_heads.py
"""

from __future__ import annotations

import hooks
import ostools as ost
from ostools.tasks import AppendixTask


def main() -> None:
    model = ost.load_model()
    task = AppendixTask("copy-first", hint=True)
    prompt = ost.encode(model, task.prompt(20, seed=0))
    digit = next(i for i, token in enumerate(prompt.tokens) if token == "0")

    def reading() -> float:
        norms = ost.sensitivity(model, prompt, linearisations=["full"]).frame["operator_norm"]
        return float(norms.to_numpy()[digit])

    whole = reading()
    print(f"||d y_n / d v_i|| of the first digit, nothing ablated: {whole:.3g}")
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            with hooks.ablate_heads(model, [(layer, head)]):
                print(f"  without head {layer}.{head}: {reading() / whole:6.2f} of it")


if __name__ == "__main__":
    main()
