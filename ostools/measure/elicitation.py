"""How an answer is elicited: in a chat, after worked examples, or by the bare prompt.

A chat model is asked in its template and answers freely. A base model continues text: it gets worked examples of the same task
(few-shot), then the question, then the answer line begun, so that the next token is the first of the answer itself. A model
whose card lists the task was trained on the bare prompt, and gets that (zero-shot).

The examples are the task's own questions with other sequences, drawn by fixed seeds, and never the one that is asked; a
mitigation rewrites them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.errors import InputError, unknown_name
from ostools.measure.task_prompt import TaskPrompt, render_prompt
from ostools.models import encode
from ostools.models.tokenizer_calls import token_ids
from ostools.models.tokens import tokenizer_of
from ostools.tasks import Task
from ostools.tasks.questions import Question, question

Elicitation = Literal["chat", "few-shot", "zero-shot"]
CHAT, FEW_SHOT, ZERO_SHOT = ELICITATIONS = get_args(Elicitation)
EXAMPLES = 3
"""Worked examples in a few-shot prompt."""
_LENGTHS = (5, 3, 7, 4, 6, 8, 2, 9, 1, 10, 11, 12)  # items of an example, in the order in which they are tried
_SEED = 1_000_003  # of the first example; whoever asks with seeds from 0 on does not meet it
_NUMBERS = ("1", "2")
_PLACE = "\ue000"


def elicitation_for(
    form: Task, tokenizer: Any, trained: Mapping[str, int] | None, elicitation: str | None, chat: bool | None
) -> Elicitation:
    """Elicitation of a task: as `elicitation` or `chat` say, else by the kind of model.

    By the kind: chat where the tokenizer has a template; zero-shot where the model's card lists the task among those of its
    training (`trained`), or the prompt asks for reasoning, which a begun answer line would cut off; else few-shot.

    Raises `InputError` for an unknown name, one that contradicts `chat`, and few-shot for a prompt that asks for reasoning.
    """
    if elicitation is None:
        if chat is not None:
            return CHAT if chat else ZERO_SHOT
        if getattr(tokenizer, "chat_template", None):
            return CHAT
        return ZERO_SHOT if form.reasons or form.trained_as in (trained or {}) else FEW_SHOT
    if elicitation not in ELICITATIONS:
        raise unknown_name("elicitation", elicitation, ELICITATIONS)
    if chat is not None and chat is not (elicitation == CHAT):
        raise InputError(f"chat: expected nothing beside elicitation={elicitation!r}, found {chat}: leave chat out")
    if elicitation == FEW_SHOT and form.reasons:
        raise InputError(
            f"elicitation: {form.name} asks for reasoning, and a few-shot prompt begins the answer line: expected chat or "
            "zero-shot, or the task with mode=none"
        )
    return cast(Elicitation, elicitation)


def elicit(
    model: TransformerBridge,
    form: Task,
    length: int,
    elicitation: Elicitation,
    *,
    seed: int = 0,
    mitigation: Mitigation | None = None,
    system: str | None = None,
    thinking: bool = False,
) -> TaskPrompt:
    """The task's question at `length` items as `render_prompt` gives it, in a few-shot prompt where that is asked for.

    `TaskPrompt.prefill` is then the answer line as far as the prompt has begun it. Raises `InputError` as `render_prompt`
    does, and for a task that has no examples beside the question.
    """
    chat = elicitation == CHAT
    task_prompt = render_prompt(
        model, form, length, seed=seed, mitigation=mitigation, chat=chat, system=system, thinking=thinking
    )
    if elicitation != FEW_SHOT:
        return task_prompt
    task_question = question(form, length, seed=seed, mitigation=mitigation)
    before, prefill = few_shot_text(task_question, mitigation)
    # A blank before the answer belongs to the prompt where it is a token of its own: the next one is then the answer's first.
    answer_prefix = prefill if _own_token(tokenizer_of(model), before + prefill) else prefill.rstrip(" ")
    try:
        prompt = encode(model, before + answer_prefix)
    except InputError as error:
        raise InputError(f"few-shot: {error}; or ask without worked examples, with elicitation='zero-shot'") from None
    return replace(task_prompt, prompt=prompt, prefill=answer_prefix)


def few_shot_text(task_question: Question, mitigation: Mitigation | None) -> tuple[str, str]:
    """The worked examples and the question; and the answer line up to the answer."""
    form = task_question.task
    worked = [f"{example.text}{form.lead}{example.line}\n\n" for example in worked_examples(task_question, mitigation)]
    return "".join(worked) + task_question.text + form.lead, form.answer_line(_PLACE).partition(_PLACE)[0]


def worked_examples(task_question: Question, mitigation: Mitigation | None) -> list[Question]:
    """`EXAMPLES` questions of the task with other sequences than the asked one, each under the mitigation.

    They are the same for every question, but for one that would be the asked one: the next takes its place. Raises `InputError`
    for a task that cannot be asked at so many of the short lengths.
    """
    form = task_question.task.example_task
    used_items = {task_question.task.items(task_question.length, task_question.seed)}
    examples: list[Question] = []
    for rank, length in enumerate(_LENGTHS):
        seed = _SEED + rank if form.random else 0
        try:
            items = form.items(length, seed)
            example = question(form, length, seed=seed, mitigation=mitigation)
        except InputError:  # a length that the task cannot have
            continue
        if items not in used_items:
            used_items.add(items)
            examples.append(example)
        if len(examples) == EXAMPLES:
            return examples
    raise InputError(
        f"{form.name}: expected {EXAMPLES} short questions as examples of a few-shot prompt, found {len(examples)}: ask with "
        "elicitation='zero-shot'"
    )


def _own_token(tokenizer: Any, text: str) -> bool:
    """Whether the blank at the text's end stays a token of its own before an answer."""

    alone, *answered = (token_ids(tokenizer, text + answer, add_special_tokens=False) for answer in ("", *_NUMBERS))
    return text.endswith(" ") and all(ids[: len(alone)] == alone for ids in answered)
