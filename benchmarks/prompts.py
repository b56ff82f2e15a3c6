"""Many prompts in one call of `collapse` against a loop of calls, for one thread and for two.

Both measure the same prompts in parts that take turns, so that a busy machine slows both down.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.tasks.repeats import last_token

PROMPTS, TOKENS, PARTS = 100, 64, 4


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _collapse(model: TransformerBridge) -> None:
    source = random.Random(0)
    tasks = [
        last_token("".join(source.choice("0123456789 abc") for _ in range(TOKENS - 1)))
        for _ in range(PROMPTS)
    ]
    ost.collapse(model, tasks[:1], lengths=[1])
    loop = together = 0.0
    for part in range(PARTS):
        here = tasks[part::PARTS]
        loop += _seconds(
            lambda here=here: [ost.collapse(model, task, lengths=[1]) for task in here]
        )
        together += _seconds(lambda here=here: ost.collapse(model, here, lengths=[1]))
    print(
        f"  collapse     loop {loop:6.1f} s   one call {together:6.1f} s   {loop / together:4.2f}x"
    )


def main() -> None:
    model, threads = ost.load_model(device="cpu"), torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        print(
            f"\n{PROMPTS} prompts of {TOKENS} tokens, embedded model, {count} thread{'s' * (count > 1)}"
        )
        _collapse(model)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
