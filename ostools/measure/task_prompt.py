"""Prompt of a task as a model is asked it: rewritten by a mitigation, in the chat template, in
tokens, with its answer key.

Every measurement renders its prompts by `render_prompt`, so that behaviour, collapse and
sensitivity speak of the same prompt; `elicit` is how `evaluate` asks. A chat model is asked in its
template and answers freely. A base model continues
text: it gets worked examples of the same task (few-shot), then the question, then the answer line
begun, so that the next token is the first of the answer itself. A model whose card lists the task
was trained on the bare prompt, and gets that (zero-shot).

The examples are the task's own questions with other sequences, drawn by fixed seeds, and never the
one that is asked; a mitigation rewrites them too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

from ostools import tasks
from ostools.ground import InputError, TransformerBridge
from ostools.mitigations import Bar, Mitigation
from ostools.models import EncodingOptions, Prompt, encode
from ostools.models.chat import ON
from ostools.models.tokenizer_calls import token_ids
from ostools.models.tokens import offsets, tokenizer_of
from ostools.tasks import CollapseTask, Question, Task
from ostools.tasks.base import seeds_of
from ostools.tasks.questions import question

THINKING_MARK = "<think>"
"""With this at its end a template has begun the model's thoughts."""
Elicitation = Literal["chat", "few-shot", "zero-shot"]
CHAT, FEW_SHOT, ZERO_SHOT = ELICITATIONS = get_args(Elicitation)
EXAMPLES = 3
"""Worked examples in a few-shot prompt."""
# Items of an example, in the order in which they are tried.
_LENGTHS = (5, 3, 7, 4, 6, 8, 2, 9, 1, 10, 11, 12)
_SEED = 1_000_003  # of the first example; whoever asks with seeds from 0 on does not meet it
_NUMBERS = ("1", "2")
PLACE = "\ue000"
"""Stands for the answer in an answer line, whose words around it are asked for."""


@dataclass(frozen=True, kw_only=True)
class TaskPrompt(Question):
    """A question as a model reads it. `prompt`: its tokens, chat template included where `chat`."""

    prompt: Prompt
    chat: bool

    @property
    def thinks(self) -> bool:
        """Whether the model is to think before it answers, so that no answer can stand right after
        the prompt.
        """
        chat = self.prompt.chat
        return chat is not None and (
            chat.thinking == ON or self.asked_text.rstrip().endswith(THINKING_MARK)
        )

    @property
    def asked_text(self) -> str:
        return self.prompt.text or ""

    @property
    def tokens(self) -> int:
        return len(self.prompt.ids)


def render_prompt(
    model: TransformerBridge,
    task: Task,
    length: int,
    *,
    seed: int = 0,
    mitigation: Mitigation | None = None,
    **encoding: Unpack[EncodingOptions],
) -> TaskPrompt:
    """Render the task's question at `length` items, as `mitigation` rewrites it and the model reads
    it.

    Options: `EncodingOptions`. The answer key is the generator's, and stands whatever was inserted
    (`mitigations.insert`).

    Raises `InputError` for a length that the task cannot have, inserted text that the tokenizer
    joins with an item into one token (it would not separate them), a right answer that is not one
    line (a line end inserted into what is to be copied: no final line could be it), and a prompt
    over the context; `MitigationError` where the key would change.
    """
    task_question = question(task, length, seed=seed, mitigation=mitigation)
    return render_question(model, task_question, **encoding)


def render_question(
    model: TransformerBridge, task_question: Question, **encoding: Unpack[EncodingOptions]
) -> TaskPrompt:
    """The question as the model reads it; one that was rendered is itself. Options and errors: as
    of `render_prompt`.
    """
    if isinstance(task_question, TaskPrompt):
        if encoding:
            raise in_tokens_already([*encoding], "a question that was rendered")
        return task_question
    in_chat = encoding.get("chat")
    if in_chat is None:
        in_chat = bool(getattr(model.tokenizer, "chat_template", None))
    prompt = encode(model, task_question.text, **{**encoding, "chat": in_chat})
    task_prompt = TaskPrompt(**vars(task_question), prompt=prompt, chat=in_chat)
    items = task_question.task.items(task_question.length, task_question.seed)
    if task_question.pieces != items:
        _require_separate(model, task_prompt)
    return task_prompt


def require_seeds(task: object, seeds: Sequence[int] | None) -> None:
    """Refuse seeds of a task, given or named, that draws nothing; None: its own."""
    form = tasks.pairs_or_task(task) if isinstance(task, str) else task
    if seeds is not None and isinstance(form, Task | CollapseTask):
        seeds_of(form, seeds)


def encoding_of(prompt: Prompt) -> EncodingOptions:
    """The options with which a text was encoded, to encode another one likewise."""
    if prompt.chat is None:
        return EncodingOptions(bos=prompt.chosen_bos, chat=False)
    return EncodingOptions(
        chat=True, system=prompt.chat.system, thinking=prompt.chat.thinking == ON
    )


