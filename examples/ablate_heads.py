"""Which heads does the answer need? Take each one out by hand, then let `ost.ablation` do the same
and predict it, too.

Run it: .venv/bin/python examples/ablate_heads.py (under a minute)
"""

from __future__ import annotations

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import answer_log_probability
from ostools.measure.position import answer_text
from ostools.measure.task_prompt import carrier_positions, render_prompt


def main(task: str = "copy-first:hint=true", length: int = 20) -> None:
    model = ost.load_model()
    question = render_prompt(model, ost.tasks.task(task), length)
    carriers = carrier_positions(model, question)
    print(
        f"{question.text!r}\nThe answer stands at the tokens {carriers}; the right line is {question.line!r}.\n"
    )

    # Where each head looks: one to choose from.
    scores = ost.measure.head_scores(model, question).frame
    print(
        scores.nlargest(4, "last_to_carriers")[
            ["layer", "head", "last_to_carriers", "sink_rate", "entropy"]
        ]
    )

    # By hand: any number that you can compute, inside the block of an edit.
    def log_p() -> float:
        return answer_log_probability(model, [question.prompt], [answer_text(question)])[0]

    print(f"\nlog p of the right line, nothing taken out: {log_p():.4f}")
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            with hooks.ablate_heads(model, [(layer, head)]):
                print(f"  without head {layer}.{head}: {log_p():9.4f}")

    # The same for all heads at once, beside what first order predicts from one backward pass.
    found = ost.ablation(
        model, task, lengths=[length], what="heads", measures=["collapse", "answers"]
    )
    print(found.top(4)[["target", "quantity", "value", "ablated", "effect", "predicted_effect"]])
    print(found.agreement[["quantity", "spearman", "same_sign", "within_factor_2"]])


if __name__ == "__main__":
    main()
