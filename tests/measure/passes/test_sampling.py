"""The next token: greedy, and drawn with the probabilities that the logits say."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare

from ostools.ground.errors import InputError
from ostools.measure.passes.sampling import Sampler, chooser, greedy

LOGITS = torch.tensor([1.0, -2.0, 0.5, float("-inf"), 0.0, 3.0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_draws_with_the_probabilities_of_the_softmax(temperature: float) -> None:
    n = 4000
    drawn = Sampler(temperature, range(n))(LOGITS.expand(n, -1), range(n))
    counts = torch.bincount(drawn, minlength=len(LOGITS)).double()
    expected = n * torch.softmax(LOGITS.double() / temperature, dim=-1)
    assert counts[3] == 0
    possible = expected > 0
    assert chisquare(counts[possible].numpy(), expected[possible].numpy()).pvalue > 1e-3


def test_streams_of_neighbouring_seeds_and_steps_are_unrelated() -> None:
    sampler, uniform = Sampler(1.0, range(200)), torch.zeros(200, 16)
    drawn = torch.stack([sampler(uniform, range(200)) for _ in range(50)]).double()
    assert abs(float(torch.corrcoef(torch.stack([drawn[:-1].flatten(), drawn[1:].flatten()]))[0, 1])) < 0.05
    assert abs(float(torch.corrcoef(torch.stack([drawn[:, :-1].flatten(), drawn[:, 1:].flatten()]))[0, 1])) < 0.05


def test_each_prompt_draws_from_its_own_stream() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together, alone = Sampler(1.0, (5, "b", 7)), Sampler(1.0, ("b",))
    for _ in range(10):
        assert together(logits, [0, 1, 2])[1] == alone(logits[1:2], [0])[0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-300])
def test_a_low_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sampler(temperature, range(40))(logits, range(40)), greedy(logits, range(40)))


def test_never_a_token_without_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.1, float("-inf")]])
    sampler = Sampler(1.0, (0,))
    for number, token in ((0.0, 1), (math.nextafter(1.0, 0.0), 3), (1.0, 3)):
        monkeypatch.setattr(sampler.streams[0], "random", lambda number=number: number)
        assert sampler(logits, [0]).tolist() == [token]


@pytest.mark.parametrize(
    ("temperature", "seeds", "words"),
    [
        (-1.0, (0, 1), "temperature of 0 .greedy. or more, found -1.0"),
        (math.nan, (0, 1), "found nan"),
        (math.inf, (0, 1), "found inf"),
        (1.0, None, "one seed for each of the 2 prompts at temperature 1.0, found none"),
        (1.0, (0,), "found 1"),
    ],
)
def test_refuses(temperature: float, seeds: tuple | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        chooser(temperature, seeds, 2)
