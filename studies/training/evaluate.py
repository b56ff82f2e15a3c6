"""Abilities of the trained model: greedy accuracy by task and length, and bits per byte on held-out
text.

Greedy decoding gives the wanted line exactly when, fed that line, the model's first choice is right
at every token of it; so one forward pass over prompt and answer measures what generating token by
token would, a batch at a time. The whole matrix takes about a minute on one core.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from ostools.tasks.appendix_c import AppendixTask
from studies.training.corpus import BOS_ID
from studies.training.examples import Example, draw_prompts, encode_example, pack_text, pad
from studies.training.loop import Decoder, weighted_loss
from studies.training.recipe import Recipe

BANDS = (
    (1, 8),
    (9, 16),
    (17, 32),
    (33, 48),
    (49, 64),
    (65, 96),
    (97, 128),
    (129, 192),
    (193, 256),
    (257, 384),
)
"""Lengths in items, both ends included. No band crosses the longest trained length of a task."""

_COPIES = (
    {},
    {"uniform": True},
    {"uniform": True, "hint": True},
    {"uniform": True, "separator_every": 3},
    {"interleave": True},
)
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "copy-last": _COPIES,
    "copy-first": _COPIES,
    "copy": tuple(options for options in _COPIES if "hint" not in options),
    "sum-ones": ({}, {"tidy": True}),
    "count-ones": ({}, {"tidy": True}, {"interleave": True}, {"separator_every": 3}),
    "count-ones-bernoulli": ({}, {"separator_every": 3}),
    "count-ones-figure-5": ({}, {"uniform": True}),
    "count-word": ({},),
}
VARIANTS = tuple(
    AppendixTask(name, **options) for name, variants in _OPTIONS.items() for options in variants
)
"""Tasks that are evaluated. Where the paper's own sequence has always the same answer (the zero of
1...10), `uniform` tells whether the model looks: there a constant answer is right one time in
ten."""


@dataclass(frozen=True)
class Accuracy:
    """Share of the prompts of one task and one band of lengths that were answered exactly, to the
    end of the line.
    """

    task: str
    hint: bool
    separator_every: int | None
    interleave: bool
    uniform: bool
    tidy: bool
    length_from: int
    length_to: int
    examples: int
    accuracy: float
    within_training: bool


def accuracy_table(
    model: Decoder,
    tokenizer: Tokenizer,
    trained_lengths: dict[str, int],
    *,
    examples: int = 32,
    variants: Sequence[AppendixTask] = VARIANTS,
    bands: Sequence[tuple[int, int]] = BANDS,
) -> Iterator[Accuracy]:
    """A row for each variant and band: `examples` prompts, their lengths spread evenly, each with a
    seed of its own.

    Where the paper's sequence is the same for every seed, there are as many different prompts as
    lengths, and no more.
    """
    for task in variants:
        for low, high in bands:
            right = exact(model, _prompts(task, low, high, examples, tokenizer))
            plain = (
                "name",
                "mode",
                "examples",
                "p",
                "base",
                "corrupt",
            )  # as printed in every variant, and never corrupt
            options = {name: value for name, value in asdict(task).items() if name not in plain}
            share = sum(right) / len(right)
            yield Accuracy(task.name, **options, length_from=low, length_to=high, examples=len(right),
                           accuracy=round(share, 4), within_training=high <= trained_lengths[task.name])  # fmt: skip


def _prompts(
    task: AppendixTask, low: int, high: int, examples: int, tokenizer: Tokenizer
) -> list[Example]:
    lengths = [low + i * (high - low + 1) // examples for i in range(examples)]
    if task.items(high, 0) == task.items(high, 1):
        lengths = sorted(set(lengths))
    seeds = range(len(lengths))
    return [
        encode_example(task, task.items(length, seed), tokenizer, Recipe())
        for length, seed in zip(lengths, seeds, strict=True)
    ]


@torch.no_grad()
def exact(model: Decoder, examples: Sequence[Example], batch: int = 16) -> list[bool]:
    """Booleans: greedy decoding after a prompt gives its whole answer line and ends there."""
    right: list[bool] = []
    for start in range(0, len(examples), batch):
        ids, _ = pad(examples[start : start + batch])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        for row, example in enumerate(examples[start : start + batch]):
            end = len(example.ids)
            choices = model.lm_head(hidden[row, example.n_prompt - 1 : end - 1]).argmax(-1)
            right.append(bool((choices == ids[row, example.n_prompt : end]).all()))
    return right


@torch.no_grad()
def validation_loss(
    recipe: Recipe, model: Decoder, tokenizer: Tokenizer, tokens: int = 60_000
) -> float:
    """The loss of prompts that no step has seen, in nats a token, weighted as in training: the
    recipe's mixture at its end.

    By this number, and that of held-out text, a recipe is chosen among recipes.
    """
    stream = random.Random(f"{recipe.seed} validation prompts")
    prompts = draw_prompts(recipe, stream, recipe.steps - 1, tokens, tokenizer)
    prompts.sort(key=lambda example: len(example.ids))
    loss = weight = 0.0
    for start in range(0, len(prompts), 16):
        ids, weights = pad(prompts[start : start + 16])
        batch_weight = float(weights[:, 1:].sum())
        loss += float(weighted_loss(model, ids, weights)) * batch_weight
        weight += batch_weight
    return loss / weight


@torch.no_grad()
def bits_per_byte(
    model: Decoder, paragraphs: Sequence[str], tokenizer: Tokenizer, length: int = 256
) -> float:
    """Cross-entropy of the text in bits, over its UTF-8 bytes (the end of each paragraph counts as
    one).

    The text is cut into blocks of `length` tokens, each read after a `<bos>` and nothing else.
    """
    text: Int[Tensor, " corpus"] = pack_text(paragraphs, tokenizer)
    nats = 0.0
    for start in range(0, len(text), length):
        block = text[start : start + length]
        ids = torch.cat([torch.tensor([BOS_ID]), block])[None]
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        nats += functional.cross_entropy(model.lm_head(hidden)[0], block, reduction="sum").item()
    return nats / math.log(2) / sum(len(paragraph.encode()) + 1 for paragraph in paragraphs)
