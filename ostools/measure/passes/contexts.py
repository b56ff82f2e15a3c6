"""Contexts that a forward pass runs in: its arithmetic, a later start."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ostools import hooks
from ostools.ground import OF_A_LEFT_HOOK, BloomBlockBridge, Cache, InputError, TransformerBridge
from ostools.hooks import Record
from ostools.hooks.capture import Reducer
from ostools.hooks.register import before_modules
from ostools.hooks.sites import is_closed
from ostools.hooks.torch_state import float32_products
from ostools.models.families import family_of
from ostools.models.precision.casting import edited_view

PATTERN_EDITS = frozenset(
    {"mask_scores", "scale_scores", "replace_pattern", "ablate_edges", "freeze", "exact-arithmetic"}
)
"""Kinds of edits that enter through the pattern alone. Freezing changes no value."""


def full_precision(model: TransformerBridge, what: str) -> TransformerBridge:
    """The model itself in float32 or float64; a float32 view of a 16-bit one, whose Jacobian would
    be off by percents, under the same edits. `what` names the caller for the error.
    """
    dtype = next(model.parameters()).dtype
    return model if dtype in (torch.float32, torch.float64) else edited_view(model, what)


@contextmanager
def contiguous_head(model: TransformerBridge) -> Iterator[None]:
    """Within the block the unembedding reads a contiguous tensor, where `logits_to_keep` of several
    prompts is a slice.

    torch's `linear` makes a copy of the matrix for each prompt of a batch that is no contiguous
    tensor: of Qwen's 151,936 rows and 12 prompts 5.6 GB, and 22 s on one core where the product
    takes 0.04.
    """
    original: Any = model.original_model
    head = original.get_output_embeddings()

    def contiguous(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> BlockCall:
        return (args[0].contiguous(), *args[1:]), kwargs

    with before_modules({} if head is None else {"head": head}, contiguous):
        yield


def require_no_edits(
    caller: str, model: TransformerBridge, reason: str, but: Container[str] = ()
) -> None:
    """Refuse active edits of other kinds than `but`, for that reason."""
    if edits := [edit for edit in hooks.active_edits(model) if edit.kind not in but]:
        raise InputError(
            f"{caller}: expected a model without edits, found {edits[0].kind!r} at "
            f"{edits[0].where}: {reason}; leave its block{OF_A_LEFT_HOOK}"
        )


def require_no_freeze(what: str, model: TransformerBridge) -> None:
    """Refuse the block of a freeze, whose derivative is another network's."""
    if any(edit.kind == "freeze" for edit in hooks.active_edits(model)):
        raise InputError(
            f"{what} decides by itself what is held constant; leave the block of "
            f"hooks.frozen() first{OF_A_LEFT_HOOK}"
        )


def require_float64_views(caller: str, model: TransformerBridge) -> None:
    """Refuse a model whose views in other dtypes would be another network, or that cannot be read
    in float64.
    """
    require_no_edits(caller, model, "it would not reach the model in other dtypes")
    if next(model.parameters()).device.type == "mps":
        raise InputError(
            f"{caller} needs float64, which mps lacks: load the model with device='cpu'"
        )


@contextmanager
def true_arithmetic(
    model: TransformerBridge, layers: Iterable[int] | None = None
) -> Iterator[None]:
    """Compute norms and softmax of a float64 model in float64 too (all of it where blocks are
    closed), of these `layers` only; products of float32 matrices not in TF32."""
    exact: AbstractContextManager[object] = nullcontext()
    if next(model.parameters()).dtype == torch.float64:
        exact = _AllFloat64() if is_closed(model) else hooks.exact_arithmetic(model, layers)
    with float32_products(), exact:
        yield


