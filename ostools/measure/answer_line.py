"""The right answer line after a task's prompt, in tokens: where it stands, and where in it the
answer begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.measure.prompts import agreeing
from ostools.measure.task_prompt import TaskPrompt
from ostools.models import Prompt
from ostools.models.tokenizer_calls import control_ids, token_ids, writes_lines
from ostools.models.tokens import tokenizer_of

_WORD = "a"  # what no tokenizer joins with a blank or a line's end after it
_TWO_ANSWERS = ("1", "2")


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
        *(replace(task_prompt, line=form.answer_line(other)) for other in _TWO_ANSWERS),
    ]
    right, first, second = (
        line_ids(model, task_prompt.prompt, answer_text(text)) for text in texts
    )
    begun = first[: agreeing(first, second)]
    if not form.numeric:
        begun = begun[: agreeing(begun, right)]
    if right[: len(begun)] != begun or len(right) == len(begun):
        raise cut_otherwise(task_prompt)
    return begun, right[len(begun) :]


def cut_otherwise(task_prompt: TaskPrompt) -> InputError:
    return InputError(
        f"{task_prompt.task.name} at length {task_prompt.length}: expected the answer {task_prompt.key!r} to begin with a "
        "token of its own, found that this tokenizer cuts the line before it otherwise than before other answers"
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
            f"expected an answer in tokens of its own, found that this tokenizer joins {line[:40]!r} with the text before it"
        )
    return _plain(model, joined_ids[len(before) :], line)


def _encoded(tokenizer: Any, text: str, split: bool) -> list[int]:
    return token_ids(tokenizer, text, add_special_tokens=False, split_special_tokens=split)


def _plain(model: TransformerBridge, ids: Sequence[int], line: str) -> tuple[int, ...]:
    if not ids or set(ids) & control_ids(model.tokenizer):
        raise InputError(
            f"expected an answer of plain text, found {line[:40]!r}: it is empty, or holds a control token"
        )
    return tuple(ids)
