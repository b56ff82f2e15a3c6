"""The training data: prompts of the paper with their answers, and packed plain text; a pure
function of seed and step.

No state is carried from step to step. Steps come in groups: the prompts of a group are drawn
together, ordered by length and cut into batches of about equal size, so that little is padded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from ostools.tasks.appendix_c import HINT, AppendixTask
from studies.training.corpus import BOS_ID, EOS_ID, PAD_ID
from studies.training.recipe import Recipe


@dataclass(frozen=True)
class Example:
    """One prompt and its answer as token ids, the weight of each token in the loss, and how many
    ids the prompt has."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    n_prompt: int


@dataclass(frozen=True)
class Batch:
    """Data of one step: padded prompts, how much each of their tokens counts as a target, and
    blocks of plain text."""

    task_ids: Int[Tensor, "batch pos"]
    task_weights: Float[Tensor, "batch pos"]
    text_ids: Int[Tensor, "text_batch text_pos"]


def draw_task(stream: random.Random, shares: Mapping[str, float]) -> AppendixTask:
    """A task of the mixture with its options: half the copying prompts carry the hint, a third
    separators, half of those with slips of the paper's pen are tidy."""
    name = stream.choices(list(shares), list(shares.values()))[0]
    hint = name in ("copy-last", "copy-first") and stream.random() < 0.5
    digits = name not in ("sum-ones", "count-word")
    separator = 3 if digits and stream.random() < 1 / 3 else None
    copying = name in ("copy-last", "copy-first", "copy")
    slips = name in ("sum-ones", "count-ones", "count-ones-bernoulli")
    way = stream.random()
    interleave = (copying or name == "count-ones") and way < 0.1
    uniform = (copying and way > 0.4) or (name == "count-ones-figure-5" and way > 0.5)
    tidy = slips and stream.random() < 0.5
    return AppendixTask(name, hint, separator, interleave, uniform, tidy=tidy)


def draw_items(task: AppendixTask, length: int, stream: random.Random) -> tuple[str, ...]:
    """The task's own sequence; a third of the paper's copying sequences get their odd digit
    flipped.

    Otherwise the last digit of 1...10 would always be a zero, and the model could answer without
    looking.
    """
    items = task.items(length, stream.getrandbits(62))
    if task.name in ("copy-last", "copy-first") and not task.uniform and stream.random() < 1 / 3:
        odd = -1 if task.name == "copy-last" else 0
        flipped = "1" if items[odd] == "0" else "0"
        return (*items[:-1], flipped) if odd else (flipped, *items[1:])
    return items


def draw_length(recipe: Recipe, longest: int, stream: random.Random) -> int:
    """A number of items from 1 to `longest`, by the recipe's law (for "falling", the inverse of its
    distribution).
    """
    if recipe.length_law == "falling":
        share = -math.expm1(-longest / recipe.length_scale)
        return min(longest, 1 + int(-recipe.length_scale * math.log1p(-share * stream.random())))
    if stream.random() < 0.5:
        return stream.randint(1, longest)
    return min(longest, int((longest + 1) ** stream.random()))


def encode_example(
    task: AppendixTask, items: Sequence[str], tokenizer: Tokenizer, recipe: Recipe
) -> Example:
    """Tokens and weights: the answer counts fully (as a whole, by the root of its length), the line
    around it and the paper's own words lightly.

    What cannot be predicted does not count: the sequence, and whether a hint follows (a model that
    learned to expect one would write the hint itself instead of answering).
    """
    before, sequence, after = task.parts(items)
    prompt = tokenizer.encode(before + sequence + after)
    hint_at = len(before + sequence + after) - (len(HINT) if task.hint else 0)
    weights = [
        0.0
        if token == BOS_ID
        or start == hint_at
        or (start < len(before + sequence) and end > len(before))
        else recipe.template_weight
        for token, (start, end) in zip(prompt.ids, prompt.offsets, strict=True)
    ]
    answer = task.key(items)
    line = "\n" + task.answer_line(answer)
    completion = tokenizer.encode(line, add_special_tokens=False)
    fixed = sum(end <= len(line) - len(answer) for _, end in completion.offsets)
    answer_tokens = len(completion.ids) - fixed + 1
    weights += [recipe.line_weight] * fixed + [answer_tokens**-0.5] * answer_tokens
    return Example((*prompt.ids, *completion.ids, EOS_ID), tuple(weights), len(prompt.ids))


