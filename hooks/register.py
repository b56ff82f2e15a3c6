"""Placing hooks so that none can be left behind, and none can silently do nothing.

Everything in this package goes through `attached`. What is active is read off the hook points
themselves (`active_edits`), so that it can never disagree with what the forward pass will do.
Blocks may be entered in any order: at a hook point recomputations come first, then edits, then what
reads or freezes the edited value, observers last (`Order`).

One lock a model: while one thread edits, observes or measures it, every other thread waits. Hooks
stand on the model itself, so a pass of a second thread would run through the hooks of the first:
both would get wrong numbers. Every context manager of this package and every measurement of ostools
therefore holds the model's lock. The lock is re-entrant: blocks of one thread nest. As with every
lock, start threads outside of a block, and open the blocks of several models in one order in all
threads.
"""

import functools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from ostools.ground import HookPoint, TransformerBridge, checked_arguments, original_model

Arguments = ParamSpec("Arguments")
Yielded = TypeVar("Yielded")


class HookError(ValueError):
    """A hook cannot be placed, or did not do what it was asked to. The message says what was
    expected and what was found.
    """


class FormatError(HookError):
    """A number is beyond what a format holds, or is not finite."""


HookBody = Callable[[Tensor], Tensor | None]

_HOOK_POINTS = "transformer_lens.hook_points"
_OF_EVERY_MODULE = tuple(
    f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre")
)
_next_number: Callable[[], int] = partial(secrets.randbits, 48)
"""A number that no other with-block or hook has, in whatever process."""
_FOREIGN: WeakKeyDictionary[Callable[..., object], int] = WeakKeyDictionary()
"""The numbers of hooks of others, by the functions that torch calls."""


class Order(IntEnum):
    """When a hook runs among those at the same point, whatever the order in which their blocks were
    entered.
    """

    RECOMPUTE = 0
    EDIT = 1
    READ = 2
    FREEZE = 3
    OBSERVE = 4


Placement = tuple[HookPoint, HookBody, Order]


@dataclass(frozen=True)
class Edit:
    """A change of the forward pass that is active now. `kind` says which function made it, and
    `where` on which hook.

    `block` is the number of the with-block that it belongs to (of a foreign edit that of the hook),
    `what` says which part is changed and how, where that can be written. In words an edit has the
    one or the other, so that two of one kind with different parameters are never taken for the
    same, in one process or two.
    """

    kind: str
    where: str
    block: int
    what: str = ""

    def __str__(self) -> str:
        if self.what:
            return f"{self.kind} of {self.what} at {self.where}"
        return f"{self.kind} at {self.where} (number {self.block:x})"


@dataclass(eq=False)
class ModuleHook:
    """A torch hook of this package on a whole module; an observer has no edit."""

    body: Callable[..., object]
    block: int
    edit: Edit | None = None

    def __call__(self, *args: object) -> object:
        return self.body(*args)


@dataclass(eq=False)
class _AttachedHook:
    """One hook at one point. Calls the body, checks what it returns, and remembers that it ran."""

    body: HookBody
    edit: Edit | None
    order: Order
    block: int
    thread: threading.Thread = field(default_factory=threading.current_thread)
    fired: bool = False

    def __deepcopy__(self, memo: object) -> "_AttachedHook":
        """Itself: in a view of the model (`edited_view`) an edit acts as it does on the model."""
        return self

    def __call__(self, tensor: Tensor, hook: HookPoint) -> Tensor | None:
        if threading.current_thread() is not self.thread:
            raise HookError(
                f"{hook.name}: expected a forward pass of the thread {self.thread.name!r}, which "
                f"opened the block of this hook, found one of {threading.current_thread().name!r}: "
                "open the block in the thread that runs the model, and run the model under "
                "hooks.locked(model) in all others"
            )
        result = self.body(tensor)
        # Only now: a body that raised or was not reached has not done its work.
        self.fired = True
        # A wrong-shaped return would be broadcast into the forward pass without a word.
        if result is not None and (result.shape != tensor.shape or result.dtype != tensor.dtype):
            raise HookError(
                f"edit {self.edit and self.edit.kind!r} at {hook.name}: expected "
                f"{tuple(tensor.shape)} {tensor.dtype}, found {tuple(result.shape)} {result.dtype}"
            )
        return result


