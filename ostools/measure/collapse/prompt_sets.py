"""The prompts that `collapse` compares, on token ids: encoded, proved, checked against the context,
packed into a tree.

`RenderedPairs` are a task's prompts at n and n + 1 items, rewritten by a mitigation, in the chat
template, up to a position. No theorem speaks of them. They are what a mitigation is judged on: can
the two questions still be told apart?
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from ostools import tasks
from ostools.ground import InputError, TransformerBridge
from ostools.measure.mitigated_prompts import rewriting
from ostools.measure.passes.last_tokens import PrefixTree, prefix_tree
from ostools.measure.position import (
    ANSWER,
    Position,
    ReadPrompt,
    read_at,
    require_prompt_end,
)
from ostools.measure.task_prompt import render_prompt
from ostools.mitigations import Mitigation, label
from ostools.models import EncodingOptions, Prompt, context_length, encode
from ostools.models.tokenizer_calls import control_ids, lead, token_ids_of_each
from ostools.models.tokens import fitted, require_chat, token_text, tokenizer_of
from ostools.tasks import CollapseTask, Encoder, ItemsAs, Pair, RepeatedIds, Task
from ostools.tasks.questions import question
from ostools.tasks.repeats import TaskOfIds


class OtherEndError(InputError):
    """The prompts of n and n + 1 items end in other tokens."""


@dataclass(frozen=True)
class ModelEncoder:
    """A model's tokenizer as `tasks.Encoder`: many texts at once, each as `models.encode` encodes
    it with that `bos`.
    """

    model: TransformerBridge
    bos: bool | None = None

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each text. Raises `InputError` for whatever `encode` refuses in the
        first text, and for text that becomes a control or unknown token in the others."""
        tokenizer = tokenizer_of(self.model)
        # `encode` is too slow for every text, and refuses what can be wrong in one.
        of_first = encode(self.model, texts[0], bos=self.bos).ids.tolist()
        id_rows = token_ids_of_each(
            tokenizer, texts, add_special_tokens=False, split_special_tokens=True
        )
        for index in set().union(*map(set, id_rows)) - set(of_first):
            if index in control_ids(tokenizer):
                raise InputError(
                    "expected items that the tokenizer knows, found that it makes "
                    f"{self.token(index)!r} of one"
                )
        before = lead(tokenizer, self.bos)
        return [(*before, *ids) for ids in id_rows]

    def token(self, index: int) -> str:
        return token_text(self.model.tokenizer, index)


