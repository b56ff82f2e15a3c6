"""Prompts of a task with a prefilled answer line: the next token is the first of the answer itself.

Behind the bare prompt the next token is the same for every answer ("The final answer to ..."). Behind the begun line it is the
answer's own, so that what the last token holds there can be compared with what the model says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from transformer_lens.model_bridge import TransformerBridge

import mitigations
from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.answers.answers import Answer, answers, line_written
from ostools.measure.answers.probability import answer_text, line_ids
from ostools.measure.collapse.prompt_sets import RenderedPairs
from ostools.measure.passes.precisions import Precision
from ostools.measure.prompts import agreeing
from ostools.measure.task_prompt import TaskPrompt, render_prompt
from ostools.models import Prompt, context_length
from ostools.models.tokens import token_text
from ostools.tasks import Encoder, Task

SPARE = 4
"""Tokens after the longest right answer, to see that an answer ends where it should."""
_TWO_NUMBERS = ("1", "2")


@dataclass(frozen=True)
class PrefilledPrompt:
    """Prompt whose token `ids` end in the begun answer line, of which the last `line` are; the right `answer` after them in
    tokens. `group`: prompts of one group hold the same drawn sequence, or its beginning."""

    task_prompt: TaskPrompt
    ids: tuple[int, ...]
    answer: tuple[int, ...]
    line: int
    group: int

    @property
    def token(self) -> int:
        return self.answer[0]


def prefilled_prompts(
    model: TransformerBridge,
    form: Task,
    lengths: Sequence[int],
    seeds: Sequence[int],
    mitigation: Mitigation | None = None,
    chat: bool | None = None,
) -> list[PrefilledPrompt]:
    """The prompts of all lengths and seeds, each with its line begun; those that are the same tokens once.

    The line is begun up to the first token in which answers differ: of a number that in which 1 and 2 differ, of any other
    answer that in which the right ones of these prompts do. `group` is the seed, since a task continues one drawn sequence
    from length to length; of a task that draws nothing it is the length.

    Raises `InputError` where all right answers are the same, where a tokenizer cuts the line before the right answer otherwise
    than before others, and for a prompt that leaves no room for its answer in the context.
    """
    task_prompts = [
        render_prompt(model, form, n, seed=seed, mitigation=mitigation, chat=chat) for n in lengths for seed in seeds
    ]
    if len({prompt.key for prompt in task_prompts}) < 2:
        advice = "give it an option that draws its items, such as uniform=true, or more seeds"
        raise InputError(
            f"{form.name}: expected questions with different right answers, found that all have {task_prompts[0].key!r}: "
            + (advice if not form.numeric else "give more lengths")
        )
    prompt_by_ids: dict[tuple[int, ...], PrefilledPrompt] = {}
    for prefilled in _prefilled(model, form, task_prompts):
        prompt_by_ids.setdefault(prefilled.ids, prefilled)
    prompts = list(prompt_by_ids.values())
    require_room(model, prompts)
    return prompts


def require_telling_first_tokens(model: TransformerBridge, prompts: Sequence[PrefilledPrompt]) -> None:
    """Require that the first token of an answer tells which of the right answers it is.

    Raises `InputError` where two right answers begin with the same token (12 and 15, where digits are tokens): what is said of
    that token is said of both."""
    key_by_token: dict[int, str] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.task_prompt.length):
        key, task_prompt = key_by_token.setdefault(prompt.token, prompt.task_prompt.key), prompt.task_prompt
        if key != task_prompt.key:
            raise InputError(
                f"{task_prompt.task.name}: expected right answers that begin with different tokens, found {key} and "
                f"{task_prompt.key}, which both begin with {token_text(model.tokenizer, prompt.token)!r}: what is said of that "
                "token is said of both. Ask for lengths whose answers differ there, such as 2 to 9"
            )


def answer_room(prompts: Sequence[PrefilledPrompt]) -> int:
    return max(len(prompt.answer) for prompt in prompts) + SPARE


def _prefilled(model: TransformerBridge, form: Task, task_prompts: Sequence[TaskPrompt]) -> Iterator[PrefilledPrompt]:
    lines = [line_ids(model, task_prompt.prompt, answer_text(task_prompt)) for task_prompt in task_prompts]
    # What the least and the greatest have in common, all between them have.
    shared = None if form.numeric else min(lines)[: agreeing(min(lines), max(lines))]
    for task_prompt, line in zip(task_prompts, lines, strict=True):
        begin = shared if shared is not None else before_numbers(model, task_prompt)
        if line[: len(begin)] != begin or len(line) == len(begin):
            raise InputError(
                f"{form.name} at length {task_prompt.length}: expected the answer {task_prompt.key!r} to begin with a token of "
                "its own, found that this tokenizer cuts the line before it otherwise than before other answers"
            )
        ids = (*task_prompt.prompt.ids.tolist(), *begin)
        group = task_prompt.seed if form.random else task_prompt.length
        yield PrefilledPrompt(task_prompt, ids, line[len(begin) :], len(begin), group)


def before_numbers(model: TransformerBridge, task_prompt: TaskPrompt) -> tuple[int, ...]:
    """The line's tokens up to the first in which 1 and 2 differ."""
    texts = (replace(task_prompt, line=task_prompt.task.answer_line(number)) for number in _TWO_NUMBERS)
    first, second = (line_ids(model, task_prompt.prompt, answer_text(text)) for text in texts)
    return tuple(first[: agreeing(first, second)])


def require_room(model: TransformerBridge, prompts: Sequence[PrefilledPrompt]) -> None:
    longest, context = max(prompts, key=lambda prompt: len(prompt.ids)).task_prompt, context_length(model)
    needed = max(len(prompt.ids) for prompt in prompts) + answer_room(prompts)
    if needed > context:
        raise InputError(
            f"{longest.task.name}: a prompt of {longest.length} items takes {needed} tokens with the answer, the "
            f"model's context holds {context}: ask for shorter lengths"
        )


@contextmanager
def running(
    model: TransformerBridge, prompts: Sequence[PrefilledPrompt], precision: Precision, mitigation: Mitigation | None
) -> Iterator[TransformerBridge]:
    """The model as that precision prepares it, while it rounds and the mitigation acts."""
    prepared = precision.prepared(model)
    longest = max((prompt.ids for prompt in prompts), key=len)
    with mitigations.running(prepared, mitigation), precision.running(prepared, longest):
        yield prepared


def prefilled_answers(
    prepared: TransformerBridge, prompts: Sequence[PrefilledPrompt], progress: Progress | None = None
) -> list[Answer]:
    """The rest of every line as the model writes it, inside `running`."""
    encoded = [Prompt.from_ids(prepared, prompt.ids) for prompt in prompts]
    stops, room = [line_written] * len(encoded), answer_room(prompts)
    return answers(prepared, encoded, max_new_tokens=room, stops=stops, progress=progress)


@dataclass(frozen=True, eq=False)
class PrefilledPairs(RenderedPairs):
    """The begun prompts of n and n + 1 items: what `collapse` compares, at the token after which the answer stands."""

    def __post_init__(self) -> None:
        """All end in the words of the line, whatever the task."""

    def prompts(self, counts: Sequence[int], seed: int) -> dict[int, PrefilledPrompt]:
        task_prompts = [self._task_prompt(n, seed) for n in counts]
        return dict(zip(counts, _prefilled(self.model, self.form, task_prompts), strict=True))

    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> dict[int, tuple[int, ...]]:
        return {n: prompt.ids for n, prompt in self.prompts(counts, seed).items()}
