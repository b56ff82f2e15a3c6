"""Precision of a pass: parts of a 16-bit model in float32, with the weights that it has, or all in
float64.

`upcast` is the other half of `hooks.rounded`: there numbers are stored in few bits and computed
with in many, here the stored weights stay as they are and a part's arithmetic, with what it hands
over, is float32. All parts together are the model in float32. Cost: the part's weights are cast at
every forward pass, one module's at a time, so that no second copy is held.

`exact_arithmetic` is the reference against which rounding is measured. Hugging Face computes norms
and the softmax in float32 even in a float64 model, so that a "float64" run is good to 1e-7 only,
and finite differences stall near 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ostools.ground.lens import HookPoint, TransformerBridge
from ostools.ground.names import UPCAST_PARTS, UpcastPart
from ostools.hooks.errors import HookError
from ostools.hooks.lock import model_block
from ostools.hooks.register import (
    Edit,
    ModuleHook,
    Order,
    Placement,
    active_edits,
    attached,
    hidden,
    next_block,
    remove_hooks,
    with_input,
)
from ostools.hooks.sites import (
    POST_NORMS,
    PRE_NORMS,
    QK_NORMS,
    Norm,
    adds_residual,
    checked_layers,
    component_of,
    norms,
    points,
    require_open,
)

SIXTEEN_BITS = (torch.bfloat16, torch.float16)

_KIND = "upcast"


@model_block
def upcast(model: TransformerBridge, parts: UpcastPart | Sequence[UpcastPart]) -> Iterator[None]:
    """Compute these parts of a bfloat16 or float16 model in float32 inside the block, with the
    weights as they are stored.

    Args:
        parts: some of "attention" (projections, rotation, scores, softmax; what a key/value cache
            holds), "mlp", "norms" (pre-, post-, qk- and final norms), "residual" (v^(0), ...,
            v^(L): embedding, Gemma's scaling of it, and the sums) and "unembedding" (logits,
            soft-capped ones too).

    A part that is not named reads 16-bit numbers, as in the model itself. What a named part hands
    to it is rounded there. All parts together give what the same weights give in float32, the exact
    scale of Gemma's embedding included.

    The models themselves compute norms in float32 and round once, at the end. So "norms" alone does
    not change a bit of Gemma or GPT-2 (Llama multiplies by the gain in 16 bits). What `capture`
    sees is a module's own output, before its reader rounds it.

    Raises `HookError` for an unknown part, for an empty list of parts, for a model whose weights
    are not all bfloat16 or all float16, for a family whose modules are not known, for a second such
    block inside the first, and, at the end of the block, if no forward pass ran.
    """
    upcast_parts = _checked(model, parts)
    dtype = next(model.parameters()).dtype
    dtypes = {part: torch.float32 if part in upcast_parts else dtype for part in UPCAST_PARTS}
    block = next_block()
    places = _places(model)
    casts: list[_Cast] = []
    try:
        for place in places:
            to = dtypes[place.part]
            weights = list(place.module.modules()) if to == torch.float32 else []
            cast = _Cast(to, dtypes[place.reader] if place.reader else None, weights)
            casts.append(cast)
            edit = Edit(_KIND, place.name, block)
            before, after = (
                ModuleHook(body, block, edit, cast.restore) for body in (cast.before, cast.after)
            )
            place.module.register_forward_pre_hook(before, with_kwargs=True)
            place.module.register_forward_hook(after, always_call=True)
        yield
        if not any(cast.fired for cast in casts):
            raise HookError(
                f"edit {_KIND!r} matched nothing: no forward pass of this model ran inside the block"
            )
    finally:
        # A module inside another (a qk-norm) comes after it, and gives its weights back first.
        remove_hooks([place.module for place in places], block)


def _checked(model: TransformerBridge, parts: Sequence[str]) -> frozenset[str]:
    part_names = (parts,) if isinstance(parts, str) else tuple(parts)
    if not part_names:
        raise HookError(
            f"upcast: expected at least one part of {', '.join(UPCAST_PARTS)}, found none"
        )
    _require_known(model)
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= set(SIXTEEN_BITS):
        raise HookError(
            f"upcast: expected weights in bfloat16 or float16, found {sorted(map(str, dtypes))}"
        )
    if any(edit.kind == _KIND for edit in active_edits(model)):
        raise HookError("upcast: found a block of its kind around this one: name all parts in one")
    return frozenset(part_names)


def _require_known(model: TransformerBridge) -> None:
    """Require that every weight is inside one of the places, and each sum of the residual stream
    outside of all.
    """
    require_open(model, "upcast")
    known_ids = {id(weight) for place in _places(model) for weight in place.module.parameters()}
    unknown = [name for name, weight in model.named_parameters() if id(weight) not in known_ids]
    inside = [name for name in ("attn", "mlp") if adds_residual(getattr(model.blocks[0], name))]
    if model.blocks[0].mlp.name is None:  # OPT: its two layers and its sum are the block's own code
        inside.append("mlp")
    if unknown or inside:
        unknown_names = (
            f"the weight {unknown[0].replace('_original_component.', '')}"
            if unknown
            else f"a sum inside {inside[0]}"
        )
        raise HookError(
            f"upcast: does not know the modules of {model.cfg.architecture}: found {unknown_names} in no part"
        )


@dataclass(frozen=True)
class _Place:
    """A module that computes a part. `reader`: the part that reads what it hands over where that is
    no module of its own.
    """

    name: str
    module: nn.Module
    part: str
    reader: str | None = None


def _places(model: TransformerBridge) -> list[_Place]:
    # The rotation's cosines are computed for the attention, in the dtype of what is handed to the
    # module.
    once = {"embed": "residual", "pos_embed": "residual", "rotary_emb": "attention"}
    once |= {"ln_final": "norms", "unembed": "unembedding"}
    places = [
        _Place(name, module, part)
        for name, part in once.items()
        if (module := component_of(model, name)) is not None
    ]
    for layer in range(int(model.cfg.n_layers)):
        start = f"blocks.{layer}."
        modules = {
            name: component_of(model, start + name)
            for name in ("attn", "mlp", *PRE_NORMS, *POST_NORMS, *QK_NORMS)
        }
        # The sum reads the sublayer, or the norm after it; the rotation reads normed queries and
        # keys.
        readers = {"ln1_post" if modules["ln1_post"] is not None else "attn": "residual"}
        readers |= {"ln2_post" if modules["ln2_post"] is not None else "mlp": "residual"}
        readers |= dict.fromkeys(QK_NORMS, "attention")
        parts = {"attn": "attention", "mlp": "mlp"}
        places += [
            _Place(start + name, module, parts.get(name, "norms"), readers.get(name))
            for name, module in modules.items()
            if module is not None
        ]
    return places


@dataclass
class _Cast:
    """Cast of one module's call to another dtype: its input, its weights meanwhile, its output."""

    reads: torch.dtype
    hands_over: torch.dtype | None
    modules: list[nn.Module]
    fired: bool = False
    _stored: list[tuple[dict[str, Any], str, Tensor]] = field(default_factory=list)

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        self._swap()
        mask = kwargs.get("attention_mask")
        cast_kwargs = {
            name: _each_float(value, lambda x: x.to(self.reads)) for name, value in kwargs.items()
        }
        if isinstance(mask, Tensor):
            cast_kwargs["attention_mask"] = cast_mask(mask, self.reads)
        return _each_float(args, lambda x: x.to(self.reads)), cast_kwargs

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        self.restore()
        self.fired = True
        hands_over = self.hands_over
        return output if hands_over is None else _each_float(output, lambda x: x.to(hands_over))

    def _swap(self) -> None:
        for module in self.modules:
            for name, old in module._parameters.items():
                if old is not None:
                    self._replace_tensor(
                        module._parameters,
                        name,
                        old,
                        nn.Parameter(old.detach().float(), requires_grad=False),
                    )
            for name, old in module._buffers.items():
                # Gemma's sqrt(d_model) is held rounded: the number that was rounded stands beside
                # it.
                exact = (
                    getattr(module, "scalar_embed_scale", None) if name == "embed_scale" else None
                )
                if old is not None and old.is_floating_point():
                    self._replace_tensor(
                        module._buffers,
                        name,
                        old,
                        old.float() if exact is None else old.float().fill_(exact),
                    )

    def _replace_tensor(self, table: dict[str, Any], name: str, old: Tensor, new: Tensor) -> None:
        self._stored.append((table, name, old))
        table[name] = new

    def restore(self) -> None:
        while self._stored:
            table, name, old = self._stored[-1]
            table[name] = old
            self._stored.pop()


