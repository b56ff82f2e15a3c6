"""Answers of a model to a task at every length: right or wrong, by how much, and how likely the
right answer was.

Cost: `answers` to every prompt, a pass over every right line behind it, and under a mitigation that
leaves the text as it is two passes for every distinct number of tokens in prompt and answer, to see
whether it acts.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import pandas as pd
import torch
from pydantic import Field

from ostools import mitigations, tasks
from ostools.ground import Count, Lengths, Progress, TransformerBridge, checked_lengths
from ostools.measure.answers.answers import (
    CYCLE,
    CYCLE_AN_ITEM,
    Answer,
    answers,
    how_read,
)
from ostools.measure.answers.judging import Grade, answer_columns, grade_name
from ostools.measure.answers.probability import answer_room, words_first
from ostools.measure.answers.reading import STOP, reader_of
from ostools.measure.answers.result import COLUMNS, LEVEL, Evaluation
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import ACTIVE, INACTIVE
from ostools.measure.position import answer_text
from ostools.measure.swept import Swept
from ostools.measure.task_prompt import (
    EXAMPLES,
    Elicitation,
    TaskPrompt,
    elicit,
    elicitation_for,
)
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions
from ostools.models.describe import metadata_of
from ostools.results import Frame, Provenance
from ostools.tasks import Task
from ostools.tasks.base import seeds_of


@measurement(
    command="evaluate",
    examples=(
        "--task count-ones --lengths 1:64 --mitigation separator:every=3",
        "--task copy-last --endpoint http://localhost:8000/v1 --model NAME --answers answers.jsonl",
    ),
    defaults={"task": "count-ones", "lengths": "1:64"},
    hosted="questions",
    of_questions=("task", "lengths", "seeds", "mitigation"),
    python_only={"grade": "a function, which a command line has not"},
    memory=["answers"],
    sweep=lambda: SWEPT,
    in_chunks=True,
)
def evaluate(
    model: TransformerBridge,
    task: Task | str,
    *,
    lengths: Lengths,
    seeds: Sequence[int] = (0,),
    mitigation: Mitigation | str | None = None,
    elicitation: Elicitation | None = None,
    max_new_tokens: Count | None = None,
    batch_size: Count | None = None,
    grade: Grade | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Evaluation:
    """Measure the model's answers to a task's prompts, with or without a mitigation (Figures 2, 3
    and 6; Appendix C.1).

    Args:
        task: a `tasks.Task`, or its name with options: "count-ones:mode=cot-zero-shot".
        lengths: numbers of items.
        seeds: one sequence for each, if the task draws its sequence.
        mitigation: a `mitigations.Mitigation` or its name with options: "separator:every=3".
        elicitation: "chat": a user's turn in the chat template; "few-shot": after three worked
            examples, rewritten like the question, with the answer line begun; "zero-shot": the bare
            prompt. None: chat where the tokenizer has a template; zero-shot where the model's card
            lists the task; else few-shot.
        max_new_tokens: tokens after which an answer is cut; None: by the longest right line, with
            48 more for words around it (16 after a few-shot prompt), 256 more for reasoning, and 32
            for each part of a partition.
        batch_size: prompts that go through together; None: as many as fit. 1 gives what `generate`
            of transformers gives.
        grade: grade(question, text) returns whether a text answers the question; the column
            `content_correct` then holds it. None: whether `content` is right, the value that is
            read in the text.
        progress: called as progress(done, total).

    How prompts are encoded: `EncodingOptions`.

    An answer ends with its line, or in an exact cycle of tokens (48, and 4 for every item), or with
    the text. In bfloat16 and float16 a batch of another size
    rounds otherwise, and two tokens that are nearly as likely may change places: two right runs of
    one model differed at about one of thirteen near ties. Raises `InputError` for what cannot be
    asked, and for a prompt longer than the context. Source: arXiv 2406.04267, Sections 4 to 6 and
    Appendix C.1.
    """
    form = tasks.task(task)
    length_list, seed_list = checked_lengths(lengths), seeds_of(form, seeds)
    trained = metadata_of(model).trained_lengths or {}
    how_asked = elicitation_for(form, model.tokenizer, trained, elicitation, encoding.get("chat"))
    acting = mitigations.optional(mitigation)
    task_prompts = [
        elicit(model, form, length, how_asked, seed=seed, mitigation=acting, **encoding)
        for length in length_list
        for seed in seed_list
    ]
    names = {
        "task": tasks.label(form),
        "mitigation": mitigations.label(acting),
        "elicitation": how_asked,
    }
    longest = trained.get(form.trained_as or "")
    rows, how = task_answers(
        model,
        task_prompts,
        acting,
        longest,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        progress=progress,
        grade=grade,
    )
    how |= {"lengths": length_list, "seeds": seed_list, "trained_length": longest}
    how["random"] = form.random
    if {row["status"] for row in rows} == {INACTIVE}:
        how["status"] = INACTIVE
    if grade is not None:
        how["grade"] = grade_name(grade)
    provenance = Provenance.collect(model, measurement="evaluate", **names, **how)
    frame: Frame = pd.DataFrame(rows).assign(**names, mode=str(getattr(form, "mode", "none")))
    frame = frame[list(COLUMNS)].astype(COLUMNS)
    return Evaluation(frame, provenance)


def task_answers(
    model: TransformerBridge,
    task_prompts: Sequence[TaskPrompt],
    mitigation: Mitigation | None,
    trained: int | None = None,
    *,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    probability: bool = True,
    progress: Progress | None = None,
    grade: Grade | None = None,
) -> tuple[list[dict[str, object]], dict[str, Any]]:
    """Answers to the prompts of one task: a row a prompt, and the provenance entries, which define
    the answers, how batches were made too.

    trained: the longest length of the model's training. probability: whether the right lines are
    scored too, with a pass over each; not where words stand before them (`words_first`).
    """
    room = max_new_tokens or answer_room(model, task_prompts)
    first, scored = task_prompts[0], probability and not words_first(task_prompts)
    with mitigations.running(model, mitigation):
        answer_list = answers(
            model,
            [prompt.prompt for prompt in task_prompts],
            max_new_tokens=room,
            stops=[reader_of(prompt).closed for prompt in task_prompts],
            cycles=[CYCLE + CYCLE_AN_ITEM * prompt.length for prompt in task_prompts],
            lines=[answer_text(prompt) for prompt in task_prompts] if scored else None,
            batch_size=batch_size,
            progress=progress,
        )
        described = {
            "temperature": 0.0,
            "max_new_tokens": room,
            "batch_size": batch_size,
            "stop": STOP,
            "repeats_after": f"{CYCLE} tokens, {CYCLE_AN_ITEM} more an item",
            "examples": EXAMPLES if first.prefill is not None else 0,
            "probability": scored,
            "rewritten": any(task_prompt.rewritten for task_prompt in task_prompts),
            "chat": first.chat,
            **first.prompt.provenance,
            **how_read(model),
            "level": LEVEL,
        }
    acts_by_length: dict[int, bool] = {}
    rows = [
        answer_columns(task_prompt, answer, grade)
        | {
            "tokens": task_prompt.tokens,
            "status": _status(model, mitigation, task_prompt, answer, acts_by_length),
            "log_probability": answer.log_probability,
            "within_training": None if trained is None else task_prompt.length <= trained,
        }
        for task_prompt, answer in zip(task_prompts, answer_list, strict=True)
    ]
    return rows, described


def _status(
    model: TransformerBridge,
    mitigation: Mitigation | None,
    task_prompt: TaskPrompt,
    answer: Answer,
    acts_by_length: dict[int, bool],
) -> str:
    """Whether the mitigation changed anything in a row: the text, or a logit of prompt and answer.

    The answer counts: a window wider than the prompt may be narrower than both. Tried once for
    every number of tokens read.
    """
    if mitigation is None:
        return "none"
    if task_prompt.rewritten:
        return ACTIVE
    read = torch.cat([task_prompt.prompt.ids, torch.tensor(answer.ids[:-1], dtype=torch.int64)])
    if len(read) not in acts_by_length:
        acts_by_length[len(read)] = mitigations.acts(model, mitigation, read)
    return ACTIVE if acts_by_length[len(read)] else INACTIVE


SWEPT = Swept(
    read=Evaluation,
    options={
        "elicitation": (Elicitation | None, None),
        # One limit for all lengths, as a row may not depend on which others stand beside it. The
        # paper's answer line takes some 15 tokens, a preamble before it some 20 more. Reasoning
        # needs more: ask for it.
        "max_new_tokens": (Annotated[int, Field(ge=1, le=1_000_000)], 64),
        "batch_size": (Annotated[int | None, Field(ge=1)], None),
    },
)
