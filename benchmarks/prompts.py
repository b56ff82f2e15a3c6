"""Many prompts in one call against a loop of calls, for one thread and for two; and what no sharing can take away.

Both measure the same prompts in parts that take turns, so that a busy machine slows both down. The limit is the time of the
prompts' own products and their norms alone: what is left of a call when every read and every check were free.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.jacobian import norms as exact
from ostools.measure.jacobian.linearised import Linearised
from ostools.measure.jacobian.memory import plan
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.tasks.repeats import last_token

PROMPTS, TOKENS, PARTS = 100, 64, 4
LINEARISATIONS = ("full", "frozen")


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _prompts(model: TransformerBridge) -> list[Prompt]:
    source, d_vocab = random.Random(0), int(model.cfg.d_vocab)
    return [Prompt.from_ids(model, [source.randrange(10, d_vocab) for _ in range(TOKENS)]) for _ in range(PROMPTS)]


def _products(model: TransformerBridge, prompts: Sequence[Prompt]) -> float:
    """Seconds of the rows of every linearisation and of their norms, the network read beforehand."""
    chunk, seconds = plan(Shape.of(model), TOKENS, 1, live=True, max_memory=1 << 40).chunk, 0.0
    for prompt in prompts:
        embedded, cores = model.input_to_embed(prompt.ids[None])[0][0].detach(), {}
        for name in LINEARISATIONS:
            route = Linearised(model, prompt.ids, name, chunk=chunk, cores=cores)

            def measured(route: Linearised = route, embedded: torch.Tensor = embedded) -> None:
                with exact.exact_jacobians(route, embedded, None, None) as rows:
                    exact.exact_norms(rows, rows.device)

            seconds += _seconds(measured)
    return seconds


def _sensitivity(model: TransformerBridge) -> None:
    prompts = _prompts(model)
    ost.sensitivity(model, prompts[:2])
    loop = together = products = difference = 0.0
    for part in range(PARTS):
        here, found = prompts[part::PARTS], []
        loop += _seconds(lambda here=here, found=found: found.extend(ost.sensitivity(model, each) for each in here))
        together += _seconds(lambda here=here, found=found: found.extend(ost.sensitivity(model, here)))
        products += _products(model, here)
        for one, other in zip(found, found[len(here) :], strict=False):
            error = (one.frame["operator_norm"] / other.frame["operator_norm"] - 1).abs().max()
            difference = max(difference, float(error))
    print(
        f"  sensitivity  loop {loop:6.1f} s   one call {together:6.1f} s   {loop / together:4.2f}x   products and norms alone "
        f"{products:6.1f} s, {loop / products:4.2f}x at most   largest difference {difference:.1g}"
    )


def _collapse(model: TransformerBridge) -> None:
    source = random.Random(0)
    tasks = [last_token("".join(source.choice("0123456789 abc") for _ in range(TOKENS - 1))) for _ in range(PROMPTS)]
    ost.collapse(model, tasks[:1], lengths=[1])
    loop = together = 0.0
    for part in range(PARTS):
        here = tasks[part::PARTS]
        loop += _seconds(lambda here=here: [ost.collapse(model, task, lengths=[1]) for task in here])
        together += _seconds(lambda here=here: ost.collapse(model, here, lengths=[1]))
    print(f"  collapse     loop {loop:6.1f} s   one call {together:6.1f} s   {loop / together:4.2f}x")


def main() -> None:
    model, threads = ost.load_model(device="cpu"), torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        print(f"\n{PROMPTS} prompts of {TOKENS} tokens, embedded model, {count} thread{'s' * (count > 1)}")
        _sensitivity(model)
        _collapse(model)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
