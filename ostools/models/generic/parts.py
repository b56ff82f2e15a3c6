"""Parts of a bridge by the generic route: Hugging Face's own modules with hook points around them,
and one behind a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ostools.hooks.sites import Norm
from ostools.models.lens import BlockBridge, GeneralizedComponent, HookPoint

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""What rounding may move logits, of their largest, in a batch of another size."""
_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


def class_and_name(part: nn.Module, path: str) -> str:
    """What a module calls itself: its class and its name, and 'norm' for the short names of one
    (ln_f).
    """
    return f"{type(part).__name__} {path.rpartition('.')[2]}".lower().replace("ln_", "norm_")


@contextmanager
def at_each_call(
    parts: Mapping[str, nn.Module],
    enter: Callable[[str, tuple[Any, ...], dict[str, Any]], None],
    leave: Callable[[str, Any], None],
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

    `form`: of a norm that is one of the known forms.
    """

    form: NormForm | None = None

    @property
    def theirs(self) -> Any:
        """Hugging Face's module."""
        return self.original_component

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
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

    def is_pattern(self, weights: Tensor, batch: int, queries: int) -> bool:
        """Whether weights have the shape of a pattern: of all heads of all prompts, a row for each
        query.
        """
        n_dims, first = weights.ndim, weights.shape[0]
        of_all = (n_dims == 4 and first == batch) or (
            n_dims == 3 and first == batch * self._n_heads > batch
        )
        return of_all and weights.shape[-2] == queries and weights.shape[-1] >= queries

    def through_hooks(
        self, stream: Float[Tensor, "batch query d_model"]
    ) -> AbstractContextManager[object]:
        """Hand every pattern that is made inside to the hooks; nothing is done where there are
        none.
        """
        return (
            _AtSoftmax(self, *stream.shape[:2]) if self.hook_pattern.has_hooks() else nullcontext()
        )


class _AtSoftmax(TorchFunctionMode):
    """Runs what a softmax over [head, query, key] gives through the hook point."""

    def __init__(self, patterns: Patterns, batch: int, queries: int) -> None:
        super().__init__()
        self._patterns, self._batch, self._queries = patterns, batch, queries

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _SOFTMAX or not self._patterns.is_pattern(
            output, self._batch, self._queries
        ):
            return output
        by_head = output.reshape(self._batch, -1, *output.shape[-2:])
        keys = output.shape[-1] - self._patterns.sinks
        hooked = self._patterns.hook_pattern(by_head[..., :keys])
        return torch.cat([hooked, by_head[..., keys:]], dim=-1).reshape(output.shape)


class Embedding(Observed):
    """The token embedding."""

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:  # noqa: N802 (TransformerLens asks for it by that name)
        return self.theirs.weight


class ScaledHead(Observed):
    """From y to the logits before a soft-cap: the output layer, times `scale` (Granite, Cohere,
    Falcon-H1).

    It stands beside the Hugging Face model, which multiplies by its scale itself.
    """

    _scale: float = 1.0

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Mamba keeps its stream and its final norm in float32, and rounds y where its output layer
        # reads it.
        logits = super().forward(hidden_states.to(self.theirs.weight.dtype))
        return logits if self._scale == 1.0 else logits * self._scale

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:  # noqa: N802
        weight = self.theirs.weight.T
        return weight if self._scale == 1.0 else weight * self._scale


class ClosedBlock(BlockBridge):
    """A block of Hugging Face, with v^(l) before it and v^(l+1) behind it."""

    hook_aliases: ClassVar[dict[str, str | list[str]]] = {
        "hook_resid_pre": "hook_in",
        "hook_resid_post": "hook_out",
    }
    _start: Tensor | None = None

    def _extract_layer_idx(self) -> int:
        return int(str(self.name).rpartition(".")[2])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._start is not None:
            args, kwargs = _with_stream(args, kwargs, self._start)
        self._check_stop_at_layer(*args, **kwargs)
        args, kwargs = self._hook_input_hidden_states(args, kwargs)
        module: Any = self.original_component
        patterns: Any = self._modules.get("attn")
        stream = args[0] if args else kwargs["hidden_states"]
        with nullcontext() if patterns is None else patterns.through_hooks(stream):
            output = module(*args, **kwargs)
        return self._apply_output_hook(output)


def _with_stream(
    args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})
