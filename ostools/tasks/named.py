"""Tasks by name: the paper's, and those of other distributions by the entry-point group
`ostools.tasks`.
"""

from __future__ import annotations

from typing import cast, overload

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.mitigations.registry import Listed, Registry
from ostools.tasks.appendix_c import NAMES
from ostools.tasks.base import AnyTask, Task
from ostools.tasks.pairs import FIGURE_5, TASK_PAIRS, CollapseTask, ItemsAs, task_pairs
from ostools.tasks.repeats import REPEATS, last_token

GROUP = "ostools.tasks"
BUILT_IN = dict.fromkeys(NAMES, "ostools.tasks.appendix_c:AppendixTask") | {
    "retrieve-at-position": "ostools.tasks.retrieve:RetrieveTask",
    "copy-beside": "ostools.tasks.beside:CopyBeside",
}
"""Where each built-in task is found."""
_ENDING_IN_ITEMS = {**FIGURE_5, **REPEATS}
REPEATING_TASKS = (*_ENDING_IN_ITEMS, "text")
"""The names of pairs of which v* is v with its last token once more."""
COLLAPSE_TASKS = (*REPEATING_TASKS, *TASK_PAIRS)
"""The names of pairs for `collapse`."""

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

    kind: `Task`, what a model answers; `CollapseTask`, the pairs of prompts that `collapse`
        compares, by a name of `COLLAPSE_TASKS`: `figure-5a`, `letters:items=ids`, `count-ones`. A
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
    return _pairs(spec) if kind is CollapseTask else _REGISTRY.make(spec)


def repeating(spec: str) -> CollapseTask:
    """Pairs in which v* is v with its last token once more: `figure-5a`, `letters:items=ids`,
    `text`.

    Raises `InputError` for any other name, and proposes these alone.
    """
    if not isinstance(spec, str):
        raise InputError(
            f"expected the name of a task, such as 'figure-5a', found {short_repr(spec)}"
        )
    name = spec.partition(":")[0].strip()
    if name in REPEATING_TASKS:
        return _pairs(spec)
    if name in names():
        raise InputError(
            f"{name}: expected pairs of which v* is v with its last token once more, found a question to be answered; such "
            f"pairs are {', '.join(REPEATING_TASKS)}"
        )
    raise unknown_name("task", name, REPEATING_TASKS)


def _pairs(spec: str) -> CollapseTask:
    name, _, items = spec.partition(":items=")
    if name in _ENDING_IN_ITEMS:
        return _ENDING_IN_ITEMS[name](cast(ItemsAs, items or "text"))
    if name not in COLLAPSE_TASKS:
        raise unknown_name("task", name, COLLAPSE_TASKS)
    if items not in ("", "text"):
        raise InputError(f"{name} has one way of putting its items in: leave items out")
    return last_token() if name == "text" else task_pairs(name)


def label(task: Task) -> str:
    """Name of a task in tables and charts: the text that `task` would make it of."""
    return _REGISTRY.label(task)