def draw_prompts(
    recipe: Recipe, stream: random.Random, step: int, tokens: int, tokenizer: Tokenizer
) -> list[Example]:
    """Prompts of the recipe's mixture as it is at a step, until they have so many `tokens`."""
    pool: list[Example] = []
    while tokens > 0:
        task = draw_task(stream, recipe.shares)
        length = draw_length(recipe, recipe.longest_at(step, recipe.longest[task.name]), stream)
        pool.append(encode_example(task, draw_items(task, length, stream), tokenizer, recipe))
        tokens -= len(pool[-1].ids)
    return pool


def draw_group(recipe: Recipe, group: int, tokenizer: Tokenizer) -> list[list[Example]]:
    """The prompts of one group of steps, a list for each step: alike in length within a step, steps
    in random order."""
    stream = random.Random(f"{recipe.seed} prompts {group}")
    pool = draw_prompts(
        recipe,
        stream,
        group * recipe.steps_per_group,
        recipe.task_tokens * recipe.steps_per_group,
        tokenizer,
    )
    pool_tokens = sum(len(example.ids) for example in pool)
    pool.sort(key=lambda example: len(example.ids))
    batches: list[list[Example]] = [[] for _ in range(recipe.steps_per_group)]
    before = 0
    for example in pool:
        batches[
            min(before * recipe.steps_per_group // pool_tokens, recipe.steps_per_group - 1)
        ].append(example)
        before += len(example.ids)
    filled = [batch for batch in batches if batch]
    while (
        len(filled) < recipe.steps_per_group
    ):  # one prompt longer than a step's share leaves a step empty
        filled.append(filled[-1])
    stream.shuffle(filled)
    return filled


def pad(examples: Sequence[Example]) -> tuple[Int[Tensor, "batch pos"], Float[Tensor, "batch pos"]]:
    """Ids and weights, padded on the right: causal attention never looks there, and the weight
    there is 0.
    """
    width = max(len(example.ids) for example in examples)
    ids = torch.full((len(examples), width), PAD_ID, dtype=torch.int64)
    weights = torch.zeros(len(examples), width)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        weights[row, : len(example.ids)] = torch.tensor(example.weights)
    return ids, weights


def pack_text(paragraphs: Sequence[str], tokenizer: Tokenizer) -> Int[Tensor, " corpus"]:
    """All paragraphs in one row of ids, each ended by `<eos>`."""
    encoded = tokenizer.encode_batch(list(paragraphs), add_special_tokens=False)
    return torch.tensor(
        [token for paragraph in encoded for token in (*paragraph.ids, EOS_ID)], dtype=torch.int64
    )


def draw_text(recipe: Recipe, step: int, text: Int[Tensor, " corpus"]) -> Int[Tensor, "batch pos"]:
    """Blocks of plain text from random places, each after a `<bos>`; some say their first half
    twice.

    Repeated text teaches to look up what followed the last time, in few steps and at every token.
    The copying prompts need that, and alone, with one answer each, they hardly teach it.
    """
    rows, width = max(1, recipe.text_tokens // recipe.text_length), recipe.text_length - 1
    generator = np.random.default_rng([recipe.seed, 1, step])
    starts = generator.integers(0, len(text) - width, rows)
    blocks = torch.stack([text[start : start + width] for start in starts.tolist()])
    repeated = torch.from_numpy(generator.random(rows) < recipe.repeat_share)
    half = width // 2
    blocks[repeated, width - half :] = blocks[repeated, :half]
    return torch.cat([torch.full((rows, 1), BOS_ID), blocks], dim=1)


def batches(
    recipe: Recipe, first_step: int, tokenizer: Tokenizer, text: Int[Tensor, " corpus"]
) -> Iterator[Batch]:
    """The batches of the steps from `first_step` to the recipe's last."""
    group, prompts = -1, []
    for step in range(first_step, recipe.steps):
        if step // recipe.steps_per_group != group:
            group = step // recipe.steps_per_group
            prompts = draw_group(recipe, group, tokenizer)
        ids, weights = pad(prompts[step % recipe.steps_per_group])
        yield Batch(ids, weights, draw_text(recipe, step, text))
