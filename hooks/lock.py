"""One lock a model: while one thread edits, observes or measures it, every other thread waits.

Hooks stand on the model itself, so a pass of a second thread would run through the hooks of the
first: both would get wrong numbers. Every context manager of this package and every measurement of
ostools therefore holds the model's lock. The lock is re-entrant: blocks of one thread nest. As with
every lock, start threads outside of a block, and open the blocks of several models in one order in
all threads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch

from ostools.ground import TransformerBridge
from ostools.ground.arguments import checked_arguments
from ostools.hooks.register import HookError, remove_hooks

Arguments = ParamSpec("Arguments")
Yielded = TypeVar("Yielded")

_LOCKS: WeakKeyDictionary[TransformerBridge, Any] = WeakKeyDictionary()


@contextmanager
def locked(model: TransformerBridge) -> Iterator[None]:
    """Hold the model's lock inside the block; wait for the thread that has it.

    For forward passes of your own in several threads: `with hooks.locked(model): model(tokens)`.
    """
    with _LOCKS.setdefault(model, threading.RLock()):
        yield


def model_block(
    function: Callable[Arguments, Iterator[Yielded]],
) -> Callable[Arguments, AbstractContextManager[Yielded]]:
    """The context manager of a generator function whose first parameter is a model, which holds the
    model's lock.

    Arguments that are not what their annotations say are refused with `HookError`.
    """

    @checked_arguments(HookError)  # which hands the model on by its place
    @contextmanager
    @functools.wraps(function)
    def block(*args: Arguments.args, **options: Arguments.kwargs) -> Iterator[Yielded]:
        model: Any = args[0]
        with locked(model):
            yield from function(*args, **options)

    return block


@checked_arguments(HookError)
def clear(model: TransformerBridge) -> None:
    """Remove every hook of this package from the model, and free the model's lock.

    For a model on which an interrupt (Ctrl-C) or an abandoned block left hooks. Blocks that are
    still open have no effect from then on. Hooks of others stay:
    `model.reset_hooks(including_permanent=True)` removes those of TransformerLens.
    """
    original: torch.nn.Module = model.original_model
    remove_hooks(list(dict.fromkeys([*model.modules(), *original.modules()])))
    _LOCKS.pop(model, None)
