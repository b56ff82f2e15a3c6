"""How many tokens the prompts of a cell have, by its tokenizer alone: no model is loaded for a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mitigations import Mitigation, changes_pass, insert, rewrite
from ostools import tasks
from ostools.measure.answers.elicitation import CHAT, FEW_SHOT, Elicitation, elicitation_for, few_shot_text
from ostools.measure.passes.cost import PromptTokens
from ostools.models.describe import read_trained_lengths
from ostools.models.files.config import quiet, read_tokenizer
from ostools.models.files.sources import Source
from ostools.models.text.calling import token_ids
from ostools.models.tokens import count_tokens, require_chat, required
from ostools.runs.asked.sweep import form_of
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.measurements.behaviour import BEHAVIOUR
from ostools.runs.measurements.record import Cell
from ostools.tasks import CollapseTask, Task
from ostools.tasks.questions import question


def prompt_tokens(cell: Cell, source: Source) -> PromptTokens:
    """Counted at the shortest and the longest length, and between them on a line: items are alike."""
    elicitation = None
    if cell.measurement == BEHAVIOUR.name:
        elicitation = elicited(tasks.task(cell.task), source, cell.arguments.get("elicitation"), None)
    return _counted(replace(cell, model="", dtype="", options=""), source.tokenizer, elicitation)


def elicited(form: Task, source: Source, elicitation: str | None, chat: bool | None) -> Elicitation:
    """How `behaviour` would ask the model at `source` that task."""
    trained = read_trained_lengths(source.directory)
    return elicitation_for(form, required(_tokenizer(source.tokenizer)), trained, elicitation, chat)


@lru_cache(maxsize=256)
def _counted(cell: Cell, directory: Path, elicitation: Elicitation | None) -> PromptTokens:
    """Of a cell without what changes no token."""
    form = form_of(cell.task, cell.measurement)
    pairs = MEASUREMENTS[cell.measurement].pairs
    how: Any = {"seed": cell.seed, "mitigation": cell.mitigated, "pairs": pairs, "elicitation": elicitation}
    return task_tokens(form, directory, cell.lengths, **how)


def task_tokens(
    form: Task | CollapseTask,
    directory: Path,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    mitigation: Mitigation | None = None,
    pairs: bool = False,
    elicitation: Elicitation | None = None,
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool = False,
) -> PromptTokens:
    """Of the prompts of a task, by the tokenizer in `directory`; `pairs`: they are compared, in no chat; `elicitation`: as
    `behaviour` asks them, None: alone, in a chat where there is a template."""
    if elicitation is not None:
        chat = elicitation == CHAT
    shortest, longest = min(lengths), max(lengths)
    if isinstance(form, Task):
        tokenizer = required(_tokenizer(directory))
        chat = bool(tokenizer.chat_template) and not pairs if chat is None else chat
        require_chat(chat, system, thinking)
        how: Any = {"chat": chat, "system": system, "thinking": thinking}
        text = _few_shot if elicitation == FEW_SHOT else _text
        low, high = (count_tokens(tokenizer, text(form, mitigation, n, seed), **how) for n in (shortest, longest))
        after = form.parts(form.items(shortest, seed))[2]
        line = form.answer_line(form.answer(longest, seed))
        behind, answer = (count_tokens(tokenizer, part) if part.strip() else 0 for part in (after, line))
    else:
        encoder = _Encoder(_tokenizer(directory))
        low, high = (_longest_pair(form, encoder, n, seed) for n in (shortest, longest))
        behind, answer = 0, 0
    step = (high - low) / max(longest - shortest, 1)
    prompts = tuple(round(low + step * (length - shortest)) for length in lengths)
    return PromptTokens(prompts, behind, answer, mitigation is not None and changes_pass(mitigation))


def text_tokens(
    text: str, directory: Path, *, chat: bool = False, system: str | None = None, thinking: bool = False
) -> int:
    """Of a text, encoded as a prompt."""
    return count_tokens(required(_tokenizer(directory)), text, chat=chat, system=system, thinking=thinking)


def _text(form: Task, given: Mitigation | None, length: int, seed: int) -> str:
    items = form.items(length, seed)
    before, sequence, after = form.parts(items if given is None else insert(given, items, form.key))
    text = before + sequence + after
    return text if given is None else rewrite(given, text)


def _few_shot(form: Task, given: Mitigation | None, length: int, seed: int) -> str:
    return "".join(few_shot_text(question(form, length, seed=seed, mitigation=given), given))


def _longest_pair(form: CollapseTask, encoder: _Encoder, length: int, seed: int) -> int:
    return max(len(pair.extended) for pair in form.pairs(encoder, [length], seed))


@lru_cache(maxsize=4)
def _tokenizer(directory: Path) -> Any:
    with quiet():
        return read_tokenizer(directory)


class _Encoder:
    """A bare tokenizer as `tasks.Encoder`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        tokenizer = required(self.tokenizer)
        return [tuple(token_ids(tokenizer, text, split_special_tokens=True)) for text in texts]

    def token(self, index: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(index))