def _each_float(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The value with every floating tensor in it, alone or in a tuple, replaced."""
    if isinstance(value, Tensor):
        return function(value) if value.is_floating_point() else value
    return (
        tuple(_each_float(element, function) for element in value)
        if type(value) is tuple
        else value
    )


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask in another dtype: the lowest number of one is infinite, or nothing much, in
    another.
    """
    if not mask.is_floating_point() or mask.dtype == dtype:
        return mask
    return mask.to(dtype).masked_fill(hidden(mask), torch.finfo(dtype).min)


@model_block
def exact_arithmetic(
    model: TransformerBridge, layers: Iterable[int] | None = None
) -> Iterator[None]:
    """Compute every norm and every softmax of a float64 model in float64, inside the block.

    layers: only those of these blocks, for a pass through one block alone.

    Gradients flow through the recomputed values. Edits are kept, whether they are entered before
    this block or inside it: the pattern is recomputed from the edited scores, and an edit of the
    pattern comes after that.

    Raises `HookError` for a model that is not float64, and if there is a hook on a norm's scale,
    because this block would undo it.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float64}:
        raise HookError(
            f"exact_arithmetic: expected a float64 model, found {sorted(map(str, dtypes))}: cast a copy"
        )
    layer_indices = checked_layers(model, layers)
    inside = ("",) if layers is None else tuple(f"blocks.{layer}." for layer in layer_indices)
    exact = [norm for name, norm in norms(model).items() if name.startswith(inside)]
    _require_kept(model, exact)
    scores, patterns = (points(model, name, layer_indices) for name in ("scores", "pattern"))
    recomputed: list[tuple[HookPoint, HookPoint, Callable[[Tensor], Tensor]]] = [
        (norm.before, norm.after, norm) for norm in exact
    ]
    recomputed += [
        (scores[layer], patterns[layer], _softmax_of(model.blocks[layer].attn))
        for layer in patterns
    ]
    placements: list[Placement] = []
    for before, after, function in recomputed:
        body = partial(_replaced_by, function)
        placements += with_input(before, after, body, Order.RECOMPUTE)
    with attached(placements, kind="exact-arithmetic"):
        yield


def _require_kept(model: TransformerBridge, exact: Sequence[Norm]) -> None:
    """Refuse, with `HookError`, an edit inside a norm that is computed anew."""
    undone = {f"{norm.name}.{part}" for norm in exact for part in ("hook_scale", "hook_normalized")}
    if edits := [edit for edit in active_edits(model) if edit.where in undone]:
        raise HookError(
            f"exact_arithmetic would undo the edit {edits[0].kind!r} at {edits[0].where}: leave its block first; "
            "hooks.clear(model) removes one that an interrupted call left"
        )


def _replaced_by(function: Callable[[Tensor], Tensor], x: Tensor, out: Tensor) -> Tensor:
    return function(x)


def _softmax_of(attention: Any) -> Callable[[Tensor], Tensor]:
    """The softmax over keys; over keys and a learnt sink, whose column is then left out (gpt-oss)."""
    sinks = getattr(attention.original_component, "sinks", None)

    def softmax(scores: Tensor) -> Tensor:
        if sinks is None:
            return torch.softmax(scores, dim=-1)
        column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]

    return softmax
