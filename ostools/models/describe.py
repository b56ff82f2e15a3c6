"""Identity of a model, for the provenance of every number computed with it.

Cost of `describe`: a hash of every weight (XXH3), at the speed of the memory: 3.6 GB in some 0.1 s.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache
from inspect import isfunction
from types import FunctionType, NoneType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import Tensor, nn

from ostools.ground import InputError, TransformerBridge, original_model
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.models.lazy_cast import LazyCast

Shared = TypeVar("Shared")
_CHUNK = 1 << 26  # bytes hashed in one go: a model on a GPU is not copied as a whole
_SCALARS = (int, float, str, tuple, NoneType, FunctionType)
NOT_COMPUTED_WITH = {
    "attention_dropout",  # in eval mode
    "gradient_checkpointing",
    "max_seq_len_cached",  # a pass of a "dynamic" rotation makes it anew for its length
    "name",  # of a hook point
    "name_or_path",
    "training",
    "vocab_size",  # `resize_token_embeddings` leaves the old one on the inner model, for the loss
}
"""Settings of modules that change no logits."""


@dataclass(frozen=True)
class Null:
    """An untrained model: its kind and seed, and the name and weight hash of the model that it
    stands beside.
    """

    kind: str
    seed: int
    of: str
    of_weight_hash: str


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """Facts of a model that only the loader knows.

    name: what the user asked for. revision: the hub's commit. trained_lengths: task -> longest
    length it was trained on, where its card says. quantisation: how the checkpoint was quantised
    (None: in full precision). null: which untrained model of which model it is (None: it is none).
    origin: "adopted" from memory (None: loaded as it is stored). title: what tables and charts call
    it: a directory's last part, a GGUF's name with its quantisation (None: the name).
    """

    name: str
    revision: str | None = None
    trained_lengths: dict[str, int] | None = None
    quantisation: str | None = None
    null: Null | None = None
    origin: str | None = None
    title: str | None = None


@dataclass(frozen=True, kw_only=True)
class Metadata(LoaderFacts):
    """What the loader notes. check: what refuses the model where it is not what was checked.
    buffers, settings: what it computes with beside its weights, as it was loaded
    (`buffer_digests`, `settings_of`).
    """

    check: Callable[[], None] | None = None
    buffers: Mapping[str, bytes] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelDescription(LoaderFacts):
    """The identity of a model: what the loader noted (`LoaderFacts`), and what it is now. `device`:
    where it computes.
    """

    weight_hash: str
    config_hash: str
    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_key_value_heads: int
    d_vocab: int
    n_parameters: int
    dtype: str
    device: str
    attention_implementation: str


_metadata: WeakKeyDictionary[TransformerBridge, Metadata] = WeakKeyDictionary()


def remember(model: TransformerBridge, metadata: Metadata) -> None:
    """Keep what the loader knows, and what the model computes with beside its weights, for as long
    as it lives.
    """
    parts = dict(original_model(model).named_modules())
    _metadata[model] = replace(
        metadata,
        buffers=_buffer_digests_of(model, parts),
        settings=_settings_of_all(model, parts),
    )


def metadata_of(model: TransformerBridge) -> Metadata:
    """Facts that the loader noted; `InputError` for a bridge that no loader of ours made."""
    metadata = _metadata.get(model)
    if metadata is None:
        raise InputError(
            "expected a model that load_model or adopt gives, found a TransformerBridge that was "
            "made or copied elsewhere, which nobody held against Hugging Face's own model: use "
            "ostools.load_model, or give the Hugging Face model, loaded anew, to ostools.adopt"
        )
    return metadata


def describe(model: TransformerBridge) -> ModelDescription:
    """Identity of the model: name, sizes, dtype, device and a hash of its weights as they are."""
    if not isinstance(model, TransformerBridge):
        raise InputError(
            f"expected a model, as load_model gives it, found {type(model).__name__}: "
            "load_model('embedded')"
        )
    require_as_loaded(model)
    metadata = metadata_of(model)
    weights = dict(named_weights(model))
    require_numbers(weights.values())
    buffers = _saved_buffers(model) if is_closed(model) else ()
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights.values()}
    attention = attention_named(model)
    is_narrow = any(weight.dtype in SIXTEEN_BITS for weight in weights.values())
    return ModelDescription(
        **{fact.name: getattr(metadata, fact.name) for fact in fields(LoaderFacts)},
        weight_hash=_digest_of(weights | dict(buffers)),
        config_hash=config_hash(model),
        architecture=str(model.cfg.architecture),
        n_layers=model.cfg.n_layers,
        d_model=model.cfg.d_model,
        n_heads=model.cfg.n_heads,
        n_key_value_heads=model.cfg.n_key_value_heads or model.cfg.n_heads,
        d_vocab=int(model.W_E.shape[0]),
        n_parameters=sum(weight.numel() for weight in weights.values()),
        dtype="+".join(sorted(dtypes)) + "-eager" * (is_narrow and attention == _EAGER),
        device="+".join(sorted({str(weight.device) for weight in weights.values()})),
        attention_implementation=attention,
    )


_SHARED: ContextVar[WeakKeyDictionary[TransformerBridge, dict[object, Any]] | None] = ContextVar(
    "what is made of models", default=None
)


@contextmanager
def shared_models() -> Iterator[None]:
    """Within the block views and untrained models of the same weights are made once, for all
    measurements that need them.
    """
    token = _SHARED.set(WeakKeyDictionary())
    try:
        yield
    finally:
        _SHARED.reset(token)


def made_once(
    model: TransformerBridge, key: tuple[object, ...], make: Callable[[], Shared]
) -> Shared:
    """What `make` gives; within `shared_models` what it gave before of that key and the same
    weights. Weights that were written to give another.
    """
    by_model = _SHARED.get()
    if by_model is None:
        return make()
    by_key, key = by_model.setdefault(model, {}), (*key, describe(model).weight_hash)
    if key not in by_key:
        by_key[key] = make()
    return by_key[key]


_EAGER, _WIDE_SCORES = "eager", "float32 scores"


def attention_named(model: TransformerBridge) -> str:
    """How a pass of the bridge computes attention: in 16 bits with scores and softmax in float32,
    unless eager was chosen.
    """
    is_narrow = any(weight.dtype in SIXTEEN_BITS for weight in model.parameters())
    rounds_scores = getattr(model.cfg, "eager_scores", True)
    return _WIDE_SCORES if is_narrow and not rounds_scores else _EAGER


def require_numbers(weights: Iterable[Tensor]) -> None:
    """Refuse weights on torch's meta device, which have shapes and no numbers."""
    if any(weight.is_meta for weight in weights):
        raise InputError(
            "expected a model with weights, found one on torch's meta device, which has no "
            "numbers: load it with load_model, or fill it before it is adopted"
        )


