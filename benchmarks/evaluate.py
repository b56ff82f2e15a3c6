"""Answers batched against one by one, and the probability of the right line against both.

python -m benchmarks.evaluate
"""

from __future__ import annotations

import ostools as ost
from benchmarks.timing import in_turn
from ostools.measure.answers.answers import answer_log_probability, answers
from ostools.measure.position import answer_text
from ostools.measure.task_prompt import render_prompt

ROUNDS, LENGTHS, NEW = 3, range(4, 129, 4), 20


def main() -> None:
    model = ost.load_model(device="cpu")
    posed = [render_prompt(model, ost.tasks.task("count-ones"), n) for n in LENGTHS]
    prompts, lines = [one.prompt for one in posed], [answer_text(one) for one in posed]
    together = answers(model, prompts, max_new_tokens=NEW)
    if together != [answers(model, [prompt], max_new_tokens=NEW)[0] for prompt in prompts]:
        raise SystemExit("batched answers are not those of each prompt alone")
    contenders = {
        "batched": lambda: answers(model, prompts, max_new_tokens=NEW),
        "one by one": lambda: [answers(model, [prompt], max_new_tokens=NEW) for prompt in prompts],
        "probability of the right line": lambda: answer_log_probability(model, prompts, lines),
    }
    seconds = in_turn(contenders, ROUNDS)
    print(
        f"\n{len(prompts)} prompts of {LENGTHS[0]} to {LENGTHS[-1]} items, embedded model: the same answers"
    )
    for name, taken in seconds.items():
        print(f"  {name:30s} {taken:8.2f} s   {taken / seconds['batched']:6.2f}x the batched time")


if __name__ == "__main__":
    main()
