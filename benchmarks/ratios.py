"""What a derivative costs, certificate included, in plain float32 passes `model(ids)` of the same
prompt.

    python -m benchmarks.ratios [MODEL ...]

Without names, every model that is installed. The contenders of a row take turns; a row is the ratio
of their medians.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from benchmarks.timing import in_turn
from ostools.ground.errors import InputError
from ostools.models import Prompt

SENTENCE = (
    "The old man had two sons, and every evening they wrote to one another what the day had been. "
)
QWEN, GEMMA, SMOLLM2, EMBEDDED = (
    "qwen2.5-coder-1.5b-instruct",
    "gemma-3-270m",
    "smollm2-135m-instruct",
    "embedded",
)

LOGIT = {QWEN: (21, 5.0), GEMMA: (22, 5.0), SMOLLM2: (21, 5.0)}
SKETCH = {QWEN: (42, 9.0), GEMMA: (60, 5.5), SMOLLM2: (60, 8.0)}
BOTH = 1.6
EXACT = {EMBEDDED: 29, GEMMA: 54}
"""Tokens of each row, and the most plain passes that it may take."""
ROUNDS = 5


def main(names: Sequence[str] = ()) -> None:
    print(
        f"\nderivatives over a plain pass of the same prompt, float32, {torch.get_num_threads()} threads"
    )
    for name in names or (EMBEDDED, SMOLLM2, GEMMA, QWEN):
        try:
            model = ost.load_model(name, dtype="float32", device="cpu")
        except InputError:
            print(f"  {name}: not installed")
            continue
        for row in rows(name, model):
            print(row, flush=True)


def rows(name: str, model: TransformerBridge) -> Iterator[str]:
    """Lines of the table of one model, each measured when it is asked for."""
    full = partial(ost.sensitivity, linearisations=["full"], progress=False)
    sketch = partial(full, method="sketch", cotangents=8)
    if name in LOGIT:
        tokens, goal = LOGIT[name]
        yield _row(
            f"{name}: one logit, {tokens} tokens",
            model,
            tokens,
            partial(full, logit=_likeliest(model, tokens)),
            goal,
        )
    if name in SKETCH:
        tokens, goal = SKETCH[name]
        yield _row(f"{name}: sketch k = 8, {tokens} tokens", model, tokens, sketch, goal)
        both = partial(sketch, linearisations=["full", "frozen"])
        yield _row(f"{name}: full and frozen over full", model, tokens, both, BOTH, over=sketch)
    if name in EXACT:
        tokens = EXACT[name]
        yield _row(
            f"{name}: exact, {tokens} tokens",
            model,
            tokens,
            partial(full, method="exact"),
            rounds=1,
        )


def _row(
    name: str,
    model: TransformerBridge,
    tokens: int,
    derivative: Callable[..., object],
    goal: float | None = None,
    *,
    over: Callable[..., object] | None = None,
    rounds: int = ROUNDS,
) -> str:
    prompt = _prompt(model, tokens)

    def plain() -> object:
        with torch.no_grad():
            return model(prompt.ids[None])

    contenders = {
        "derivative": lambda: derivative(model, prompt),
        "base": plain if over is None else lambda: over(model, prompt),
    }
    for run in contenders.values() if rounds > 1 else ():  # the first run of each pays for imports
        run()
    seconds = in_turn(contenders, rounds)
    ratio = seconds["derivative"] / seconds["base"]
    verdict = (
        "" if goal is None else f"   goal {goal:5.2f}   {'met' if ratio <= goal else 'missed'}"
    )
    return f"  {name:58s} {seconds['derivative']:8.2f} s {ratio:8.2f} x{verdict}"


def _prompt(model: TransformerBridge, tokens: int) -> Prompt:
    ids = ost.models.encode(model, SENTENCE * (1 + tokens // 8)).ids.tolist()
    return Prompt.from_ids(model, ids[:tokens])


def _likeliest(model: TransformerBridge, tokens: int) -> int:
    with torch.no_grad():
        return int(model(_prompt(model, tokens).ids[None])[0, -1].argmax())


if __name__ == "__main__":
    main(sys.argv[1:])