def config_hash(model: TransformerBridge) -> str:
    """sha256 of the Hugging Face configuration (windows, soft-caps, eps), which no weight shows;
    not of name and dtype.
    """
    settings: dict[str, object] = original_model(model).config.to_dict()
    for name in ("_name_or_path", "dtype", "transformers_version"):
        settings.pop(name, None)
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def require_as_loaded(model: TransformerBridge) -> None:
    """Refuse a model that computes otherwise than its weights and its configuration say, and than
    what was held against Hugging Face's own model when it was loaded.
    """
    metadata = metadata_of(model)
    parts = dict(original_model(model).named_modules())
    # Of the parts: `model.training` says nothing of them, and none of the bridge says it of GPT-2's
    # dropout on the embeddings.
    if any(part.training for part in parts.values()):
        raise InputError(
            "expected a model in eval mode, found a part in train mode, where dropout is random: "
            "call model.original_model.eval()"
        )
    if metadata.check is not None:
        metadata.check()
    require_same_settings(
        metadata.settings,
        _settings_of_all(model, parts),
        "as the model was loaded",
        "undo it, or load the model again (one with adapters merged: give it to ostools.adopt)",
    )
    require_same_buffers(metadata.buffers, _buffer_digests_of(model, parts))


def require_same_settings(
    expected: Mapping[str, object], actual: Mapping[str, object], why: str, how: str
) -> None:
    """Refuse settings (as `settings_of` gives them) of which one is not as expected."""
    for name, value in expected.items():
        if actual.get(name) != value:
            where, before, now = (
                str(getattr(it, "__qualname__", it)).replace("._original_component", "")[:80]
                for it in (name, value, actual.get(name))
            )
            raise InputError(f"expected {where} = {before}, {why}, found {now}: {how}")


def settings_of(parts: Mapping[str, nn.Module]) -> dict[str, object]:
    """By "name in path" what modules compute with beside their tensors: class and settings of each,
    of a function its place; and all methods that somebody put in the place of the class's own.
    Flat: thousands of small dicts at each call would wake the garbage collector.
    """
    settings: dict[str, object] = {}
    replaced: list[str] = []
    for path, part in parts.items():
        where = f" in {path or 'the model'}"
        settings["class" + where] = type(part)
        settings["forward" + where] = type(part).forward
        if isinstance(part, nn.Dropout):  # does nothing in eval mode, whatever its share
            continue
        for name, value in vars(part).items():
            if isinstance(value, _SCALARS) and name[0] != "_" and name not in NOT_COMPUTED_WITH:
                its_place = f"{value.__module__}.{value.__qualname__}" if callable(value) else value
                settings[name + where] = its_place
        if not _methods(type(part)).isdisjoint(vars(part)):
            replaced += [f"{path}.{name}" for name in vars(part).keys() & _methods(type(part))]
    return settings | {"methods replaced": " ".join(replaced) or "none"}