@contextmanager
def attached(
    placements: Iterable[Placement],
    kind: str | None = None,
    what: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Run the block with each body at its hook point, in its order there; `kind` names an edit,
    None an observation. `what`: of an edit by the name of its point, which part it changes and how.

    The hooks are removed when the block ends, however it ends. An edit that no forward pass reached
    raises `HookError` at the end of the block, unless the block is already raising something else.
    """
    attached_hooks: list[tuple[HookPoint, _AttachedHook]] = []
    block = _next_number()
    try:
        for point, body, order in placements:
            name = str(point.name)
            edit = None if kind is None else Edit(kind, name, block, what.get(name, ""))
            hook = _AttachedHook(body, edit, order, block)
            attached_hooks.append(
                (point, hook)
            )  # noted before it is there: an interrupt in between leaves nothing behind
            # Permanent, so that TransformerLens' own reset inside the block cannot take it away.
            point.add_hook(hook, is_permanent=True)
            _put_in_order(point)
        yield
        silent = [str(point.name) for point, hook in attached_hooks if not hook.fired]
        if kind is not None and silent:
            raise HookError(
                f"edit {kind!r} matched nothing: no forward pass of this model inside the block "
                f"reached {', '.join(silent[:3])}{' ...' if len(silent) > 3 else ''}"
            )
    finally:
        remove_hooks([point for point, _ in attached_hooks], lambda hook: hook.block == block)


@contextmanager
def before_modules(
    modules: Mapping[str, torch.nn.Module], body: Callable[..., object], kind: str | None = None
) -> Iterator[None]:
    """Run the block with body(module, args, kwargs) called before the forward of each module;
    `kind` as in `attached`.

    What the body returns, if not None, takes the place of the arguments. `modules`: each by what an
    `Edit` calls it.
    """
    block = _next_number()
    try:
        for name, module in modules.items():
            edit = None if kind is None else Edit(kind, name, block)
            module.register_forward_pre_hook(ModuleHook(body, block, edit), with_kwargs=True)
        yield
    finally:
        remove_hooks([*modules.values()], lambda hook: hook.block == block)


def remove_observers(model: TransformerBridge) -> None:
    """Remove this package's observers from a copy of a model: what they watch is the original."""
    remove_hooks([*model.modules()], lambda hook: hook.edit is None)


def remove_hooks(
    modules: Sequence[torch.nn.Module],
    is_removed: Callable[[_AttachedHook | ModuleHook], bool] = lambda hook: True,
) -> None:
    """Remove this package's hooks at these modules, all or those that `is_removed` names; modules
    inside others come after them.
    """
    for module in reversed(modules):
        for registry in _registries(module):
            for key, function in list(registry.items()):
                hook = _own_hook(function)
                if hook is not None and is_removed(hook):
                    registry.pop(key, None)
        if isinstance(module, HookPoint):
            module.fwd_hooks[:] = [
                handle for handle in module.fwd_hooks if handle.hook.id in module._forward_hooks
            ]


def _own_hook(function: Callable[..., object]) -> _AttachedHook | ModuleHook | None:
    """Our hook behind a function that torch calls: TransformerLens wraps those of its hook points
    into a closure.
    """
    if isinstance(function, ModuleHook):
        return function
    if getattr(function, "__module__", "") != _HOOK_POINTS:
        return None
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell.cell_contents, _AttachedHook):
            return cell.cell_contents
    return None


def is_observed(point: HookPoint) -> bool:
    """Return True where an observer of this package stands at the point."""
    hooks = [_own_hook(function) for function in point._forward_hooks.values()]
    return any(isinstance(hook, _AttachedHook) and hook.edit is None for hook in hooks)


def _put_in_order(point: HookPoint) -> None:
    """Torch runs hooks as registered: move ours after those that come before them; foreign ones
    count as edits.
    """
    hooks = cast(OrderedDict[int, Callable[..., object]], point._forward_hooks)
    orders = {key: getattr(_own_hook(it), "order", Order.EDIT) for key, it in hooks.items()}
    for key in sorted(orders, key=orders.__getitem__):
        hooks.move_to_end(key)


