"""Parts of a bridge by the generic route: Hugging Face's own modules with hook points around them,
and one behind a softmax.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ostools.hooks import Norm
from ostools.hooks.register import before_modules
from ostools.models.lens import (
    BlockBridge,
    GeneralizedComponent,
    HookPoint,
    TransformerBridge,
)

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""What rounding may move logits, of their largest, in a batch of another size."""
SAME = 1e-6
"""What it may move them in a pass of the same shape, whatever the dtype: on a CPU nothing."""
_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


def class_and_name(part: nn.Module, path: str) -> str:
    """What a module calls itself: its class and its name, and 'norm' for the short names of one
    (ln_f).
    """
    return f"{type(part).__name__} {path.rpartition('.')[2]}".lower().replace("ln_", "norm_")


@contextmanager
def at_each_call(
    parts: Mapping[str, nn.Module],
    enter: Callable[[str, tuple[object, ...], dict[str, object]], None],
    leave: Callable[[str, object], None],
) -> Iterator[None]:
    """Within the block, each call of one of these modules is told by its name: with what enters,
    and with what leaves.
    """
    with ExitStack() as stack:
        for name, part in parts.items():
            before = part.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: enter(name, args, kwargs), with_kwargs=True
            )
            after = part.register_forward_hook(
                lambda _, args, output, name=name: leave(name, output)
            )
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class AtEachFunction(TorchFunctionMode):
    """Within the block, what each function of torch gives is what `body` makes of the function, its
    arguments and its output.
    """

    def __init__(self, body: Callable[[object, tuple[Any, ...], Any], object]) -> None:
        super().__init__()
        self._body = body

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self._body(func, args, func(*args, **(kwargs or {})))


class NormForm(NamedTuple):
    """g (x - c(x)) / r(x) + b: what is added to the weight to make g, whether c is the mean (else
    0), and eps in r.
    """

    offset: float
    centred: bool
    eps: float


class Observed(GeneralizedComponent):
    """Hugging Face's own module, with a hook point for the tensor that enters it and one for the
    tensor that leaves it.
    """

    @property
    def theirs(self) -> nn.Module:
        """Hugging Face's module."""
        return cast(nn.Module, self.original_component)

    @property
    def weight(self) -> Tensor:
        """Weight of Hugging Face's module."""
        return cast(Tensor, self.theirs.weight)

    def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        return self.hook_out(self.theirs(self.hook_in(hidden_states), *args, **kwargs))

    def as_norm(self, name: str, form: NormForm) -> Norm:
        """The norm with that form; its numbers are read anew at each call."""
        weight, bias = getattr(self.theirs, "weight", None), getattr(self.theirs, "bias", None)
        gain = torch.ones(()) if weight is None else weight.detach() + form.offset
        bias = None if bias is None else bias.detach()
        return Norm(name, gain, bias, form.eps, form.centred, self.hook_in, self.hook_out)


class Patterns(nn.Module):
    """The hook point of a block's attention patterns, [batch, head, query, key], wherever its code
    makes them.

    `sinks`: columns of the softmax behind those of the keys (a learnt sink), which no hook is
        shown.
    """

    def __init__(self, name: str, n_heads: int) -> None:
        super().__init__()
        self.hook_pattern = HookPoint()
        self.hook_pattern.name = f"{name}.hook_pattern"
        self.sinks, self._n_heads = 0, n_heads

    def through_hooks(
        self, stream: Float[Tensor, "batch query d_model"]
    ) -> AbstractContextManager[object]:
        """Hand every pattern that is made inside to the hooks; nothing is done where there are
        none.
        """
        batch, queries, _ = stream.shape

        def hooked(func: object, args: tuple[Any, ...], output: Any) -> object:
            if func not in _SOFTMAX or not self._is_pattern(output.shape, batch, queries):
                return output
            by_head = output.reshape(batch, -1, *output.shape[-2:])
            keys = output.shape[-1] - self.sinks
            pattern = self.hook_pattern(by_head[..., :keys])
            return torch.cat([pattern, by_head[..., keys:]], dim=-1).reshape(output.shape)

        return AtEachFunction(hooked) if self.hook_pattern.has_hooks() else nullcontext()

    def _is_pattern(self, shape: torch.Size, batch: int, queries: int) -> bool:
        """Whether it is the shape of a pattern: of all heads of all prompts, a row for each
        query.
        """
        of_all = (len(shape) == 4 and shape[0] == batch) or (
            len(shape) == 3 and shape[0] == batch * self._n_heads > batch
        )
        return of_all and shape[-1] >= queries == shape[-2]


