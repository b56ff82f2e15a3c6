"""Where a task's prompt is read: the token whose y a measurement of the task is about.

One notion for all measurements. A position is a name; with a task's prompt it gives the tokens up
to the one that is read, which is the last of them: what a causal model does there knows of no later
token.

- "answer": the token from which the answer is predicted. After the prompt as `evaluate` asks it (a
  user's turn in the chat template, where there is one) the right line is begun, up to the answer
  itself. A task without words before its answer has nothing to begin: its answer is predicted at
  the end of the prompt, without a template after a line end.
- "prompt-end": the prompt's last token, the paper's y_n. In a chat template this is the template's.
- "last-item": the token that ends the sequence, such as its last digit. The rest of the prompt is
  not read there.

The right line after a prompt, and where in it the answer begins, are found in tokens (`line_ids`,
`split_line`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from ostools.ground import InputError, Position, TransformerBridge, checked_name
from ostools.hooks.torch_state import float32_products
from ostools.measure.prompts import agreeing
from ostools.measure.task_prompt import PLACE, TaskPrompt, last_item_position
from ostools.models import Prompt
from ostools.models.chat import TEMPLATE
from ostools.models.precision.scores import own_attention
from ostools.models.tokenizer_calls import (
    control_ids,
    decoded,
    token_ids,
    token_text,
    writes_lines,
)
from ostools.models.tokens import tokenizer_of
from ostools.tasks import Question

ANSWER, PROMPT_END, LAST_ITEM = POSITIONS = get_args(Position)
_WORD = "a"  # what no tokenizer joins with a blank or a line's end after it
_TWO_ANSWERS = ("1", "2")


@dataclass(frozen=True)
class ReadPrompt:
    """A task's prompt up to the token that is read, the last of `ids`.

    line: how many of the last tokens are the begun answer line. answer: the tokens of the right
    answer after the line as far as it can be begun; none where only the position was asked for.
    """

    task_prompt: TaskPrompt
    position: Position
    ids: tuple[int, ...]
    line: int = 0
    answer: tuple[int, ...] = ()

    @property
    def token(self) -> int:
        """The first token of the right answer."""
        return self.answer[0]

    @property
    def number(self) -> int:
        """The right answer, of a task whose answer is a number."""
        return int(self.task_prompt.key)

    @property
    def group(self) -> int:
        """Prompts of one group hold the same drawn sequence, or its beginning: the seed. What draws
        nothing has its length.
        """
        return self.task_prompt.seed if self.task_prompt.task.random else self.task_prompt.length

    def prompt(self, model: TransformerBridge) -> Prompt:
        """The tokens as a prompt of the model. The begun line counts as the template's, not as the
        user's text.
        """
        whole_prompt = self.task_prompt.prompt
        if self.ids == tuple(whole_prompt.ids.tolist()):
            return whole_prompt
        origins = (
            whole_prompt.origins
            and (*whole_prompt.origins, *[TEMPLATE] * self.line)[: len(self.ids)]
        )
        tokens = Prompt.from_ids(model, self.ids)
        return replace(
            whole_prompt,
            text=None,
            ids=tokens.ids,
            tokens=tokens.tokens,
            bos=tokens.bos,
            origins=origins,
        )


def require_prompt_end(position: Position | None, what: str) -> None:
    """Refuse a position that only a task's prompt has. `what` was given in the place of a task."""
    if position not in (None, PROMPT_END):
        raise InputError(
            f"position: expected a task's prompt for {position!r}, found {what}, which is read at "
            "its last token: leave "
            "position out"
        )


def require_question(prompt: Sequence[object] | None, position: Position | None) -> None:
    """Refuse a position of prompts that are no task's questions."""
    if not all(isinstance(text, Question) for text in prompt or ()):
        require_prompt_end(position, "a prompt without a task")


def read_at(
    model: TransformerBridge, task_prompt: TaskPrompt, position: Position = ANSWER
) -> ReadPrompt:
    """The prompt up to the token of that position.

    Raises `InputError` at "answer" where the model thinks before it answers, and where the
    tokenizer cuts the line before the right answer otherwise than before others; at "last-item"
    where the sequence was rewritten, or ends inside a token.
    """
    checked_name("position", position, POSITIONS)
    ids = tuple(task_prompt.prompt.ids.tolist())
    if position == LAST_ITEM:
        return ReadPrompt(task_prompt, position, ids[: last_item_position(model, task_prompt) + 1])
    if position == PROMPT_END:
        return ReadPrompt(task_prompt, position, ids)
    if task_prompt.thinks:
        raise InputError(
            "position: expected a chat template with which the answer stands right after the "
            "prompt, found one with which the "
            "model thinks first: read at 'prompt-end', or ask without the template, chat=False"
        )
    prefix, answer = split_line(model, task_prompt)
    Prompt.from_ids(model, (*ids, *prefix))  # refused here where it is longer than the context
    return ReadPrompt(task_prompt, position, (*ids, *prefix), len(prefix), answer)


