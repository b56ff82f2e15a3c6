"""One lock a model: while one thread edits, observes or measures it, every other thread waits.

Hooks stand on the model itself, so a pass of a second thread would run through the hooks of the
first: both would get wrong numbers. Every context manager of this package and every measurement of
ostools therefore holds the model's lock. The lock is re-entrant: blocks of one thread nest. As with
every lock, start threads outside of a block, and open the blocks of several models in one order in
all threads.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ostools.ground.arguments import checked_arguments
from ostools.ground.lens import TransformerBridge
from ostools.hooks.errors import HookError
from ostools.hooks.register import remove_hooks

Arguments = ParamSpec("Arguments")
Yielded = TypeVar("Yielded")

_POLL = 0.02  # seconds between two looks at a lock that another thread holds

# Of C: entered and left at one instant as Python sees it, so that Ctrl-C cannot come in between.
_GUARD = threading.RLock()


@dataclass(eq=False)
class _Lock:
    """Owner of one model now: a thread, and its blocks from the outermost inwards."""

    owner: threading.Thread | None = None
    blocks: list[object] = field(default_factory=list)


_LOCKS: WeakKeyDictionary[TransformerBridge, _Lock] = WeakKeyDictionary()


@contextmanager
def locked(model: TransformerBridge) -> Iterator[None]:
    """Hold the model's lock inside the block; wait for the thread that has it.

    For forward passes of your own in several threads: `with hooks.locked(model): model(tokens)`.
    """
    block, lock = object(), _lock_of(model)
    try:
        _take(lock, block, model)
        yield
    except BaseException:
        # An interrupt may have come while an inner block was taking its hooks away.
        if lock.blocks[:1] == [block]:
            remove_hooks(_modules(model))
        raise
    finally:
        try:
            _give_back(lock, block)
        finally:  # again where an interrupt came first
            _give_back(lock, block)


def model_block(
    function: Callable[Arguments, Iterator[Yielded]],
) -> Callable[Arguments, AbstractContextManager[Yielded]]:
    """The context manager of a generator function whose first parameter is a model, which holds the
    model's lock.

    Arguments that are not what their annotations say are refused with `HookError`.
    """
    inner = contextmanager(function)
    first = next(iter(inspect.signature(function).parameters))

    @checked_arguments(HookError)
    @contextmanager
    @functools.wraps(function)
    def block(*args: Arguments.args, **options: Arguments.kwargs) -> Iterator[Yielded]:
        model: Any = args[0] if args else options[first]
        with locked(model), inner(*args, **options) as yielded:
            yield yielded

    return block


@checked_arguments(HookError)
def clear(model: TransformerBridge) -> None:
    """Remove every hook of this package from the model, give back weights that `upcast` replaced,
    and free the model's lock.

    For a model on which an interrupt (Ctrl-C) or an abandoned block left hooks. Blocks that are
    still open have no effect from then on. Hooks of others stay:
    `model.reset_hooks(including_permanent=True)` removes those of TransformerLens.
    """
    remove_hooks(_modules(model))
    lock = _lock_of(model)
    with _GUARD:
        lock.owner = None
        lock.blocks.clear()


def _modules(model: TransformerBridge) -> list[Any]:
    original: Any = model.original_model
    return list(dict.fromkeys([*model.modules(), *original.modules()]))


def _lock_of(model: TransformerBridge) -> _Lock:
    with _GUARD:
        return _LOCKS.setdefault(model, _Lock())


def _take(lock: _Lock, block: object, model: TransformerBridge) -> None:
    me = threading.current_thread()
    while True:
        with _GUARD:
            if lock.owner is not None and not lock.owner.is_alive():  # it ended inside of its block
                clear(model)
            if lock.owner in (None, me):
                lock.owner = me
                lock.blocks.append(block)
                return
        time.sleep(_POLL)


def _give_back(lock: _Lock, block: object) -> None:
    with _GUARD:
        if block in lock.blocks:  # not after `clear`
            lock.blocks.remove(block)
        if not lock.blocks:
            lock.owner = None