class ScaledHead(Observed):
    """From y to the logits before a soft-cap: the output layer, times `scale` (Granite, Cohere,
    Falcon-H1).

    It stands beside the Hugging Face model, which multiplies by its scale itself. (TransformerLens
    sets an attribute without "_" on Hugging Face's module, where that has one of its name.)
    """

    _scale: float = 1.0

    def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        # Mamba keeps its stream and its final norm in float32, and rounds y where its output layer
        # reads it.
        return self._scaled(super().forward(hidden_states.to(self.weight.dtype)))

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:  # noqa: N802
        return self._scaled(self.weight.T)

    def _scaled(self, tensor: Tensor) -> Tensor:
        return tensor if self._scale == 1.0 else tensor * self._scale


class ClosedBlock(BlockBridge):
    """A block of Hugging Face, with v^(l) before it and v^(l+1) behind it."""

    hook_aliases: ClassVar[dict[str, str | list[str]]] = {
        "hook_resid_pre": "hook_in",
        "hook_resid_post": "hook_out",
    }

    @property
    def theirs(self) -> nn.Module:
        """Hugging Face's block."""
        return cast(nn.Module, self.original_component)

    def _extract_layer_idx(self) -> int:
        return int(str(self.name).rpartition(".")[2])

    def forward(self, *args: object, **kwargs: object) -> object:
        self._check_stop_at_layer(*args, **kwargs)
        args, kwargs = self._hook_input_hidden_states(args, kwargs)
        patterns = self._modules.get("attn")
        stream = cast(Tensor, args[0] if args else kwargs["hidden_states"])
        with patterns.through_hooks(stream) if isinstance(patterns, Patterns) else nullcontext():
            output = self.theirs(*args, **kwargs)
        return self._apply_output_hook(output)


class GenericBridge(TransformerBridge):
    """A bridge whose blocks are closed, but for what `inside` proves: patterns and norms.

    `unknown`: why "patterns" or "norms" are not known. `norms`: those that are known, and their
    forms. `asks_interface`: whether its softmax attention, if it has any, is the one that
    transformers' `AttentionInterface` gives it.
    """

    unknown: Mapping[str, str] = MappingProxyType({})
    norms: Mapping[str, tuple[Observed, NormForm]] = MappingProxyType({})
    asks_interface: bool = True

    @property
    def closed_blocks(self) -> list[ClosedBlock]:
        """Its blocks, in their order."""
        return cast(list[ClosedBlock], list(self.blocks))

    def known_norms(self) -> dict[str, Norm]:
        """The norms that `hooks.norms` gives, of a model whose norms are known: those of the blocks
        by their paths ("blocks.0.input_layernorm"), and "ln_final".
        """
        return {name: part.as_norm(name, form) for name, (part, form) in self.norms.items()}

    def forward(
        self,
        input: str | list[str] | Tensor,
        *args: Any,
        start_at_layer: int | None = None,
        **options: Any,
    ) -> object:
        """The pass; without a cache unless one is asked for, and from a stream with tokens that
        nothing reads (`bridge._prove`).
        """
        options.setdefault("use_cache", False)
        positions: int | Tensor | None = None
        if "logits_to_keep" not in inspect.signature(type(self.original_model).forward).parameters:
            positions = options.pop("logits_to_keep", None)
        if start_at_layer is None:
            return _last_logits(super().forward(input, *args, **options), positions)
        stream = cast(Tensor, input)
        tokens = torch.zeros(stream.shape[:2], dtype=torch.int64, device=stream.device)

        def read(
            module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> tuple[tuple[object, ...], dict[str, object]]:
            own_kwargs = {name: it for name, it in kwargs.items() if name != "hidden_states"}
            return (stream.clone(), *args[1:]), own_kwargs  # a block may write to what it reads

        with before_modules({f"blocks.{start_at_layer}": self.blocks[start_at_layer]}, read):
            return _last_logits(super().forward(tokens, *args, **options), positions)


def _last_logits(logits: object, positions: int | Int[Tensor, " position"] | None) -> object:
    """The logits at so many last positions, or at those positions, of a model that gives all."""
    if positions is None or not isinstance(logits, Tensor):
        return logits
    return logits[:, -positions:] if isinstance(positions, int) else logits[:, positions]