@dataclass(frozen=True)
class PromptSet:
    """The pairs of a task with one seed, the distinct prompts in them (v of pair k is prompt
    `first[k]`, v* is `second[k]`), and those prompts packed into a tree."""

    task: str
    seed: int
    pairs: tuple[Pair, ...]
    prompts: tuple[tuple[int, ...], ...]
    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]

    @classmethod
    def of(cls, task: str, seed: int, pairs: Sequence[Pair]) -> "PromptSet":
        index: dict[tuple[int, ...], int] = {}
        first = torch.tensor([index.setdefault(pair.ids, len(index)) for pair in pairs])
        second = torch.tensor([index.setdefault(pair.extended, len(index)) for pair in pairs])
        return cls(task, seed, tuple(pairs), tuple(index), first, second)

    @classmethod
    def build(
        cls,
        model: TransformerBridge,
        task: CollapseTask,
        lengths: list[int],
        seed: int,
        bos: bool | None = None,
    ) -> "PromptSet":
        """The task's pairs at those lengths. Raises `InputError` where one does not fit the model's
        context.
        """
        of_ids = isinstance(task, TaskOfIds)
        if of_ids and bos is not None:
            raise InputError(
                f"bos: expected text, found token ids of {task.name}, which stand as they are: "
                "leave bos out"
            )
        context = context_length(model)
        # Each item is a token or more, so a length beyond the context needs no tokenizing.
        fits = lengths[-1] <= context
        pairs = tuple(task.pairs(ModelEncoder(model, bos), lengths, seed)) if fits else ()
        if not pairs or max(len(pair.extended) for pair in pairs) > context:
            raise InputError(
                f"{task.name} at length {lengths[-1]} does not fit the model's context of "
                f"{context} tokens with its question and the repeated token: ask for shorter "
                "lengths"
            )
        prompts = cls.of(task.name, seed, pairs)
        if of_ids:  # which no tokenizer made: each row has to be a prompt of this model
            for ids in prompts.prompts:
                Prompt.from_ids(model, ids)
        return prompts

    @cached_property
    def tree(self) -> PrefixTree:
        return prefix_tree(self.prompts)

    def longest(self) -> tuple[int, ...]:
        return max(self.prompts, key=len)

    def probes(self, count: int) -> list[int]:
        """The prompts that are also run alone: of evenly spread lengths, and off the trunk where
        there are branches.
        """
        off_trunk = [prompt for prompt, end in enumerate(self.tree.ends) if end >= self.tree.trunk]
        by_length = sorted(
            off_trunk or range(len(self.prompts)), key=lambda prompt: len(self.prompts[prompt])
        )
        places = [(2 * step + 1) * len(by_length) // (2 * count) for step in range(count)]
        return list(dict.fromkeys(by_length[place] for place in places))

    def columns(self) -> pd.DataFrame:
        """task, pair, seed, length and tokens of each pair."""
        rows = [(pair.kind, pair.length, len(pair.ids)) for pair in self.pairs]
        columns = ["pair", "length", "tokens"]
        return pd.DataFrame(rows, columns=columns).assign(task=self.task, seed=self.seed)


@dataclass(frozen=True, eq=False)
class RenderedPairs(CollapseTask):
    """Prompts of `form` at n and n + 1 items, as `render_prompt` makes them, each up to the token
    of `position`. No theorem speaks of them, but they are what a model is asked.

    Raises `OtherEndError` where the two end in other tokens: their distance would be that of the
    tokens.
    """

    items: ClassVar[ItemsAs] = "text"

    model: TransformerBridge = field(repr=False)
    form: Task
    mitigation: Mitigation | None = None
    position: Position = ANSWER
    encoding: EncodingOptions = field(default_factory=EncodingOptions)

    @property
    def name(self) -> str:
        return tasks.label(self.form)

    @property
    def random(self) -> bool:
        return self.form.random

    def prompts(self, counts: Iterable[int], seed: int) -> dict[int, ReadPrompt]:
        """The prompts by their number of items."""
        model, form, options = self.model, self.form, self.encoding
        rendered = {
            n: render_prompt(model, form, n, seed=seed, mitigation=self.mitigation, **options)
            for n in counts
        }
        return {n: read_at(model, prompt, self.position) for n, prompt in rendered.items()}

    def rewritten(self, lengths: Sequence[int], seed: int) -> bool:
        """Whether the mitigation changes the text of any of these pairs."""
        form, mitigation = self.form, self.mitigation
        return any(
            question(form, n, seed=seed, mitigation=mitigation).rewritten
            for n in sorted({*lengths, *(n + 1 for n in lengths)}, reverse=True)
        )

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        """The pairs at every length; `encoding` says how the texts are encoded, not the encoder."""
        counts = sorted({*lengths, *(n + 1 for n in lengths)})
        ids = {n: prompt.ids for n, prompt in self.prompts(counts, seed).items()}
        for n in lengths:
            ends = ids[n][-1], ids[n + 1][-1]
            if ends[0] != ends[1]:
                texts = (repr(token_text(self.model.tokenizer, end)) for end in ends)
                raise OtherEndError(
                    f"{self.form.name} at {self.position!r}: expected the prompts of {n} and "
                    f"{n + 1} items to end in the same token, found {' and '.join(texts)}: their "
                    "distance would be that of the tokens; 'figure-5a' and 'figure-5c' "
                    "compare prompts that end in their sequence"
                )
        yield from (Pair("task", n, ids[n], ids[n + 1]) for n in lengths)


def as_pairs(
    model: TransformerBridge,
    task: CollapseTask | Task | Prompt | str,
    mitigation: Mitigation | None,
    position: Position | None,
    encoding: EncodingOptions,
) -> CollapseTask:
    """The pairs that `collapse` compares: those of a task as it is asked, or of prompts that end in
    a repeated token (of a `Prompt` its last one).

    Raises `InputError` for an unknown name; for a position that the end of such prompts is not; and
    for them where a mitigation would rewrite them: the pair would no longer be one.
    """
    if isinstance(task, Prompt):
        task = RepeatedIds(fitted(model, task).ids.tolist(), name="prompt")
    elif isinstance(task, str):
        task = tasks.pairs_or_task(task)
    if isinstance(task, Task):
        return RenderedPairs(model, task, mitigation, position or ANSWER, encoding)
    if isinstance(task, RenderedPairs) and encoding:
        raise InputError(
            f"{', '.join(encoding)}: {task.name} is rendered already, with options of its own: "
            "leave it out"
        )
    require_prompt_end(position, f"{task.name}, whose end is compared")
    if encoding.get("chat"):
        raise InputError(
            f"chat: expected a task, found {task.name}, whose last token is repeated: leave chat "
            "out"
        )
    require_chat(**encoding)
    if mitigation is not None and rewriting(mitigation):
        raise InputError(
            f"{task.name} ends in what is repeated, and {label(mitigation)} rewrites prompts: give "
            "a task such as 'copy-last', or a mitigation of the forward pass"
        )
    return task
