"""Tasks by name, the paper's and those of other distributions (entry-point group `ostools.tasks`);
and their questions without a model: what is asked, under which id, and what the right answer is.

For models that run elsewhere (behind an API, in another program): the prompts go out with their
ids, and answers come back with them. `render_prompt` puts the same question into a model's tokens.
No torch is needed here.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast, overload

from ostools import mitigations
from ostools.ground import InputError, checked_lengths, short_repr, unknown_name, whole_number
from ostools.mitigations import Bar, Mitigation, insert, rewrite
from ostools.mitigations.registry import Listed, Registry
from ostools.tasks.appendix_c import NAMES
from ostools.tasks.base import AnyTask, Task, seeds_of
from ostools.tasks.pairs import FIGURE_5, CollapseTask, ItemsAs
from ostools.tasks.repeats import letters

BUILT_IN = dict.fromkeys(NAMES, "ostools.tasks.appendix_c:AppendixTask") | {
    "retrieve-at-position": "ostools.tasks.retrieve:RetrieveTask",
    "copy-beside": "ostools.tasks.retrieve:CopyBeside",
}
"""Where each built-in task is found."""
_ENDING_IN_ITEMS = {**FIGURE_5, "letters": letters}
REPEATING_TASKS = tuple(_ENDING_IN_ITEMS)
"""The names of pairs of which v* is v with its last token once more."""

_REGISTRY = Registry("task", Task, BUILT_IN, "ostools.tasks", InputError)
_DIGEST = 12  # hexadecimal digits of the prompt's SHA-256 in an id


def names() -> tuple[str, ...]:
    """Every name that `task` knows, the paper's first."""
    return _REGISTRY.names()


def listing() -> list[Listed]:
    """Every name with whose it is, its options and what it does."""
    return _REGISTRY.listing()


@overload
def task(spec: str | Task) -> Task: ...
@overload
def task(spec: str | CollapseTask, kind: type[CollapseTask]) -> CollapseTask: ...
def task(spec: str | AnyTask, kind: type[AnyTask] = Task) -> AnyTask:
    """The task that a text describes: `count-ones`, `count-ones:mode=cot-zero-shot`,
    `copy-last:uniform=true`.

    kind: `Task`, what a model answers; `CollapseTask`, pairs of prompts of which v* is v with its
        last token once more, by a name of `REPEATING_TASKS`: `figure-5a`, `letters:items=ids`. A
        task stays itself.

    Raises `InputError` for an unknown name or option, with the nearest, and for a distribution that
    cannot be used.
    """
    if isinstance(spec, kind):
        return spec
    if not isinstance(spec, str):
        raise InputError(
            f"expected a task or its name, such as 'copy-last', found {type(spec).__name__}"
        )
    if kind is Task:
        return _REGISTRY.make(spec)
    name = spec.partition(":")[0].strip()
    if name in names():
        raise InputError(
            f"{name}: expected pairs of which v* is v with its last token once more, found a "
            f"question to be answered; such pairs are {', '.join(REPEATING_TASKS)}"
        )
    return _pairs(spec, REPEATING_TASKS)


def pairs_or_task(spec: str) -> CollapseTask | Task:
    """What `collapse` compares by that name: pairs of `REPEATING_TASKS`, or a task, whose prompts
    of n and n + 1 items are compared.
    """
    name = spec.partition(":")[0].strip()
    return task(spec) if name in names() else _pairs(spec, (*REPEATING_TASKS, *names()))


def _pairs(spec: str, known_names: Sequence[str]) -> CollapseTask:
    name, _, items = spec.partition(":items=")
    if name not in _ENDING_IN_ITEMS:
        raise unknown_name("task", name, known_names)
    return _ENDING_IN_ITEMS[name](cast(ItemsAs, items or "text"))


def label(task: Task) -> str:
    """Name of a task in tables and charts: the text that `task` would make it of."""
    return _REGISTRY.label(task)


@dataclass(frozen=True)
class Question:
    """One question as text.

    text: the whole prompt, as a mitigation rewrote it. pieces: the items with what was inserted
    between them. key: the right answer; line: the right final line. rewritten: whether a mitigation
    changed the text. mitigation: its name, "none" for none.
    counts: the parts of the sequence whose counts a mitigation asks for before the final line; 0
        where none does.
    prefill: the words of the answer line with which a few-shot prompt ends; None where the model
        writes the whole line.
    """

    task: Task
    length: int
    seed: int
    mitigation: str
    text: str
    pieces: tuple[str, ...]
    key: str
    line: str
    rewritten: bool
    prefill: str | None = field(default=None, kw_only=True)
    counts: int = field(default=0, kw_only=True)

    @property
    def id(self) -> str:
        """A name that is the same on every machine: task, items, seed, mitigation, and the first
        digits of the text's SHA-256.

        A prompt that changed by one character has another id.
        """
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST]
        return (
            f"{label(self.task)} n={self.length} seed={self.seed} mitigation={self.mitigation} "
            f"#{digest}"
        )

    @property
    def reasons(self) -> bool:
        """Whether the prompt asks for words before the final line: for reasoning, or for a count of
        each part.
        """
        return self.task.reasons or self.counts > 0

    @property
    def to_write(self) -> str:
        """The right line as far as the model is to write it."""
        return self.line if self.prefill is None else self.line.removeprefix(self.prefill)

    @property
    def asked_text(self) -> str:
        """The whole text that the model reads."""
        return self.text


