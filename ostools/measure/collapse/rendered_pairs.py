"""Pairs of a task's prompts at n and n + 1 items, rewritten by a mitigation, in the chat template, for `collapse`.

No theorem speaks of them. They are what a mitigation is judged on: can the two questions still be told apart?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation, label
from ostools import tasks
from ostools.ground.errors import InputError
from ostools.measure.mitigated import rewriting
from ostools.measure.task_prompt import TaskPrompt, render_prompt
from ostools.models import Prompt
from ostools.models.tokens import fitted
from ostools.tasks import CollapseTask, Encoder, RepeatedIds, RepeatTask, Task, TaskPairs
from ostools.tasks.pairs import NextPairs


@dataclass(frozen=True, eq=False)
class RenderedPairs(NextPairs):
    """Prompts of `form` at n and n + 1 items, as `render_prompt` makes them.

    Raises `InputError` for a task whose prompt ends in its sequence: its two prompts end in other tokens, and their distance
    would be that of the tokens.
    """

    model: TransformerBridge = field(repr=False)
    form: Task
    mitigation: Mitigation | None = None
    chat: bool | None = None

    def __post_init__(self) -> None:
        task_prompt = self._task_prompt(1, 0)
        if not task_prompt.chat and not self.form.parts(task_prompt.pieces)[2]:
            raise InputError(
                f"{self.form.name}: expected a task with text after its sequence, so that the prompts of n and n + 1 items end "
                "in the same token, found one that ends in the sequence; 'figure-5a' and 'figure-5c' compare such prompts"
            )

    @property
    def name(self) -> str:
        return tasks.label(self.form)

    @property
    def example(self) -> str:
        return self._task_prompt(6, 0).text

    def _task_prompt(self, length: int, seed: int) -> TaskPrompt:
        return render_prompt(self.model, self.form, length, seed=seed, mitigation=self.mitigation, chat=self.chat)

    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> dict[int, tuple[int, ...]]:
        """Token ids by count: the chat template's, or without one the encoder's, which may leave the BOS out."""
        task_prompts = [self._task_prompt(n, seed) for n in counts]
        if task_prompts[0].chat:
            return {
                n: tuple(task_prompt.prompt.ids.tolist()) for n, task_prompt in zip(counts, task_prompts, strict=True)
            }
        return dict(zip(counts, encoder.ids([task_prompt.text for task_prompt in task_prompts]), strict=True))


def repeating(task: Any, prompt: str | Prompt | None, item: str | None) -> Any:
    """Task of the arguments: the task as it was given; or of a `prompt` the text with `item` repeated after it, or its own last
    token.

    Raises `InputError` for both or neither, and for an item that has no text before it.
    """
    if (task is None) == (prompt is None):
        raise InputError(
            "collapse: expected a task, such as 'figure-5a', or prompt= with the item= that is repeated after it, found "
            f"{'neither' if task is None else 'both'}"
        )
    if item is not None and not isinstance(prompt, str):
        raise InputError(
            f"collapse: item={item!r} is repeated after a text: expected prompt= as a text, found "
            f"{'none' if prompt is None else 'a Prompt, whose last token is repeated'}"
        )
    if not isinstance(prompt, str):
        return task if prompt is None else prompt
    # The last token of a text is repeated by its id: its text could become another token beside a copy.
    return RepeatTask("prompt", prompt, item, "ids" if item is None else "text")


def as_pairs(
    model: TransformerBridge, task: CollapseTask | Task | Prompt | str, mitigation: Mitigation | None, chat: bool | None
) -> CollapseTask:
    """The pairs that `collapse` compares: those of a task as it is asked, or of prompts that end in a repeated token (of a
    `Prompt` its last one).

    Raises `InputError` for an unknown name, and for prompts that end in a repeated token where a mitigation would rewrite them:
    the pair would no longer be one.
    """
    if isinstance(task, Prompt):
        task = RepeatedIds(fitted(model, task).ids.tolist(), name="prompt")
    if not isinstance(task, str | Task | CollapseTask):
        raise InputError(f"expected a task, its name, such as 'figure-5a', or a Prompt, found {type(task).__name__}")
    if isinstance(task, str):
        task = tasks.task(task, CollapseTask) if _is_pairs(task) else tasks.task(task)
    if isinstance(task, TaskPairs) and (mitigation is not None or chat is not False):
        task = task.form
    if isinstance(task, Task):
        return RenderedPairs(model, task, mitigation, chat)
    if mitigation is not None and not isinstance(task, RenderedPairs) and rewriting(mitigation):
        raise InputError(
            f"{task.name} ends in what is repeated, and {label(mitigation)} rewrites prompts: give a task such as 'copy-last', "
            "or a mitigation of the forward pass"
        )
    return task


def _is_pairs(name: str) -> bool:
    """Whether a name is one of pairs, or one that nothing knows: then the names of pairs are the ones to say."""
    return name in tasks.COLLAPSE_TASKS or name.partition(":")[0].strip() not in tasks.names()