def predicted_token(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> int:
    """The token that the model ranks first after these: in its own dtype, as it answers, under
    whatever is active.

    A float32 view of a 16-bit model may rank another first. Raises `InputError` for logits that are
    not finite."""
    with torch.no_grad(), float32_products(), own_attention(model):
        logits = model(
            ids[None].to(next(model.parameters()).device), use_cache=False, logits_to_keep=1
        )[0, -1]
    if not bool(torch.isfinite(logits).all()):
        dtype = str(logits.dtype).removeprefix("torch.")
        raise InputError(
            f"the model's logits on this prompt are not finite in {dtype}: use another dtype, or "
            "check the model's weights"
        )
    return int(logits.argmax())


def reading(model: TransformerBridge, prompts: Sequence[ReadPrompt]) -> dict[str, object]:
    """What a provenance says of where these prompts are read.

    position: the name. tokens: the texts of the tokens whose y is read. places: of the shortest and
    the longest prompt, with its number of items. chat: whether in the chat template. line: the
    begun words, "" for none. before_answer: the words of the whole line before the answer. numeric:
    whether the answer is a number. reasons: whether the prompt asks for reasoning, which "answer"
    leaves out.
    """
    first, last = (choose(prompts, key=lambda prompt: len(prompt.ids)) for choose in (min, max))
    form = first.task_prompt.task
    return {
        "position": first.position,
        "tokens": sorted({token_text(model.tokenizer, prompt.ids[-1]) for prompt in prompts}),
        "places": [[prompt.task_prompt.length, len(prompt.ids) - 1] for prompt in (first, last)],
        "chat": first.task_prompt.chat,
        "line": decoded(model.tokenizer, first.ids[-first.line :]) if first.line else "",
        "before_answer": form.answer_line(PLACE).partition(PLACE)[0],
        "numeric": form.numeric,
        "reasons": first.task_prompt.reasons,
    }


def joined_readings(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`reading` of the prompts of several calls of one task."""
    places = [place for about in readings for place in about["places"]]
    first, last = (choose(places, key=lambda place: place[1]) for choose in (min, max))
    tokens = sorted({token for about in readings for token in about["tokens"]})
    return {**readings[0], "tokens": tokens, "places": [first, last]}


def read_entry(model: TransformerBridge, prompts: Iterable[ReadPrompt | None]) -> dict[str, object]:
    """The provenance's `read_at` of the task's questions among these; nothing where there is
    none."""
    reads = [prompt for prompt in prompts if prompt]
    return {"read_at": reading(model, reads)} if reads else {}


def answer_text(task_prompt: TaskPrompt) -> str:
    """The right answer as a model writes it: after what leads to it, a line of its own that in a
    chat is open already.
    """
    if task_prompt.chat or task_prompt.prefill is not None:
        return task_prompt.to_write
    return task_prompt.task.lead + task_prompt.line


def split_line(
    model: TransformerBridge, task_prompt: TaskPrompt
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The right line after the prompt in two: the tokens before the answer, and those of the answer
    with all after it.

    The answer begins with the first token in which the lines of the answers 1 and 2 differ; of a
    task whose answer is no number the right line has to differ there too. Raises `InputError` where
    the tokenizer cuts the line before this number otherwise than before 1 and 2.
    """
    form = task_prompt.task
    texts = [
        task_prompt,
        *(replace(task_prompt, line=form.answer_line(answer)) for answer in _TWO_ANSWERS),
    ]
    right, first, second = (
        line_ids(model, task_prompt.prompt, answer_text(text)) for text in texts
    )
    prefix = first[: agreeing(first, second)]
    if not form.numeric:
        prefix = prefix[: agreeing(prefix, right)]
    if right[: len(prefix)] != prefix or len(right) == len(prefix):
        raise cut_otherwise(task_prompt)
    return prefix, right[len(prefix) :]


def cut_otherwise(task_prompt: TaskPrompt) -> InputError:
    return InputError(
        f"{task_prompt.task.name} at length {task_prompt.length}: expected the answer "
        f"{task_prompt.key!r} to begin with a "
        "token of its own, found that this tokenizer cuts the line before it otherwise than before "
        "other answers"
    )


def line_ids(model: TransformerBridge, prompt: Prompt, line: str) -> tuple[int, ...]:
    """The tokens of `line` after a prompt. Where the vocabulary has no line's end, a blank stands
    for it.

    They are those behind the prompt where the prompt and the line, encoded as one text, begin with
    the prompt's own tokens. Where a tokenizer joins the prompt's end with the line's beginning they
    are those of the line by itself: a model that has read the prompt's tokens cannot write the
    joined one. Raises `InputError` where they cannot be told from the text before them."""
    tokenizer = tokenizer_of(model)
    if not writes_lines(tokenizer):
        line = line.replace("\n", " ")
    ids = prompt.ids.tolist()
    # As `encode` does it: a plain text holds no special token, a chat template its own; before
    # either may stand some.
    for split in (True, False):
        alone, joined_ids = (
            _encoded(tokenizer, text, split)
            for text in (prompt.text or "", (prompt.text or "") + line)
        )
        if alone and ids[-len(alone) :] == alone == joined_ids[: len(alone)]:
            return _plain(model, joined_ids[len(alone) :], line)
    anchor = _WORD if line[:1].isspace() else "\n"
    before, joined_ids = (_encoded(tokenizer, text, False) for text in (anchor, anchor + line))
    if joined_ids[: len(before)] != before:
        raise InputError(
            "expected an answer in tokens of its own, found that this tokenizer joins "
            f"{line[:40]!r} with the text before it"
        )
    return _plain(model, joined_ids[len(before) :], line)


def _encoded(tokenizer: Any, text: str, split: bool) -> list[int]:
    return token_ids(tokenizer, text, add_special_tokens=False, split_special_tokens=split)


def _plain(model: TransformerBridge, ids: Sequence[int], line: str) -> tuple[int, ...]:
    if not ids or set(ids) & control_ids(model.tokenizer):
        raise InputError(
            f"expected an answer of plain text, found {line[:40]!r}: it is empty, or holds a "
            "control token"
        )
    return tuple(ids)