@cache
def _methods(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if isfunction(getattr(kind, name)))


def _settings_of_all(model: TransformerBridge, parts: Mapping[str, nn.Module]) -> dict[str, object]:
    """Settings of the parts, and those of the bridge: of TransformerLens' switches those that fold
    norms into weights, or compute a norm anew for each head (path patching); the functions that the
    configuration names, of attention where blocks are closed.
    """
    config = original_model(model).config
    return {
        "compatibility_mode": model.compatibility_mode,
        "weights processed": model._weights_processed,
        "use_attn_in": model.cfg.use_attn_in,
        "use_split_qkv_input": model.cfg.use_split_qkv_input,
        "attention": is_closed(model) and config._attn_implementation,
        "experts": config._experts_implementation,
        "methods of the bridge": " ".join({"forward", "input_to_embed"} & vars(model).keys())
        or "own",
        **settings_of(parts),
    }


def require_same_buffers(expected: Mapping[str, bytes], actual: Mapping[str, bytes]) -> None:
    """Refuse buffers (as `buffer_digests` gives them) of which one is not as expected."""
    for path, its_digest in expected.items():
        if actual.get(path) != its_digest:
            raise InputError(
                f"expected {path} as the configuration says, found other numbers or another dtype "
                "(`.half()` and `.to(dtype)` do not give what loading in that dtype gives): load "
                "the model with dtype=..., or save it and use load_model"
            )


def buffer_digests(parts: Mapping[str, nn.Module], *, with_saved: bool) -> dict[str, bytes]:
    """Digests of the buffers of a model's modules that no file of weights holds: rotary
    frequencies, a scale of embeddings. `with_saved`: of the others too.
    """
    buffers = {
        f"{path}.{name}".replace("_original_component.", ""): buffer
        for path, part in parts.items()
        for name, buffer in part._buffers.items()
        if buffer is not None
        and (with_saved or name in part._non_persistent_buffers_set)
        and not _is_rewritten(part, name)
    }
    require_numbers(buffers.values())
    return {path: digest(path, buffer) for path, buffer in buffers.items()}


def _is_rewritten(part: nn.Module, name: str) -> bool:
    """Whether a pass makes it anew for its length: frequencies of `original_inv_freq`, a table of
    positions (XGLM's).
    """
    if hasattr(part, "make_weights"):
        return True
    kinds = str(vars(part).get("rope_type", ""))
    rewrites = "dynamic" in kinds or "longrope" in kinds
    return rewrites and name.endswith("inv_freq") and "original" not in name


def _buffer_digests_of(
    model: TransformerBridge, parts: Mapping[str, nn.Module]
) -> dict[str, bytes]:
    """Of every buffer that the hash of the weights is not of."""
    return buffer_digests(parts, with_saved=not is_closed(model))


def named_weights(model: TransformerBridge) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, by its Hugging Face path.

    TransformerLens splits GPT-2's joint projection into views of it, which are not counted again; a
    view that a user replaced by a tensor of its own is.
    """
    covered: dict[int, list[tuple[int, int]]] = {}
    names: set[str] = set()
    parameters = dict(model.named_parameters())
    # The largest first: what lies inside of one is a view of it.
    for name, parameter in sorted(parameters.items(), key=lambda item: -item[1].numel()):
        storage = parameter.stored if isinstance(parameter, LazyCast) else parameter
        start = storage.data_ptr()
        end = start + storage.numel() * storage.element_size()
        spans = covered.setdefault(storage.untyped_storage().data_ptr(), [])
        if not any(low <= start and end <= high for low, high in spans):
            spans.append((start, end))
            names.add(name)
    for name, parameter in parameters.items():
        if name in names:
            yield name.replace("_original_component.", ""), parameter.detach()


def _saved_buffers(model: TransformerBridge) -> Iterator[tuple[str, Tensor]]:
    """Every buffer that is saved with the weights (a router's correction), of a model by the
    generic route: elsewhere there are those that TransformerLens adds, as biases of zero.
    """
    for path, part in model.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield f"{path}.{name}".replace("_original_component.", ""), buffer


def _digest_of(weights: dict[str, Tensor]) -> str:
    """Digest over every weight's name, shape, dtype and bytes, as they are, read in parallel.

    Every byte: a write through `.data`, through memory that another library shares, or by one bit
    leaves no trace in torch's version counters, and a stale hash would vouch for weights that are
    gone.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return xxhash.xxh3_128(
            b"".join(pool.map(digest, *zip(*weights.items(), strict=True)))
        ).hexdigest()


def digest(name: str, weight: Tensor) -> bytes:
    """Digest over a weight's name, shape, dtype and bytes."""
    of_weight = xxhash.xxh3_128(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
    for part in weight.contiguous().flatten().view(torch.uint8).split(_CHUNK):
        of_weight.update(part.cpu().numpy().data)
    return of_weight.digest()
