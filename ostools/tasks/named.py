"""Tasks by name: the paper's, and those of other distributions by the entry-point group `ostools.tasks`."""

from __future__ import annotations

from mitigations.registry import Listed, Registry
from ostools.ground.errors import InputError
from ostools.tasks.appendix_c import NAMES
from ostools.tasks.base import Task

GROUP = "ostools.tasks"
BUILT_IN = dict.fromkeys(NAMES, "ostools.tasks.appendix_c:AppendixTask") | {
    "retrieve-at-position": "ostools.tasks.retrieve:RetrieveTask"
}
"""Where each built-in task is found."""

_REGISTRY = Registry("task", Task, BUILT_IN, GROUP, InputError)


def names() -> tuple[str, ...]:
    """Every name that `task` knows, the paper's first."""
    return _REGISTRY.names()


def listing() -> list[Listed]:
    """Every name with whose it is, its options and what it does."""
    return _REGISTRY.listing()


def task(spec: str | Task) -> Task:
    """The task that a text describes: `count-ones`, `count-ones:mode=cot-zero-shot`, `copy-last:uniform=true`.

    A task stays itself.

    Raises `InputError` for an unknown name or option, with the nearest, and for a distribution that cannot be used.
    """
    if isinstance(spec, Task):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"expected a task or its name, such as 'copy-last', found {type(spec).__name__}")
    return _REGISTRY.make(spec)


def label(given: Task) -> str:
    """What a task is called in tables and charts: the text that `task` would make it of."""
    return _REGISTRY.label(given)
