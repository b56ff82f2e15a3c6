"""Tasks by name: the paper's, and those of other distributions by the entry-point group
`ostools.tasks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, overload

from ostools.ground.errors import InputError, unknown_name
from ostools.mitigations.registry import Listed, Registry
from ostools.tasks.appendix_c import NAMES
from ostools.tasks.base import AnyTask, Task
from ostools.tasks.pairs import FIGURE_5, CollapseTask, ItemsAs
from ostools.tasks.repeats import letters

GROUP = "ostools.tasks"
BUILT_IN = dict.fromkeys(NAMES, "ostools.tasks.appendix_c:AppendixTask") | {
    "retrieve-at-position": "ostools.tasks.retrieve:RetrieveTask",
    "copy-beside": "ostools.tasks.retrieve:CopyBeside",
}
"""Where each built-in task is found."""
_ENDING_IN_ITEMS = {**FIGURE_5, "letters": letters}
REPEATING_TASKS = tuple(_ENDING_IN_ITEMS)
"""The names of pairs of which v* is v with its last token once more."""

_REGISTRY = Registry("task", Task, BUILT_IN, GROUP, InputError)


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