def question(
    form: Task, length: int, *, seed: int = 0, mitigation: Mitigation | None = None
) -> Question:
    """The task's question at `length` items, as `mitigation` rewrites it.

    The answer key is the generator's, and stands whatever was inserted (`mitigations.insert`). Of a
    mitigation with hooks this is the part that is text.

    Raises `InputError` for a length that the task cannot have, and for a right answer that is not
    one line (a line end inserted into what is to be copied: no final line could be it);
    `MitigationError` where the key would change.
    """
    items = form.items(length, whole_number("seed", seed))
    pieces = items if mitigation is None else insert(mitigation, items, form.key)
    before, sequence, after = form.parts(pieces)
    plain = before + sequence + after
    text = plain if mitigation is None else rewrite(mitigation, plain)
    key = form.key([piece for piece in pieces if not isinstance(piece, Bar)])
    line = form.answer_line(key)
    if len(line.splitlines()) != 1:
        raise InputError(
            f"{form.name}: expected a right answer of one line, found {line[:40]!r}: no final line "
            "could be right; insert no line ends into what is to be copied"
        )
    rewritten, counts = text != form.prompt(length, seed), _counts(form, pieces, mitigation)
    return Question(
        form,
        length,
        seed,
        mitigations.label(mitigation),
        text,
        pieces,
        key,
        line,
        rewritten,
        counts=counts,
    )


def _counts(form: Task, pieces: Sequence[str], mitigation: Mitigation | None) -> int:
    """Number of parts whose counts a mitigation asks for; 0 where none does.

    Raises `InputError` for a task whose answer is not the sum of those of the parts, and for one
    that asks for no final line.
    """
    asking = next((part for part in mitigations.parts(mitigation) if part.counts_parts), None)
    if asking is None:
        return 0
    parts = [
        tuple(group)
        for is_bar, group in groupby(pieces, lambda piece: isinstance(piece, Bar))
        if not is_bar
    ]
    total = form.key([piece for part in parts for piece in part])
    if not form.numeric or sum(int(form.key(part)) for part in parts) != int(total):
        raise InputError(
            f"{mitigations.label(asking)}: expected a task whose answer is the sum of the counts "
            f"of its parts, such as count-ones, found {form.name}"
        )
    if form.answer_line("") == "":
        raise InputError(
            f"{mitigations.label(asking)}: expected a task that asks for a final line, such as "
            f"count-ones, found {form.name}: the first count would be read as its answer"
        )
    return len(parts)


def questions(
    task_or_name: Task | str,
    *,
    lengths: Iterable[int],
    seeds: Sequence[int] = (0,),
    mitigation: Mitigation | str | None = None,
) -> list[Question]:
    """The task's questions for a model that runs elsewhere, at every length and seed; arguments as
    of `ostools.evaluate`.

    Raises `InputError` as `question` does, for seeds of a task that draws nothing, and for a
    mitigation that changes the forward pass: a model that is asked by text has none to change.
    """
    form, length_list = task(task_or_name), checked_lengths(lengths)
    acting = mitigations.optional(mitigation)
    for part in mitigations.parts(acting):
        if type(part).hooks is not Mitigation.hooks:
            raise InputError(
                f"{mitigations.label(part)} changes the forward pass, and a model that is asked by "
                "text has none to change: expected a mitigation that only rewrites prompts"
            )
    return [
        question(form, n, seed=seed, mitigation=acting)
        for n in length_list
        for seed in seeds_of(form, seeds)
    ]


def prompts_jsonl(question_list: Iterable[Question]) -> str:
    """The questions as JSON Lines, one object a line.

    Keys: id (`Question.id`, which an answer has to repeat), task, length, seed, mitigation, prompt
    (what to send, as it stands), key (the right answer) and line (the right final line). The last
    two are for people: send neither.
    """
    rows = [
        {
            "id": question.id,
            "task": label(question.task),
            "length": question.length,
            "seed": question.seed,
            "mitigation": question.mitigation,
            "prompt": question.text,
            "key": question.key,
            "line": question.line,
        }
        for question in checked_questions(question_list)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def checked_questions(value: object) -> tuple[Question, ...]:
    """The questions. Raises `InputError` for anything else."""
    is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    items = tuple(cast(Iterable[Question], value)) if is_several else (cast(Question, value),)
    if wrong := [item for item in items if not isinstance(item, Question)]:
        raise InputError(
            f"expected questions, as ost.tasks.questions gives them, found {short_repr(wrong[0])}"
        )
    return items