def in_tokens_already(names: Sequence[str], value: str) -> InputError:
    """The refusal of options of `EncodingOptions` for what they cannot reach any more."""
    return InputError(
        f"{names[0]}: expected a text, found {value}, which is in tokens already: leave {names[0]} "
        "out, or give the text"
    )


def carrier_positions(model: TransformerBridge, task_prompt: TaskPrompt) -> tuple[int, ...]:
    """The positions of the tokens that carry the answer, in every copy of the sequence in the
    prompt.

    A token counts that has any character of such an item. Raises `InputError` where the prompt no
    longer holds the task's sequence, and for a tokenizer that does not say which characters its
    tokens come from.
    """
    items = task_prompt.task.items(task_prompt.length, task_prompt.seed)
    carrier_items = set(task_prompt.task.carriers(items))
    if not carrier_items:
        raise InputError(
            f"{task_prompt.task.name} at length {task_prompt.length}, seed {task_prompt.seed}: no "
            f"item carries the answer {task_prompt.key!r}; choose another length or seed"
        )
    item_by_place, _ = _items_in_text(task_prompt)
    return tuple(
        position
        for position, (start, end) in enumerate(offsets(model, task_prompt.prompt))
        if any(item_by_place.get(place) in carrier_items for place in range(start, end))
    )


def item_positions(model: TransformerBridge, task_prompt: TaskPrompt) -> list[int | None]:
    """Item of each token: the first item of which the token has a character, None where it has of
    none.

    All None where that is not known, or not once: a sequence that was rewritten, or stands there
    twice, or a tokenizer that does not say which characters its tokens come from.
    """
    try:
        (item_by_place, copies), spans = (
            _items_in_text(task_prompt),
            offsets(model, task_prompt.prompt),
        )
    except InputError:
        return [None] * task_prompt.tokens
    items = [[item_by_place.get(place) for place in range(*span)] for span in spans]
    return [
        next((i for i in token_items if i is not None and copies == 1), None)
        for token_items in items
    ]


def last_item_position(model: TransformerBridge, task_prompt: TaskPrompt) -> int:
    """The position of the token that ends the sequence: of its last item, in the last copy of the
    sequence.

    Raises `InputError` where the prompt no longer holds the task's sequence, where that token holds
    characters of what stands after the sequence too, and for a tokenizer that does not say which
    characters its tokens come from.
    """
    last = max(_items_in_text(task_prompt)[0])
    spans = offsets(model, task_prompt.prompt)
    position = max(index for index, (start, end) in enumerate(spans) if start <= last < end)
    if spans[position][1] > last + 1:
        raise InputError(
            f"{task_prompt.task.name}: expected the sequence to end with a token, found "
            f"{task_prompt.prompt.tokens[position]!r}, which this tokenizer makes of its last item "
            "and of what stands after it"
        )
    return position


def _items_in_text(task_prompt: TaskPrompt) -> tuple[dict[int, int | None], int]:
    """Of each character of the sequence, by its place in the encoded text, the item that it is of
    (None: it was inserted); and how many copies of the sequence stand there.

    Raises `InputError` where the prompt no longer holds the task's sequence.
    """
    text, task = task_prompt.asked_text, task_prompt.task
    before, sequence, after = task.parts(task_prompt.pieces)
    # A chat template may strip a message's ends; the words next to the sequence stay.
    anchored = before.lstrip() + sequence + (after[:8].rstrip() if after.strip() else "")
    chat = task_prompt.prompt.chat
    begin = 0 if chat is None else chat.message[0]  # a system prompt may say the same
    matches = list(re.compile(re.escape(anchored)).finditer(text, begin))
    if not matches:
        raise InputError(
            f"{task.name}: expected the task's sequence in the prompt as the task writes it, found "
            "it rewritten; which tokens carry the answer is not known"
        )
    pieces, items = task_prompt.pieces, task.items(task_prompt.length, task_prompt.seed)
    item_by_place: dict[int, int | None] = {}
    for match in matches:
        end, index = match.start() + len(before.lstrip()), 0
        for rank, piece in enumerate(pieces):
            # Blanks around a bar may be the next item's: the bar parts the items without them.
            written_piece = piece.strip() if isinstance(piece, Bar) else piece
            start = text.index(written_piece, end)
            end = start + len(written_piece)
            # Inserted text may look like an item. The items stand in their order, the last one at
            # the end.
            could_be = rank == len(pieces) - 1 if index == len(items) - 1 else index < len(items)
            is_item = could_be and piece == items[index]
            item_by_place |= dict.fromkeys(range(start, end), index if is_item else None)
            index += is_item
    return item_by_place, len(matches)


