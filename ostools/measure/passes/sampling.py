"""The next token out of its logits: the most likely one, or one drawn at a temperature."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground.errors import InputError

Seed = int | str
# Given logits and which prompts their rows belong to, each row's next token.
Chooser = Callable[[Float[Tensor, "batch d_vocab"], Sequence[int]], Int[Tensor, " batch"]]


def chooser(temperature: float | int, seeds: Sequence[Seed] | None, prompts: int) -> Chooser:
    """Chooser of the next token of each of so many prompts: greedily at temperature 0, else drawn by each prompt's seed.

    Raises `InputError` for a temperature that is no finite number of at least 0, and where drawing has not one seed a prompt.
    """
    require_temperature(temperature)
    if temperature == 0:
        return greedy
    if seeds is None or len(seeds) != prompts:
        seed_count = "none" if seeds is None else str(len(seeds))
        raise InputError(
            f"answers: expected one seed for each of the {prompts} prompts at temperature {temperature}, found {seed_count}"
        )
    return Sampler(float(temperature), seeds)


def require_temperature(temperature: object) -> None:
    """Refuse, with `InputError`, what is no temperature."""
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, (int, float))
        or not 0 <= temperature < float("inf")
    ):
        raise InputError(f"answers: expected a temperature of 0 (greedy) or more, found {temperature!r}")


def greedy(logits: Float[Tensor, "batch d_vocab"], prompts: Sequence[int]) -> Int[Tensor, " batch"]:
    """The most likely token; of several that are exactly as likely the one that `torch.argmax` gives."""
    return logits.argmax(-1)


class Sampler:
    """Tokens with probability softmax(logits / temperature), by the inverse of their cumulative distribution in float64.

    Each prompt has a stream of random numbers of its own and takes one a token: what it draws depends neither on its neighbours
    in a batch nor on how many there are.
    """

    def __init__(self, temperature: float, seeds: Sequence[Seed]) -> None:
        self.temperature = temperature
        # By the hash of a text: streams of neighbouring whole numbers are unrelated.
        self.streams = [random.Random(f"answer {seed}") for seed in seeds]

    def __call__(self, logits: Float[Tensor, "batch d_vocab"], prompts: Sequence[int]) -> Int[Tensor, " batch"]:
        exact = logits.double()
        # Below its maximum first: a small temperature would overflow.
        weights = torch.softmax((exact - exact.amax(-1, keepdim=True)) / self.temperature, dim=-1)
        cumulative = weights.cumsum(-1)
        total = cumulative[:, -1:].contiguous()
        thresholds = torch.tensor([[self.streams[prompt].random()] for prompt in prompts]).to(total) * total
        # Never after the last token that has any probability, should the product round up to the total.
        last = torch.searchsorted(cumulative, total)
        return torch.minimum(torch.searchsorted(cumulative, thresholds, right=True), last)[:, 0]
