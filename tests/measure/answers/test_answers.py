"""What a model answers: Hugging Face's own greedy decoding, the whole text at every step, and answers of known texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

import hooks
from ostools.ground.errors import InputError
from ostools.measure.answers.answers import NextToken, answers
from ostools.models import encode
from ostools.tasks import AppendixTask
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, Family, make_model, tiny_model

TEXTS = ("How many ones? 1111", "How many ones? 1101", "the in he a the")


def whole_text(model, ids: list[int], steps: int) -> list[int]:
    """The oracle without a cache, prompt by prompt: every token from a pass over everything before it."""
    written: list[int] = []
    for _ in range(steps):
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *written]]), use_cache=False)
        written.append(int(logits[0, -1].argmax()))
    return written


def without_ends(model) -> None:
    """Answers of full length, so that two routes have much to agree on."""
    model.original_model.generation_config.eos_token_id = None
    model.tokenizer.eos_token = None


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_equals_hugging_faces_own_greedy_decoding(family: Family) -> None:
    model = tiny_model(family, seed=3, scale=1.5, fresh=True)
    without_ends(model)
    own = make_model(family, seed=3, scale=1.5)
    found = answers(model, TEXTS, max_new_tokens=8)
    for text, answer in zip(TEXTS, found, strict=True):
        ids = encode(model, text).ids[None]
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        written: Any = own.generate(ids, attention_mask=torch.ones_like(ids), **options)  # pyright: ignore[reportCallIssue]
        assert answer.ids == tuple(written[0, ids.shape[1] :].tolist())
        assert answer.ended == "length"
    assert len({answer.ids for answer in found}) > 1


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_edits_act_as_on_the_whole_text(family: Family) -> None:
    model = tiny_model(family, seed=7, scale=1.5, fresh=True)
    without_ends(model)
    plain = answers(model, TEXTS, max_new_tokens=8)
    with (
        hooks.mask_scores(model, lambda query, key: (query - key < 3) | (key == 0)),
        hooks.ablate_heads(model, [(0, 1)]),
    ):
        edited = answers(model, TEXTS, max_new_tokens=8)
        for text, answer in zip(TEXTS, edited, strict=True):
            assert answer.ids == tuple(whole_text(model, encode(model, text).ids.tolist(), 8))
    assert edited != plain


def test_a_pattern_that_is_replaced_is_that_of_the_whole_text() -> None:
    model = tiny_model("llama", seed=7, scale=1.5, fresh=True)
    without_ends(model)
    plain = answers(model, TEXTS, max_new_tokens=6)

    def uniform(pattern: torch.Tensor, layer: int) -> torch.Tensor:  # of one query it would see the first key alone
        causal = torch.ones_like(pattern).tril()
        return causal / causal.sum(-1, keepdim=True)

    with hooks.replace_pattern(model, uniform):
        edited = answers(model, TEXTS, max_new_tokens=6)
        for text, answer in zip(TEXTS, edited, strict=True):
            assert answer.ids == tuple(whole_text(model, encode(model, text).ids.tolist(), 6))
    assert edited != plain


@contextmanager
def reads(model) -> Iterator[list[int]]:
    """How many tokens each forward pass reads; a watcher in the embedding, outside of what counts as an edit."""
    seen: list[int] = []
    forward = model.original_model.forward

    def watched(*arguments, **options):
        ids: Any = arguments[0] if arguments else options["input_ids"]
        seen.append(ids.shape[1])
        return forward(*arguments, **options)

    model.original_model.forward = watched
    yield seen
    model.original_model.forward = forward


def test_a_hook_that_nobody_knows_reads_the_whole_text_at_every_step() -> None:
    model = tiny_model("gemma", seed=1, fresh=True)
    without_ends(model)
    length = len(encode(model, TEXTS[0]).ids)
    with reads(model) as seen:
        answers(model, TEXTS[:1], max_new_tokens=4)
    assert seen == [length, 1, 1, 1]

    def last_position(tensor, hook):  # at every step another one: through a cache, older ones would stay changed
        out = tensor.clone()
        out[:, -1] += 0.5
        return out

    point = model.blocks[0].hook_resid_pre
    point.add_hook(last_position)
    try:
        with reads(model) as seen:
            found = answers(model, TEXTS[:1], max_new_tokens=4)
        assert found[0].ids == tuple(whole_text(model, encode(model, TEXTS[0]).ids.tolist(), 4))
    finally:
        model.reset_hooks()
    assert seen == [length, length + 1, length + 2, length + 3]


def test_answers_end_at_their_own_stop_and_keep_all_that_was_written(embedded) -> None:
    prompt = AppendixTask("count-ones").prompt(12)
    (whole,) = answers(embedded, [prompt], max_new_tokens=24)
    stops = [lambda text: " maths" in text, lambda text: False]
    cut, other = answers(embedded, [prompt] * 2, max_new_tokens=24, stops=stops)
    assert (cut.text, cut.ended) == ("\nThe final answer to your maths", "stop")
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert other == whole
    (short,) = answers(embedded, [prompt], max_new_tokens=3)
    assert (short.ids, short.ended) == (whole.ids[:3], "length")
    assert whole.ids[-1] == embedded.tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompts": []}, "at least one prompt, found none"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected a whole number of at least 1, found 0"),
        ({"max_new_tokens": 250}, r"prompt of 8 tokens and max_new_tokens=250 do not fit the model's context of 256"),
        ({"stops": []}, "one stop for each of 1 prompts, found 0"),
    ],
)
def test_refuses(options: dict, words: str) -> None:
    model = tiny_model("gemma")
    with pytest.raises(InputError, match=words):
        answers(model, **({"prompts": ["1111111"], "max_new_tokens": 4} | options))


LOGITS = torch.tensor([1.0, -2.0, 0.5, float("-inf"), 0.0, 3.0])


@pytest.mark.parametrize("temperature", [0.5, 2.5])
def test_draws_with_the_probabilities_of_the_softmax(temperature: float) -> None:
    n = 4000
    drawn = NextToken(temperature, range(n), n)(LOGITS.expand(n, -1), range(n))
    counts = torch.bincount(drawn, minlength=len(LOGITS)).double()
    expected = n * torch.softmax(LOGITS.double() / temperature, dim=-1)
    assert counts[3] == 0
    possible = expected > 0
    assert chisquare(counts[possible].numpy(), expected[possible].numpy()).pvalue > 1e-3


def test_each_prompt_draws_from_its_own_stream_and_a_low_temperature_is_greedy() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together, alone = NextToken(1.0, (5, "b", 7), 3), NextToken(1.0, ("b",), 1)
    drawn = torch.stack([together(logits, [0, 1, 2]) for _ in range(10)])
    assert drawn[:, 1].tolist() == [int(alone(logits[1:2], [0])) for _ in range(10)]
    for temperature in (0, 1e-6, 1e-300):
        assert torch.equal(NextToken(temperature, range(3), 3)(logits, range(3)), logits.argmax(-1))


def test_never_a_token_without_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.1, float("-inf")]])
    choose = NextToken(1.0, (0,), 1)
    for number, token in ((0.0, 1), (math.nextafter(1.0, 0.0), 3), (1.0, 3)):
        monkeypatch.setattr(choose.streams[0], "random", lambda number=number: number)
        assert choose(logits, [0]).tolist() == [token]


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
def test_refuses_what_nothing_can_be_drawn_by(temperature: float, seeds: tuple | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        NextToken(temperature, seeds, 2)
