"""A task of Appendix C.1 at n and n + 1 items, with its text after the sequence, as pairs for `collapse`.

No theorem speaks of them: the two prompts end in the same words, and differ in the middle. But they are what a model is
asked, and what Corollary 6.2 is judged on: representations that cannot be told apart give answers with the same first token.
Behind the bare prompt that token begins "The final answer to ...", the same for every count. `PrefilledPairs` have the answer
line begun, so that the next token is the first of the answer itself. No torch is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

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


@dataclass(frozen=True)
class PrefilledPrompt:
    """One prompt with its answer line begun: its `ids`, the right answer `key`, and that answer's token ids `answer`."""

    ids: tuple[int, ...]
    key: str
    answer: tuple[int, ...]


@dataclass(frozen=True)
class PrefilledPairs(NextPairs):
    """The begun prompts of `form` with n and n + 1 items. Raises `InputError` for a task whose answer is no count."""

    form: AppendixTask

    def __post_init__(self) -> None:
        if self.form.name not in COUNTING:
            raise unknown_name("counting task", self.form.name, COUNTING)

    @property
    def example(self) -> str:
        return self._prefilled_text(6, 0)

    def prompts(self, encoder: Encoder, counts: Sequence[int], seed: int = 0) -> dict[int, PrefilledPrompt]:
        """The begun prompt of every number of items.

        The line is begun up to the first token that depends on the answer: what the model would have written so far, had it
        been right, however the tokenizer cuts the blank before a number. Raises `InputError` where a tokenizer cuts the line
        otherwise before the right answer than before other digits: there is no common beginning then.
        """
        keys = {n: self.form.answer(n, seed) for n in counts}
        texts = [self._prefilled_text(n, seed) + end for n in counts for end in ("1", "2", keys[n])]
        encoded = iter(encoder.ids(texts))
        prompts = {}
        for n in counts:
            first_ids, second_ids, right_ids = next(encoded), next(encoded), next(encoded)
            prefix_ids = tuple(
                token
                for token, second_token in takewhile(
                    lambda tokens: tokens[0] == tokens[1], zip(first_ids, second_ids, strict=False)
                )
            )
            if right_ids[: len(prefix_ids)] != prefix_ids or len(right_ids) == len(prefix_ids):
                raise InputError(
                    f"{self.name} at length {n}: expected the answer {keys[n]!r} to begin with a token of its own, found that "
                    "this tokenizer cuts the line before it in another way than before other digits"
                )
            prompts[n] = PrefilledPrompt(prefix_ids, keys[n], right_ids[len(prefix_ids) :])
        return prompts

    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> dict[int, tuple[int, ...]]:
        return {n: prompt.ids for n, prompt in self.prompts(encoder, counts, seed).items()}

    def _prefilled_text(self, length: int, seed: int) -> str:
        return self.form.prompt(length, seed) + "\n" + self.form.answer_line("")
