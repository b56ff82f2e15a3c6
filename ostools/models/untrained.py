"""Null models: the same architecture before training, or without the order that training gave to
its weights.

What a measurement finds in an untrained model too was not learnt.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ostools.ground import (
    InputError,
    InsufficientMemoryError,
    PreTrainedConfig,
    PreTrainedModel,
    TransformerBridge,
    available_memory,
    checked_arguments,
    original_model,
    whole_number,
)
from ostools.hooks.sites import is_closed
from ostools.hooks.torch_state import default_torch_state
from ostools.models.describe import (
    Metadata,
    Null,
    config_hash,
    describe,
    made_once,
    named_weights,
    remember,
)
from ostools.models.families import Family
from ostools.models.files.checks import is_finite
from ostools.models.files.config import built, family_of_settings, quiet
from ostools.models.lazy_cast import dense
from ostools.models.precision.scores import is_eager
from ostools.models.shape import Shape

Kind = Literal["initialised", "shuffled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_DRAWS = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})
_PIECE = 1 << 20


@checked_arguments(InputError)
@default_torch_state()
def untrained_model(
    model: TransformerBridge, kind: Kind = "initialised", *, seed: int = 0
) -> TransformerBridge:
    """A model of the same configuration without what `model` learnt. It is raw and in eval mode,
    and every measurement takes it.

    Args:
        kind: "initialised": fresh weights, drawn as the architecture's own code in transformers
            (`_init_weights`) draws them before training. "shuffled": the entries of each weight of
            `model` in a random order, each weight by itself. Of training only the sizes of the
            numbers are left.
        seed: a whole number from 0. The weights are the same on every machine: they are drawn in
            float64 on the CPU, rounded to float32, and from there to the model's dtype.

    `model` is not changed. Its untrained model has its dtype, device, tokenizer and tied weights.
    The provenance of every measurement says so in `model["null"]`: the kind, the seed, and the name
    and weight hash of `model`. Active edits of `model` are not taken over.

    Raises `InputError` for an unknown kind, for a seed that is not such a number, for a model of a
    family that `load_model` does not know, and if transformers leaves a weight undrawn. Raises
    `InsufficientMemoryError` if the weights do not fit. Memory: the weights once more, and while
    they are drawn those of `drawing_bytes`.
    """
    make = partial(_untrained, model, kind, whole_number("seed", seed))
    return made_once(model, (kind, seed), make)


def _untrained(model: TransformerBridge, kind: Kind, seed: int) -> TransformerBridge:
    described = describe(model)  # which refuses what is no model
    config = original_model(model).config.to_dict()
    where = f"the configuration of {model.cfg.architecture}"
    family = family_of_settings(config, where, generic=is_closed(model))
    if family.generic != is_closed(model):
        raise InputError(
            f"untrained model: expected a model that load_model gives, found {where} in another "
            "form: load it with ostools.load_model"
        )
    like = next(model.parameters())
    needed = drawing_bytes(described.n_parameters, like.element_size())
    free = available_memory(torch.device("cpu"))
    if needed > free:
        raise InsufficientMemoryError(
            f"untrained model: {described.n_parameters:,} parameters need {needed / 2**30:.2f} "
            f"GiB, found {free / 2**30:.2f} GiB free: free memory, or take a smaller model"
        )
    name = f"{described.name} (null: {kind}, seed {seed})"
    null = _bridge(model, family, name, None if kind == "shuffled" else seed)
    if kind == "shuffled":
        _shuffle(model, null, seed)
    if config_hash(null) != described.config_hash:
        raise InputError(
            f"untrained model: expected the configuration of {described.name}, found that loading "
            "it again changes it"
        )
    origin = Null(kind, seed, described.name, described.weight_hash)
    remember(null, Metadata(name=name, null=origin))
    return null


def drawing_bytes(parameters: int, element: int) -> int:
    """Bytes of an untrained model with numbers of `element` bytes while it is made, at most: its
    output layer lies beside the embedding until they are tied, and what is not float32 is copied
    from weights that are."""
    float32 = torch.float32.itemsize
    return parameters * (2 * element + (0 if element == float32 else float32))


def bytes_with_untrained(measured: int, shape: Shape) -> int:
    """Bytes of a measurement that takes `measured`, on the model and on an untrained one: the
    larger of while that one is made, and while it stands beside the other."""
    return max(
        measured + shape.element * shape.parameters, drawing_bytes(shape.parameters, shape.element)
    )


def _bridge(
    model: TransformerBridge, family: Family, name: str, seed: int | None
) -> TransformerBridge:
    """A bridge of the same configuration, dtype and device, its weights drawn from `seed`; None:
    whatever they are, to be filled by the caller.
    """
    from ostools.models.load import give_tokenizer, wrapped

    like = next(model.parameters())
    original = original_model(model)
    with quiet(), torch.random.fork_rng(devices=[]):
        if seed is None:
            module = built(original.config, family, like.dtype)
        else:
            module = _drawn_model(original.config, family, seed, like.dtype)
        module.generation_config = copy.deepcopy(original.generation_config)
        module.eval().to(like.device)  # pyright: ignore[reportArgumentType]
        null = wrapped(module, family, name, is_eager(model))
    give_tokenizer(null, model.tokenizer)
    return null


def _drawn_model(
    config: PreTrainedConfig, family: Family, seed: int, dtype: torch.dtype
) -> PreTrainedModel:
    """The Hugging Face model with weights as transformers draws them, in float32, and rounded."""
    from transformers.initialization import no_init_weights

    # Each weight is drawn once: neither by torch's constructors, nor a tied one at its other place.
    with _undrawn_is_nan(), no_init_weights():
        exact = built(config, family, torch.float32)
    for name in exact.all_tied_weights_keys:
        tied_weight: Any = exact.get_parameter(name)
        tied_weight._is_hf_initialized = True
    with _DrawnInFloat64():
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed GPUs as well
        exact.initialize_weights()
    exact.tie_weights()
    for name, weight in exact.named_parameters():
        if not is_finite(weight):
            raise InputError(
                "untrained model: expected transformers to draw every weight of "
                f"{type(exact).__name__}, found {name} undrawn: shuffle the model's own weights, "
                "kind='shuffled'"
            )
    if dtype == torch.float32:
        return exact
    # Not `.to(dtype)`, which would round rotary frequencies too.
    with no_init_weights():
        module = built(config, family, dtype)
    module.tie_weights()
    for weight, source in zip(module.parameters(), exact.parameters(), strict=True):
        weight.data.copy_(source)
        source.data = torch.empty(0)  # the two models would stand beside each other
    return module


class _DrawnInFloat64(TorchDispatchMode):
    """Draw numbers in float64, some at a time, and round them: the kernels of float32 draw others
    on other CPUs.
    """

    def __torch_dispatch__(
        self,
        function: Callable[..., Tensor],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        weight, *options = args or (None,)
        if (
            function not in _DRAWS
            or not isinstance(weight, Tensor)
            or weight.dtype == torch.float64
        ):
            return function(*args, **kwargs)
        numbers, size = weight.view(-1), weight.numel()
        # torch draws the last 16 normal numbers of a tensor again: pieces of multiples of 16 with
        # at least 16 at the end draw those of the whole.
        starts = range(0, max(1, size - 15), _PIECE)
        for start, end in zip(starts, [*starts[1:], size], strict=True):
            piece = torch.empty(end - start, dtype=torch.float64)
            numbers[start:end] = function(piece, *options, **kwargs).float()
        return weight


@contextmanager
def _undrawn_is_nan() -> Iterator[None]:
    """Within the block torch fills what it hands out uninitialised with NaN: a weight that nobody
    draws is seen. `default_torch_state` puts the caller's own settings back.
    """
    settings = cast(Any, torch.utils.deterministic)
    before = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(False)


@torch.no_grad()
def _shuffle(model: TransformerBridge, null: TransformerBridge, seed: int) -> None:
    """Every weight of `null` a permutation of the entries of the model's own."""
    generator = torch.Generator().manual_seed(seed)
    own_weights = dict(named_weights(model))
    for name, weight in sorted(named_weights(null)):
        if name not in own_weights or own_weights[name].shape != weight.shape:
            raise InputError(
                "untrained model: expected the weights that load_model gives a "
                f"{model.cfg.architecture}, found none that is {name} of {tuple(weight.shape)}: "
                "load the model with ostools.load_model"
            )
        entries = dense(own_weights[name]).flatten()
        weight.copy_(
            entries[torch.randperm(len(entries), generator=generator).to(entries.device)].view(
                weight.shape
            )
        )
