"""Prompt of a task: rewritten by a mitigation, in the chat template, in tokens, with its answer key.

Every measurement renders its prompts by `render_prompt`, so that behaviour, collapse and sensitivity speak of the same prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.models import Prompt, encode
from ostools.models.chat import LOW, ON
from ostools.models.tokens import offsets
from ostools.tasks import Task
from ostools.tasks.questions import question

Span = tuple[int, int]

THINKING_MARK = "<think>"
"""With this at its end a template has begun the model's thoughts."""


@dataclass(frozen=True)
class TaskPrompt:
    """Prompt of one question, with its answer key.

    `text`: what a user would type. `prompt`: its tokens, chat template included where `chat`. `pieces`: the items with what was
    inserted between them. `key`: the right answer; `line`: the right final line. `rewritten`: whether a mitigation changed the
    text. `prefill`: the words of the answer line with which a few-shot prompt ends (`elicitation`); None where the
    model writes the whole line.
    """

    task: Task
    length: int
    seed: int
    text: str
    prompt: Prompt
    pieces: tuple[str, ...]
    key: str
    line: str
    rewritten: bool
    chat: bool
    prefill: str | None = None

    @property
    def thinks(self) -> bool:
        """Whether the model is to think before it answers, so that no answer can stand right after the prompt."""
        chat, text = self.prompt.chat, self.prompt.text or ""
        return chat is not None and (chat.thinking in (ON, LOW) or text.rstrip().endswith(THINKING_MARK))

    @property
    def to_write(self) -> str:
        """The right line as far as the model is to write it."""
        return self.line if self.prefill is None else self.line.removeprefix(self.prefill)

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
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool = False,
) -> TaskPrompt:
    """Render the task's question at `length` items, as `mitigation` rewrites it and the model reads it.

    `chat`: whether as a user's turn in the tokenizer's chat template; None: where it has one. `system`, `thinking`: a system
    prompt before it, and whether the model is to think before it answers; as for `models.encode`. The answer key is the
    generator's, and stands whatever was inserted (`mitigations.insert`).

    Raises `InputError` for a length that the task cannot have, inserted text that the tokenizer joins with an item into one
    token (it would not separate them), a right answer that is not one line (a line end inserted into what is to be copied: no
    final line could be it), and a prompt over the context; `MitigationError` where the key would change.
    """
    task_question = question(task, length, seed=seed, mitigation=mitigation)
    in_chat = bool(getattr(model.tokenizer, "chat_template", None)) if chat is None else chat
    prompt = encode(model, task_question.text, chat=in_chat, system=system, thinking=thinking)
    shared = {name: getattr(task_question, name) for name in ("text", "pieces", "key", "line", "rewritten")}
    task_prompt = TaskPrompt(task, length, seed, prompt=prompt, chat=in_chat, **shared)
    items = task.items(length, seed)
    if task_question.pieces != items:
        _require_separate(model, task_prompt, items)
    return task_prompt


def carrier_positions(model: TransformerBridge, task_prompt: TaskPrompt) -> tuple[int, ...]:
    """The positions of the tokens that carry the answer, in every copy of the sequence in the prompt.

    A token counts that has any character of such an item. Raises `InputError` where the prompt no longer holds the task's
    sequence, and for a tokenizer that does not say which characters its tokens come from.
    """
    items = task_prompt.task.items(task_prompt.length, task_prompt.seed)
    carrier_items = set(task_prompt.task.carriers(items))
    if not carrier_items:
        raise InputError(
            f"{task_prompt.task.name} at length {task_prompt.length}, seed {task_prompt.seed}: no item carries the answer "
            f"{task_prompt.key!r}; choose another length or seed"
        )
    pieces = (piece for copy in _copies(task_prompt) for piece in _pieces(task_prompt, items, copy))
    spans = [span for item, span in pieces if item in carrier_items]
    places = enumerate(offsets(model, task_prompt.prompt))
    return tuple(place for place, (start, end) in places if any(start < high and end > low for low, high in spans))


def item_positions(model: TransformerBridge, task_prompt: TaskPrompt) -> list[int | None]:
    """Item of each token: the first item of which the token has a character, None where it has of none.

    All None where that is not known, or not once: a sequence that was rewritten, or stands there twice, or a tokenizer that
    does not say which characters its tokens come from.
    """
    items = task_prompt.task.items(task_prompt.length, task_prompt.seed)
    try:
        copies, places = _copies(task_prompt), offsets(model, task_prompt.prompt)
    except InputError:
        copies, places = [], []
    if len(copies) != 1:
        return [None] * task_prompt.tokens
    owner: dict[int, int] = {}
    for item, (low, high) in _pieces(task_prompt, items, copies[0]):
        if item is not None:
            owner |= dict.fromkeys(range(low, high), item)
    return [next((owner[place] for place in range(start, end) if place in owner), None) for start, end in places]


def _copies(task_prompt: TaskPrompt) -> list[int]:
    """Offsets at which the sequence begins in the encoded text, after the task's own words."""
    prompt_text = task_prompt.prompt.text or ""
    before, sequence, after = task_prompt.task.parts(task_prompt.pieces)
    # A chat template may strip a message's ends; the words next to the sequence stay.
    anchored = before.lstrip() + sequence + (after[:8].rstrip() if after.strip() else "")
    chat = task_prompt.prompt.chat
    begin = 0 if chat is None else chat.message[0]  # a system prompt may say the same
    matches = re.finditer(re.escape(anchored), prompt_text[begin:])
    starts = [begin + match.start() + len(before.lstrip()) for match in matches]
    if not starts:
        raise InputError(
            f"{task_prompt.task.name}: expected the task's sequence in the prompt as the task writes it, found it rewritten; "
            "which tokens carry the answer is not known"
        )
    return starts


def _pieces(task_prompt: TaskPrompt, items: Sequence[str], start: int) -> Iterator[tuple[int | None, Span]]:
    """Every piece of one copy of the sequence: which item it is (None: inserted), and where it stands in the encoded text."""
    prompt_text, at, index = task_prompt.prompt.text or "", start, 0
    for rank, piece in enumerate(task_prompt.pieces):
        low = prompt_text.index(piece, at)
        at = low + len(piece)
        # Inserted text may look like an item. The items stand in their order, the last one at the end.
        last = index == len(items) - 1
        is_item = index < len(items) and piece == items[index] and (not last or rank == len(task_prompt.pieces) - 1)
        yield (index if is_item else None), (low, at)
        index += is_item


def _require_separate(model: TransformerBridge, task_prompt: TaskPrompt, items: Sequence[str]) -> None:
    """Refuse a token that holds characters of inserted text and of an item at once: what was merged separates nothing."""
    inserted: dict[int, bool] = {}
    for copy in _copies(task_prompt):
        for item, (low, high) in _pieces(task_prompt, items, copy):
            inserted |= dict.fromkeys(range(low, high), item is None)
    for (start, end), token in zip(offsets(model, task_prompt.prompt), task_prompt.prompt.tokens, strict=True):
        if {inserted[position] for position in range(start, end) if position in inserted} == {True, False}:
            raise InputError(
                f"{task_prompt.task.name}: expected inserted text in tokens of its own, found {token!r}, which this "
                "tokenizer makes of an item and of inserted text together: use another separator"
            )
