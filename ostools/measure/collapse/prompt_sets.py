"""The prompts that `collapse` compares, on token ids: encoded, proved, checked against the context, packed into a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.measure.passes.trees import PrefixTree, prefix_tree
from ostools.models import Prompt, context_length, encode
from ostools.models.tokenizer_calls import token_ids_of_each
from ostools.models.tokens import control_ids, frame, token_text, tokenizer_of
from ostools.tasks import CollapseTask, Pair
from ostools.tasks.repeats import TaskOfIds


class ModelEncoder:
    """A model's tokenizer as `tasks.Encoder`: many texts at once, each as `models.encode` encodes it; without its BOS where
    `bos` is false."""

    def __init__(self, model: TransformerBridge, bos: bool = True) -> None:
        self.model = model
        self.bos = bos
        self._known: set[int] | None = None

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each text. Raises `InputError` for whatever `encode` refuses in the first text, and for text
        that becomes a control or unknown token in the others."""
        tokenizer: Any = self.model.tokenizer
        known_ids = self._checked(texts[0])
        id_rows = token_ids_of_each(tokenizer, texts, add_special_tokens=True, split_special_tokens=True)
        for index in set().union(*map(set, id_rows)) - known_ids:
            if index in control_ids(tokenizer):
                raise InputError(
                    f"expected items that the tokenizer knows, found that it makes {self.token(index)!r} of one"
                )
        return [tuple(ids) if self.bos else self._without_bos(ids) for ids in id_rows]

    def token(self, index: int) -> str:
        return token_text(self.model.tokenizer, index)

    def _without_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        tokenizer: Any = self.model.tokenizer
        if tokenizer.bos_token_id is None or ids[0] != tokenizer.bos_token_id:
            raise InputError("bos=False takes the tokenizer's BOS out, but this tokenizer puts none before a text")
        return tuple(ids[1:])

    def _checked(self, text: str) -> set[int]:
        """The ids that are known to be right: `encode` is too slow for every text, and refuses what can be wrong in one."""
        if self._known is None:
            after = frame(tokenizer_of(self.model))[1]
            if after:
                raise InputError(
                    f"expected prompts to end in their text, found a tokenizer that puts {self.token(after[0])!r} behind "
                    "every text: that token would be compared and repeated; set its add_eos_token to false"
                )
            self._known = set(encode(self.model, text).ids.tolist())
        return self._known


@dataclass(frozen=True)
class PromptSet:
    """The pairs of one seed, the distinct prompts in them (v of pair k is prompt `first[k]`, v* is `second[k]`), and those
    prompts packed into a tree."""

    seed: int
    pairs: tuple[Pair, ...]
    prompts: tuple[tuple[int, ...], ...]
    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]
    tree: PrefixTree

    @classmethod
    def build(
        cls, model: TransformerBridge, task: CollapseTask, lengths: list[int], seed: int, bos: bool = True
    ) -> PromptSet:
        """The task's pairs at those lengths. Raises `InputError` where one does not fit the model's context."""
        if isinstance(task, TaskOfIds):
            pairs = _of_ids(model, task, lengths, bos)
        else:
            encoder, context = ModelEncoder(model, bos), context_length(model)
            # Each item is a token or more, so a length beyond the context needs no tokenizing.
            pairs = tuple(task.pairs(encoder, lengths, seed)) if lengths[-1] <= context else ()
            if not pairs or _tokens(pairs) > context:
                raise _does_not_fit(context, task, encoder, lengths[-1], seed)
        index: dict[tuple[int, ...], int] = {}
        first = torch.tensor([index.setdefault(pair.ids, len(index)) for pair in pairs])
        second = torch.tensor([index.setdefault(pair.extended, len(index)) for pair in pairs])
        return cls(seed, pairs, tuple(index), first, second, prefix_tree(tuple(index)))

    def only(self, pairs: Sequence[int]) -> tuple[PromptSet, Int[Tensor, " prompt"]]:
        """Select pairs by number; and the indices of their prompts."""
        pair_indices = torch.stack([self.first, self.second])[:, list(pairs)]
        prompt_indices, (first, second) = torch.unique(pair_indices, return_inverse=True)
        prompts = tuple(self.prompts[prompt] for prompt in prompt_indices.tolist())
        chosen_pairs = tuple(self.pairs[pair] for pair in pairs)
        return PromptSet(self.seed, chosen_pairs, prompts, first, second, prefix_tree(prompts)), prompt_indices

    def longest(self) -> tuple[int, ...]:
        return max(self.prompts, key=len)

    def probes(self, count: int) -> list[int]:
        """The prompts that are also run alone: of evenly spread lengths, and off the trunk where there are branches."""
        off_trunk = [prompt for prompt, end in enumerate(self.tree.ends) if end >= self.tree.trunk]
        by_length = sorted(off_trunk or range(len(self.prompts)), key=lambda prompt: len(self.prompts[prompt]))
        return list(dict.fromkeys(by_length[(2 * step + 1) * len(by_length) // (2 * count)] for step in range(count)))

    def prompt_lengths(self) -> list[int]:
        """How many items the pair has in which each prompt first occurs: what an error message names."""
        length_by_prompt: dict[int, int] = {}
        for pair, *prompts in zip(self.pairs, self.first.tolist(), self.second.tolist(), strict=True):
            for prompt in prompts:
                length_by_prompt.setdefault(prompt, pair.length)
        return [length_by_prompt[prompt] for prompt in range(len(self.prompts))]

    def columns(self) -> dict[str, Any]:
        """pair, seed, length and tokens of each pair."""
        return {
            "pair": np.array([pair.kind for pair in self.pairs]),
            "seed": self.seed,
            "length": np.array([pair.length for pair in self.pairs]),
            "tokens": np.array([len(pair.ids) for pair in self.pairs]),
        }


def _of_ids(model: TransformerBridge, task: TaskOfIds, lengths: list[int], bos: bool) -> tuple[Pair, ...]:
    """Pairs of token ids, each row of which is a prompt of this model."""
    if not bos:
        raise InputError(
            f"{task.name}: bos=False takes out what a tokenizer adds, but it does not add anything to ids: leave bos=False out"
        )
    if lengths[-1] > context_length(model):
        raise InputError(
            f"{task.name} at length {lengths[-1]} does not fit the model's context of {context_length(model)} tokens"
        )
    pairs = tuple(task.pairs(ModelEncoder(model), lengths))
    for pair in pairs:
        for ids in (pair.ids, pair.extended):
            Prompt.from_ids(model, ids)
    return pairs


def _tokens(pairs: Iterable[Pair]) -> int:
    """How many tokens the longest prompt has."""
    return max(len(pair.extended) for pair in pairs)


def _does_not_fit(context: int, task: CollapseTask, encoder: ModelEncoder, length: int, seed: int) -> InputError:
    """The error for a sequence too long for the context, with the longest that fits."""
    fits, beyond = 0, min(length, context + 1)
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        small = _tokens(task.pairs(encoder, [middle], seed)) <= context
        fits, beyond = (middle, beyond) if small else (fits, middle)
    hint = f"the longest that fits is {fits}" if fits else "not even one item fits"
    return InputError(
        f"{task.name} at length {length} does not fit the model's context of {context} tokens with its question and the "
        f"repeated token: {hint}"
    )
