"""A task of Appendix C.1 at n and n + 1 items, with its text after the sequence, as pairs for `collapse`.

No theorem speaks of them: the two prompts end in the same words, and differ in the middle. But they are what a model is
asked. No torch is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.tasks.appendix_c import NAMES, AppendixTask
from ostools.tasks.pairs import Encoder, NextPairs

COUNTING = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-ones-figure-5", "count-word")
"""The tasks whose answer is a count."""
# Their prompts end in the sequence itself, which Figure 5 compares.
_WITHOUT_END = ("copy", "count-ones-figure-5")
TASK_PAIRS = tuple(name for name in NAMES if name not in _WITHOUT_END)


@dataclass(frozen=True)
class TaskPairs(NextPairs):
    """The prompts of `form` with n and n + 1 items. Raises `InputError` for a task whose prompt ends in its sequence."""

    form: AppendixTask

    def __post_init__(self) -> None:
        if not isinstance(self.form, AppendixTask):
            raise InputError(f"expected a task such as ost.tasks.task('count-ones'), found {short_repr(self.form)}")
        if self.form.name in _WITHOUT_END:
            raise unknown_name("task with text after its sequence", self.form.name, TASK_PAIRS)

    @property
    def example(self) -> str:
        return self.form.prompt(6)

    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> dict[int, tuple[int, ...]]:
        return dict(zip(counts, encoder.ids([self.form.prompt(n, seed) for n in counts]), strict=True))


def task_pairs(form: AppendixTask | str) -> TaskPairs:
    """The pairs of a task, by its name or with its options."""
    return TaskPairs(form if isinstance(form, AppendixTask) else AppendixTask(form))