def _require_separate(model: TransformerBridge, task_prompt: TaskPrompt) -> None:
    """Refuse a token that holds characters of inserted text and of an item at once: what was merged
    separates nothing.
    """
    item_by_place, _ = _items_in_text(task_prompt)
    for (start, end), token in zip(
        offsets(model, task_prompt.prompt), task_prompt.prompt.tokens, strict=True
    ):
        token_items = [
            item_by_place[place] for place in range(start, end) if place in item_by_place
        ]
        if None in token_items and set(token_items) != {None}:
            raise InputError(
                f"{task_prompt.task.name}: expected inserted text in tokens of its own, found "
                f"{token!r}, which this tokenizer makes of an item and of inserted text together: "
                "use another separator"
            )


def elicitation_for(
    form: Task,
    tokenizer: Any,
    trained: Mapping[str, int] | None,
    elicitation: Elicitation | None,
    chat: bool | None,
) -> Elicitation:
    """Elicitation of a task: as `elicitation` or `chat` say, else by the kind of model.

    By the kind: chat where the tokenizer has a template; zero-shot where the model's card lists the
    task among those of its training (`trained`), or the prompt asks for reasoning, which a begun
    answer line would cut off; else few-shot.

    Raises `InputError` for one that contradicts `chat`, and few-shot for a prompt that asks for
    reasoning.
    """
    if elicitation is None:
        if chat is not None:
            return CHAT if chat else ZERO_SHOT
        if getattr(tokenizer, "chat_template", None):
            return CHAT
        return ZERO_SHOT if form.reasons or form.trained_as in (trained or {}) else FEW_SHOT
    if chat is not None and chat is not (elicitation == CHAT):
        raise InputError(
            f"chat: expected nothing beside elicitation={elicitation!r}, found {chat}: leave chat "
            "out"
        )
    if elicitation == FEW_SHOT and form.reasons:
        raise InputError(
            f"elicitation: {form.name} asks for reasoning, and a few-shot prompt begins the answer "
            "line: expected chat or "
            "zero-shot, or the task with mode=none"
        )
    return elicitation


def elicit(
    model: TransformerBridge,
    form: Task,
    length: int,
    elicitation: Elicitation,
    *,
    seed: int = 0,
    mitigation: Mitigation | None = None,
    **encoding: Unpack[EncodingOptions],
) -> TaskPrompt:
    """The task's question at `length` items as `render_prompt` gives it, in a few-shot prompt where
    that is asked for.

    `TaskPrompt.prefill` is then the answer line as far as the prompt has begun it. Raises
    `InputError` as `render_prompt` does, and for a task that has no examples beside the question.
    """
    encoding |= {"chat": elicitation == CHAT}
    task_prompt = render_prompt(model, form, length, seed=seed, mitigation=mitigation, **encoding)
    if elicitation != FEW_SHOT:
        return task_prompt
    before, prefill = few_shot_text(task_prompt, mitigation)
    # A blank before the answer belongs to the prompt where it is a token of its own: the next one
    # is then the answer's first.
    answer_prefix = (
        prefill if _own_token(tokenizer_of(model), before + prefill) else prefill.rstrip(" ")
    )
    prompt = encode(model, before + answer_prefix, **encoding)
    return replace(task_prompt, prompt=prompt, prefill=answer_prefix)


def few_shot_text(task_question: Question, mitigation: Mitigation | None) -> tuple[str, str]:
    """The worked examples and the question; and the answer line up to the answer."""
    form = task_question.task
    if task_question.counts:
        raise InputError(
            f"elicitation: {task_question.mitigation} asks for counts before the answer line, and "
            "a few-shot prompt begins "
            "that line: expected chat or zero-shot"
        )
    worked = [
        f"{example.text}{form.lead}{example.line}\n\n"
        for example in worked_examples(task_question, mitigation)
    ]
    return "".join(worked) + task_question.text + form.lead, form.answer_line(PLACE).partition(
        PLACE
    )[0]


def worked_examples(task_question: Question, mitigation: Mitigation | None) -> list[Question]:
    """`EXAMPLES` questions of the task with other sequences than the asked one, each under the
    mitigation.

    They are the same for every question, but for one that would be the asked one: the next takes
    its place. Raises `InputError` for a task that cannot be asked at so many of the short lengths.
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
        f"{form.name}: expected {EXAMPLES} short questions as examples of a few-shot prompt, found "
        f"{len(examples)}: ask with "
        "elicitation='zero-shot'"
    )


def _own_token(tokenizer: Any, text: str) -> bool:
    """Whether the blank at the text's end stays a token of its own before an answer."""

    alone, *with_answers = (
        token_ids(tokenizer, text + answer, add_special_tokens=False) for answer in ("", *_NUMBERS)
    )
    return text.endswith(" ") and all(ids[: len(alone)] == alone for ids in with_answers)
