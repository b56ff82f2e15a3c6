"""Nobody leaves a trace: models and tokenizers that tests share are after every test what they were
before it.

After every test the books are read: how many hooks there are (an edit is hooks), each parameter's
place and version (torch counts the writes in place, so that a change undone counts too), the
configuration, the tokenizer and what it was told. A write through `.data` is in no book: the
numbers themselves are compared after every file.
"""

import weakref
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks

Shared = TypeVar("Shared")
State = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """Something shared, kept alive by whoever has it, and its state when it was made."""

    name: str
    reference: weakref.ref[Any]
    state: State
    numbers: int


_WATCHED: list[Watched] = []


def watched(shared: Shared, name: str) -> Shared:
    """The same model or tokenizer, whose changes `changes` reports from now on."""
    _WATCHED.append(Watched(name, weakref.ref(shared), _state(shared), _numbers(shared)))
    return shared


def changes(numbers: bool) -> list[tuple[Any, str]]:
    """What was changed since it was watched, with what of it in words, each told once; `numbers`:
    look at every weight too.
    """
    found, unchanged = [], []
    for one in _WATCHED:
        if (shared := one.reference()) is None:
            continue
        said = _difference(one.state, _state(shared))
        if numbers and not said and _numbers(shared) != one.numbers:
            said = "its weights are other numbers"
        if said:
            found.append((shared, f"{one.name}: {said}"))
        else:
            unchanged.append(one)
    _WATCHED[:] = unchanged
    return found


def _difference(before: State, after: State) -> str:
    if before == after:
        return ""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name} was {before.get(name)}, is {after.get(name)}" for name in names)


def _state(shared: Any) -> State:
    return (
        _model_state(shared) if isinstance(shared, TransformerBridge) else _tokenizer_state(shared)
    )


def _model_state(model: TransformerBridge) -> State:
    parts = _PARTS.get(model) or _PARTS.setdefault(model, Parts(model))
    state: State = {
        "hooks": parts.hooked(model),
        "training": model.training,
        "tokenizer": id(model.tokenizer),
    }
    for part in (model.cfg, getattr(model.original_model, "generation_config", None)):
        prefix = f"{type(part).__name__}."
        state |= {prefix + name: value for name, value in getattr(part, "__dict__", {}).items()}
    for name, tensor in parts.tensors:
        state[name] = (
            tensor._version,
            tensor.data_ptr(),
            tensor.requires_grad,
            tensor.grad is None,
        )
    return state


def _numbers(shared: Any) -> int:
    """One number out of all bits of all weights; 0 for a tokenizer, which has none."""
    total = 0
    if isinstance(shared, TransformerBridge):
        for _, tensor in _PARTS[shared].tensors:
            total = zlib.crc32(
                tensor.detach().contiguous().flatten().view(torch.uint8).numpy(), total
            )
    return total


class Parts:
    """All modules and tensors of a model, looked for once: the search takes longer than the look at
    each.
    """

    PLACES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

    def __init__(self, model: TransformerBridge) -> None:
        original: Any = model.original_model
        modules = dict.fromkeys([*model.modules(), *original.modules()])
        # The dictionaries themselves: this runs after every test for every shared model, and torch
        # never replaces them.
        self.books = [vars(module)[place] for module in modules for place in self.PLACES]
        self.points = list(model.hook_dict.values())
        self.tensors = [*original.named_parameters(), *original.named_buffers()]
        self.calm = -1

    def hooked(self, model: TransformerBridge) -> tuple[str, ...]:
        """Where edits are in force or somebody still observes; looked for where there are more
        hooks than when nobody did.

        The bridge has hooks of its own, which it places at the first pass. What observes a point is
        a hook of torch there too.
        """
        count = sum(map(len, self.books))
        if count == self.calm:
            return ()
        edited = [f"{edit.kind} at {edit.where}" for edit in hooks.active_edits(model)]
        observed = [
            f"a hook at {point.name}" for point in self.points if point.fwd_hooks or point.bwd_hooks
        ]
        if not edited and not observed:
            self.calm = count
        return (*edited, *observed)


_PARTS: weakref.WeakKeyDictionary[TransformerBridge, Parts] = weakref.WeakKeyDictionary()


def _tokenizer_state(tokenizer: Any) -> State:
    names = ("chat_template", "padding_side", "truncation_side", "special_tokens_map")
    return {name: repr(getattr(tokenizer, name)) for name in names} | {"tokens": len(tokenizer)}