@checked_arguments(HookError)
def active_edits(model: TransformerBridge) -> tuple[Edit, ...]:
    """Every edit that is active on this model, in the forward or the backward pass; empty for an
    untouched model.

    Observations (`capture`) do not count. A hook that does not come from this package has the kind
    "foreign". What it does is not known, so code that computes from formulas has to refuse it. So
    has one that torch calls for every module (`register_module_forward_hook`).
    """
    edits = [
        edit
        for name, module in _named_modules(model)
        if any(_registries(module))
        for edit in _edits_at(name, module)
    ]
    everywhere = (getattr(torch_module, name).values() for name in _OF_EVERY_MODULE)
    return (*(_foreign(it, "every module") for it in chain(*everywhere)), *edits)


def _named_modules(model: TransformerBridge) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module of the bridge by its path, and then those of the Hugging Face model that it
    computes with and does not wrap (the whole, a rotation, a dropout).
    """
    passed: set[torch.nn.Module] = set()
    yield from model.named_modules(passed)
    yield from original_model(model).named_modules(passed, "original_model")


def _edits_at(name: str, module: torch.nn.Module) -> list[Edit]:
    """The edits at one module, each once."""
    if isinstance(module, HookPoint):
        name = module.name or name  # as the table of sites writes it, not as modules happen to nest
    edits: list[Edit | None] = []
    for function in (
        function for registry in _registries(module) for function in registry.values()
    ):
        hook = _own_hook(function)
        if hook is not None:
            edits.append(hook.edit)
        elif function is not as_new and not _libraries_own(function):
            edits.append(_foreign(function, name))
    return [edit for edit in dict.fromkeys(edits) if edit is not None]


def _foreign(function: Callable[..., object], where: str) -> Edit:
    """The edit of somebody else's hook, with the number that it has for as long as it stands."""
    try:
        number = _FOREIGN.setdefault(function, _next_number())
    except TypeError:  # no weak reference or hash: another one each time it is asked for
        number = _next_number()
    return Edit("foreign", where, number)


def _registries(module: torch.nn.Module) -> tuple[dict[int, Callable[..., object]], ...]:
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def _libraries_own(function: Callable[..., object]) -> bool:
    """Torch hooks with which the two libraries observe; they change nothing.

    TransformerLens notes the residual before ln1. transformers collects hidden states and patterns:
    its hooks stay on the modules after the first `run_with_cache` or `output_hidden_states=True`,
    and return at once where nobody asks. Those of TransformerLens' hook points are not meant: they
    carry a user's function.
    """
    home = str(getattr(function, "__module__", ""))
    return home == "transformers.utils.output_capturing" or (
        home.startswith("transformer_lens.") and home != _HOOK_POINTS
    )


def as_new(rotation: torch.nn.Module, _: object) -> None:
    """Put back, before a call of a "dynamic" rotation, the frequencies that it was made with.

    transformers (5.23) keeps those of the longest pass so far for every later one of the trained
    length or more, so that its numbers would depend on what ran before.
    """
    kinds = cast("str | dict[str, str]", rotation.rope_type)
    by_layer = kinds if isinstance(kinds, dict) else {}
    names = [f"{layer}_" for layer, kind in by_layer.items() if "dynamic" in kind] or [""]
    for name in names:
        setattr(rotation, f"{name}inv_freq", getattr(rotation, f"{name}original_inv_freq"))
        setattr(rotation, f"{name}max_seq_len_cached", rotation.original_max_seq_len)


def with_input(
    before: HookPoint | Sequence[HookPoint],
    after: HookPoint,
    body: Callable[..., Tensor | None],
    order: Order,
    reads: Order = Order.READ,
) -> list[Placement]:
    """What passes each point `before` is kept, and `body` makes of these and of what passes `after`
    what goes on from there.
    """
    befores = [before] if isinstance(before, HookPoint) else before
    inputs: dict[int, Tensor] = {}
    return [
        *(
            (point, partial(inputs.__setitem__, index), reads)
            for index, point in enumerate(befores)
        ),
        (after, lambda out: body(*map(inputs.pop, range(len(befores))), out), order),
    ]


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
    remove_hooks([module for _, module in _named_modules(model)])
    _LOCKS.pop(model, None)