class _AllFloat64(TorchFunctionMode):
    """Computes in float64 whatever the code of a float64 model casts to float32: norms, softmax,
    states, rotations.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is Tensor.float:
            func = cast(Callable[..., object], Tensor.double)
        kwargs = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **kwargs)


def _wide(value: object) -> object:
    return torch.float64 if value is torch.float32 else value


def has_alibi(model: TransformerBridge) -> bool:
    """Whether positions enter a model's scores as ALiBi's bias: it takes no position ids then."""
    family = family_of(model)
    return family is not None and family.positions == "ALiBi"


def no_logits(model: TransformerBridge) -> int | Int[Tensor, " none"]:
    """`logits_to_keep` of a pass whose logits nobody reads: of no token, because a large
    unembedding costs as much as many blocks; of the last token where a hook waits for them."""
    end = (model, model.original_model, *model.unembed.modules())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in end)
    return 1 if hooked else torch.empty(0, dtype=torch.int64)


def captured_pass(
    model: TransformerBridge,
    prompts: Int[Tensor, "batch pos"] | Sequence[Sequence[int]],
    *sites: str,
    layers: Iterable[int] | None = None,
    reduce: Reducer | Mapping[str, Reducer] | None = None,
    logits: bool = False,
    **options: Any,
) -> tuple[Record, Tensor]:
    """What `hooks.capture` records in one pass over prompts of one length, in true arithmetic and
    without gradients; and its logits: with `logits` [batch, 1, d_vocab] of the last tokens.
    `options` of the model's own call: without them nothing is cached.
    """
    ids = torch.as_tensor(prompts, device=next(model.parameters()).device)
    keep = 1 if logits else no_logits(model)
    options = {"use_cache": False, "logits_to_keep": keep} | options
    with (
        torch.no_grad(),
        true_arithmetic(model),
        contiguous_head(model),
        hooks.capture(model, *sites, layers=layers, reduce=reduce) as record,
    ):
        last_logits = model(ids, **options)
    return record, last_logits


def last_position(tensor: Tensor, layer: int | None) -> Tensor:
    """A copy of the last position of every prompt: a view would hold all positions in memory."""
    return tensor[:, -1].clone()


def run_from(
    model: TransformerBridge,
    stream: Float[Tensor, "batch pos d_model"],
    layer: int = 0,
    logits_to_keep: int | Int[Tensor, " none"] = 1,
) -> Float[Tensor, "batch kept d_vocab"]:
    """The last token's logits of a pass whose block `layer` reads `stream` as v^(layer);
    differentiable in it.

    TransformerLens' own `start_at_layer`, which Bloom's block leaves out: there the stream would go
    through the norm of the embeddings once more, and into block 0. Blocks below `layer` run too,
    and what they give is not read.
    """

    def read(
        module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> BlockCall:
        return (stream, *args[1:]), {
            name: value for name, value in kwargs.items() if name != "hidden_states"
        }

    block = model.blocks[layer]
    if not isinstance(block, BloomBlockBridge):
        return model(stream, start_at_layer=layer, logits_to_keep=logits_to_keep)
    with before_modules({f"blocks.{layer}": block}, read):
        return model(stream, start_at_layer=layer, logits_to_keep=logits_to_keep)


BlockCall = tuple[tuple[object, ...], dict[str, object]]
"""Arguments of one block's call by the model: run again with them, it computes the same numbers
under the same edits.
"""


@contextmanager
def noted_calls(model: TransformerBridge) -> Iterator[list[BlockCall]]:
    """Collect the call of every block by the passes of the with-block, without key/value cache."""
    calls: list[BlockCall] = []

    def note(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        # A block that ran again with the pass's own cache would see every key twice.
        bare = {name: _uncached(value) for name, value in kwargs.items()}
        calls.append(
            (
                tuple(map(_uncached, args)),
                bare | ({"use_cache": False} if "use_cache" in bare else {}),
            )
        )

    with before_modules(
        {f"blocks.{layer}": block for layer, block in enumerate(model.blocks)}, note
    ):
        yield calls


def _uncached(value: object) -> object:
    return None if isinstance(value, Cache) else value
