"""The prompts that an ablation is judged on: a task's question, or any prompt with its carriers and
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

import torch

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.measure.ablation.effects import (
    Ids,
    JacobianNorm,
    LogProbability,
    Measure,
    PairDistance,
)
from ostools.measure.answer_line import answer_text, line_ids
from ostools.measure.answers.probability import line_ends
from ostools.measure.position import read_at
from ostools.measure.task_prompt import TaskPrompt, carrier_positions, render_prompt
from ostools.models import Prompt
from ostools.models.tokens import EncodingOptions, fitted
from ostools.tasks import Task, label

MeasureName = Literal["sensitivity", "collapse", "answers"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt of your own, with the positions of the tokens that carry its answer, and the answer:
    a text, or its tokens.
    """

    prompt: Prompt
    carriers: Sequence[int] | None = None
    answer: str | Prompt | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """What a provenance says of it."""
        answer = self.answer.ids.tolist() if isinstance(self.answer, Prompt) else self.answer
        return {"carriers": self.carriers, "answer": answer, **self.prompt.provenance}


@dataclass(frozen=True)
class Question:
    """`prompt`: the tokens whose last one is read. A field that no measure needs is None.

    carriers: the tokens that carry the answer; answer: the tokens of the right answer after the
    prompt; ends: those that may end it (None: it goes on as it likes); extended: the other prompt
    of the pair.
    """

    task: str
    length: int | None
    seed: int | None
    prompt: Ids
    carriers: tuple[int, ...] | None
    answer: Ids | None
    extended: Ids | None
    ends: Ids | None

    def measures(self, names: Sequence[str] | None) -> list[Measure]:
        """The measures of those names, all that can be for None; `InputError` for one that lacks
        what it needs.
        """
        possible: dict[str, Measure] = {}
        if self.carriers is not None:
            possible["sensitivity"] = JacobianNorm(self.prompt, self.carriers)
        if self.extended is not None:
            possible["collapse"] = PairDistance(self.prompt, self.extended)
        if self.answer is not None:
            possible["answers"] = LogProbability(self.prompt, self.answer, self.ends)
        needs = {
            "sensitivity": "AnsweredPrompt(carriers=), the positions of the tokens that carry the answer",
            "answers": "AnsweredPrompt(answer=), the text or its tokens",
        }
        for name in names or ():
            if name not in possible:
                raise InputError(f"ablation: the measure {name!r} on a prompt needs {needs[name]}")
        return [possible[name] for name in names or possible]


def of_task(
    model: TransformerBridge,
    task: Task,
    length: int,
    seed: int,
    *,
    prefilled: bool,
    measures: Sequence[str],
    **encoding: Unpack[EncodingOptions],
) -> Question:
    """A task's question; `prefilled`: with the right line begun, so that the last token is the one
    the answer is read from.
    """
    task_prompt = render_prompt(model, task, length, seed=seed, **encoding)
    if task_prompt.thinks:
        raise InputError(
            "ablation: expected a chat template with which the answer stands right after the prompt, found one with which the "
            "model thinks first: ask without it, chat=False"
        )
    carriers = carrier_positions(model, task_prompt) if "sensitivity" in measures else None
    prompt, answer = _split(model, task_prompt, prefilled)
    extended = None
    if "collapse" in measures:
        extended, _ = _split(
            model, render_prompt(model, task, length + 1, seed=seed, **encoding), prefilled
        )
    ends = _tensor(model, sorted(line_ends(model)))
    return Question(label(task), length, seed, prompt, carriers, answer, extended, ends)


def of_prompt(
    model: TransformerBridge, answered_prompt: AnsweredPrompt, *, paired: bool
) -> Question:
    """Any prompt; its pair is the theorem's: the last token once more."""
    prompt, carriers, answer = (
        fitted(model, answered_prompt.prompt),
        answered_prompt.carriers,
        answered_prompt.answer,
    )
    n = len(prompt.ids)
    if carriers is not None and (not carriers or any(not 0 <= place < n for place in carriers)):
        raise InputError(
            f"ablation: expected carriers out of 0..{n - 1}, found {list(carriers) or 'none'}"
        )
    ids = prompt.ids.tolist()
    answer_ids = None
    if answer is not None:
        suffix = (
            line_ids(model, prompt, answer)
            if isinstance(answer, str)
            else fitted(model, answer).ids.tolist()
        )
        Prompt.from_ids(model, [*ids, *suffix])  # refused here where it is longer than the context
        answer_ids = _tensor(model, suffix)
    return Question(
        task="prompt",
        length=None,
        seed=None,
        prompt=_tensor(model, ids),
        carriers=None if carriers is None else tuple(carriers),
        answer=answer_ids,
        extended=_tensor(model, Prompt.from_ids(model, [*ids, ids[-1]]).ids.tolist())
        if paired
        else None,
        ends=None,
    )


def _split(model: TransformerBridge, task_prompt: TaskPrompt, prefilled: bool) -> tuple[Ids, Ids]:
    """The tokens that are read, and those of the right answer after them."""
    if prefilled:
        read = read_at(model, task_prompt)
        ids, answer = read.ids, read.answer
    else:
        ids = tuple(task_prompt.prompt.ids.tolist())
        answer = line_ids(model, task_prompt.prompt, answer_text(task_prompt))
    Prompt.from_ids(model, (*ids, *answer))  # refused here where it is longer than the context
    return _tensor(model, ids), _tensor(model, answer)


def _tensor(model: TransformerBridge, ids: Sequence[int]) -> Ids:
    return torch.tensor(ids, device=next(model.parameters()).device)
