"""Load a model that everything else can trust: whole weights, its own tokenizer, raw hooks, no gradients.

Cost: reading the weights once, plus three tiny forward passes that compare the hooked model with the
checkpoint's own code. Nothing is downloaded for the embedded model or for a directory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module, detect_tokenizer_bos_eos
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from ostools.ground.errors import InputError, in_words, unknown_name
from ostools.models.casting import check_dtype
from ostools.models.checks import (
    check_config,
    check_finite,
    check_loaded,
    check_same,
    check_size,
    check_tokenizer,
    check_tokenizer_files,
    check_weight_files,
    one_line,
    read_json,
)
from ostools.models.describe import Metadata, read_trained_lengths, remember
from ostools.models.families import Family
from ostools.models.placed.device_map import DeviceMap, Placed, checked_map
from ostools.models.placed.mapped import MappedWeights
from ostools.models.placed.place import Placing, fill, placeholders
from ostools.models.quantised import check_quantisation, int8_weights
from ostools.models.sources import Source, locate
from ostools.theory.distances import dtype_named


def load_model(
    name: str | os.PathLike[str] | None = None,
    *,
    dtype: str = "float32",
    device: str = "auto",
    device_map: DeviceMap | None = None,
    revision: str | None = None,
) -> TransformerBridge:
    """Load a model as a raw `TransformerBridge`: eval mode, no parameter requires grad, attention computed eagerly.

    `name` is nothing or "embedded" (the model that the package carries), a directory with a Hugging Face model,
    or a hub id (`ostools models` lists the families; of a multimodal Gemma 3 the text part). A checkpoint in torchao's int8
    weight-only format computes with the weights that it stands for, dequantised in float32 where they are read: it takes a byte
    a number in memory, and more time. Such weights are neither written to, nor saved, nor moved by torch. `dtype` is float32,
    float64, bfloat16 or float16; `device` is auto (cuda, else cpu) or a torch device; `revision` is a hub branch, tag or
    commit. Its tokenizer is `model.tokenizer`; turn text into ids with `encode`.

    `device_map` is for a model that is larger than the memory. Weights then lie where it says, and each operation brings what
    it reads to `device`, where everything is computed, and drops it again. "auto": blocks in their order where 0.6 of what is
    free has room, on the device, on other GPUs, in the machine's memory, and else on disk; "disk": all of it; or places
    ("disk", "cpu", "cuda:1") by the name of a module in the Hugging Face model ("model.layers.0"; "" is all others). On disk a
    weight is its own file, mapped for reading: gains and biases are in memory, a matrix takes memory while an operation reads
    it. Numbers are those of the model loaded whole, to the bit on a CPU. Weights that lie elsewhere are neither written to, nor
    saved, nor moved by torch.

    Raises `InputError` for anything that could give silently wrong numbers: missing, unexpected, non-finite,
    truncated or pickled weights, remote code, a tokenizer that does not fit, attention that is not causal.
    """
    torch_dtype = dtype_named(dtype)
    torch_device = resolve_device(device, torch_dtype)
    source = locate(name, revision)
    family = check_config(source.directory)
    check_dtype(family, torch_dtype)
    check_tokenizer_files(source.directory)
    shards = check_weight_files(source.directory)
    trained_lengths = read_trained_lengths(source.directory)
    with quiet():
        config, quantisation = read_config(source.directory, family)
        tokenizer = read_tokenizer(source.directory)
        check_tokenizer(tokenizer, config.vocab_size, source.directory)
        checkpoint = _Checkpoint(source.directory, shards, family, config)
        _check_storage(family, source, device_map is not None, quantisation)
        if device_map is None:
            whole = _whole if quantisation is None else _int8
            module, placed = whole(checkpoint, torch_dtype, torch_device), None
        elif quantisation is not None:
            raise InputError(
                f"device_map: expected weights that can be read where they lie, found int8 ones in {source.directory}: "
                "leave the device map out, or save the model in full precision"
            )
        else:
            module, placed = _in_places(checkpoint, torch_dtype, torch_device, device_map)
        bridge = _bridge(module, family, source.name)
    bridge.tokenizer = tokenizer
    bridge.cfg.tokenizer_prepends_bos, bridge.cfg.tokenizer_appends_eos = detect_tokenizer_bos_eos(tokenizer)
    remember(bridge, Metadata(source.name, source.revision, trained_lengths, quantisation, placed))
    return bridge


def resolve_device(device: str, dtype: torch.dtype = torch.float32) -> torch.device:
    """The torch device of a name; "auto" is cuda, else cpu: the formulas and references need float64, which mps lacks."""
    mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps")) from None
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(mps)}
    if found.type not in count:
        raise unknown_name("device", device, ("auto", "cpu", "cuda", "mps"))
    if (found.index or 0) >= count[found.type]:
        raise InputError(
            f"expected an available device, found {device!r} on a machine with {torch.cuda.device_count()} cuda and "
            f"{int(mps)} mps devices: use device 'auto' or 'cpu'"
        )
    if found.type == "mps" and dtype is torch.float64:
        raise InputError("expected a dtype that mps has, found float64: use dtype 'float32' or device 'cpu'")
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers for one load: whatever it would report is checked here, and refused."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def read_config(directory: Path, family: Family) -> tuple[PreTrainedConfig, str | None]:
    """The configuration of the text model, ready for its causal language model class, and the checkpoint's quantisation."""
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever a hand-edited config.json makes the library raise
        raise InputError(
            f"expected a config.json that transformers can read in {directory}: {one_line(error)}"
        ) from None
    if family.renames:  # multimodal: the output layer is tied or not by the outer configuration
        text = config.get_text_config()
        text.tie_word_embeddings = config.tie_word_embeddings
        config = text
    _check_module(config, family, directory)
    # What the class does not read is not there: others ask the configuration which layers have a window.
    if family.windows == "none" and hasattr(config, "sliding_window"):
        config.sliding_window = None
    if family.windows == "all layers" and hasattr(config, "layer_types"):
        config.layer_types = None
    quantisation = check_quantisation(read_json(directory / "config.json"), directory)
    if quantisation is not None:
        delattr(config, "quantization_config")  # the weights are dequantised before the model sees them
    return config, quantisation


def _check_module(config: PreTrainedConfig, family: Family, directory: Path) -> None:
    """transformers may read another model out of the settings than `model_type` names: Mistral's with `layer_types` are those
    of Ministral."""
    modules: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    found = (modules[type(config)] if type(config) in modules else type(config)).__name__
    if found != family.module:
        raise InputError(
            f"expected settings of {family.module} in {directory / 'config.json'}, found some that transformers reads as "
            f"{found}: `ostools models` lists what loads"
        )


def read_tokenizer(directory: Path) -> Any:
    """The tokenizer of a checkpoint, which has shown that it can be used."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        tokenizer.decode([*tokenizer("a").input_ids, *tokenizer.all_special_ids])
        return tokenizer
    except Exception as error:  # bare ones for a broken file, any where a setting of a wrong type is first needed
        raise InputError(f"expected a tokenizer that transformers can read in {directory}: {one_line(error)}") from None


@dataclass(frozen=True)
class _Checkpoint:
    """The files of a model, which have been looked at, and what config.json says."""

    directory: Path
    shards: list[Path]
    family: Family
    config: PreTrainedConfig

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Whatever a library raises while the model is built, for config values that no model can be built from."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"expected weights that fit config.json in {self.directory}: {one_line(error)}") from None

    def built(self, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
        """The Hugging Face model in `dtype`, every parameter one of the `weights`."""
        if self.family.mlp == "experts":  # the kernel that runs all of them together knows no float64
            self.config._experts_implementation = "eager"
        module, info = getattr(transformers, self.family.module).from_pretrained(
            None,
            state_dict=weights,
            config=self.config,
            dtype=dtype,
            attn_implementation="eager",
            # Reported in `info` and refused there, with both shapes; otherwise the shapes are lost in the log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            key_mapping=dict(self.family.renames) or None,
        )
        check_loaded(info, self.family, self.directory)
        return module

    def filled(
        self,
        weights: dict[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        weight: Callable[[str, str], torch.Tensor],
    ) -> PreTrainedModel:
        """The Hugging Face model in `dtype`, built without the `weights` and then filled with what `weight` makes of each."""
        held = placeholders(weights, dtype)
        module = self.built(dict(held), dtype)
        fill(module, held, device, weight)
        return module

    def finished(self, module: PreTrainedModel) -> PreTrainedModel:
        """The model with finite weights, in eval mode, knowing the tokens that end an answer."""
        check_finite(module, self.directory)
        if (self.directory / "generation_config.json").exists():
            try:
                module.generation_config = GenerationConfig.from_pretrained(self.directory, local_files_only=True)
            except Exception as error:
                raise InputError(
                    f"expected a generation_config.json that transformers can read in {self.directory}: {one_line(error)}"
                ) from None
        return module.eval()


def _whole(checkpoint: _Checkpoint, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The Hugging Face model with every weight in the memory of the device."""
    shards = checkpoint.shards
    with checkpoint.fitting():
        check_size(checkpoint.config, checkpoint.family, shards, checkpoint.directory)
        module = checkpoint.built(_stored_weights(shards, dtype), dtype)
    module = checkpoint.finished(module)
    module.to(device)  # pyright: ignore[reportArgumentType]
    return module


def _int8(checkpoint: _Checkpoint, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The Hugging Face model with its quantised matrices in memory as they are stored."""
    with checkpoint.fitting():
        check_size(checkpoint.config, checkpoint.family, checkpoint.shards, checkpoint.directory)
        weights = int8_weights(checkpoint.shards, dtype, device)
        module = checkpoint.filled(weights, dtype, device, lambda name, path: weights[name])
    return checkpoint.finished(module)


def _in_places(
    checkpoint: _Checkpoint, dtype: torch.dtype, device: torch.device, device_map: DeviceMap
) -> tuple[PreTrainedModel, Placed]:
    """The Hugging Face model with its weights where the map says, and the map with nothing left to be found out."""
    device = torch.device(device.type, device.index or 0) if device.type == "cuda" else device
    with checkpoint.fitting():
        check_size(checkpoint.config, checkpoint.family, checkpoint.shards, checkpoint.directory)
        with torch.device("meta"):
            without_weights = getattr(transformers, checkpoint.family.module)(checkpoint.config)
        placed = checked_map(device_map, without_weights, dtype, device)
        weights = MappedWeights.of(checkpoint.shards)
        placing = Placing(weights, placed, dtype, device)
        module = checkpoint.filled(weights.by_name, dtype, device, placing.weight)
    module = checkpoint.finished(module)
    weights.let_go()
    return module, placed


def _stored_weights(shards: list[Path], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight by name, in memory of its own and in `dtype`.

    A file is mapped for one weight at a time, so that what was read does not stay in memory beside its copy.
    """
    weights = {}
    for shard in shards:
        with safe_open(shard, "pt") as file:
            names = list(file.keys())
        for name in names:
            with safe_open(shard, "pt") as file:
                weight = file.get_tensor(name)
            weights[name] = weight.to(dtype if weight.is_floating_point() else weight.dtype, copy=True)
    return weights


def _check_storage(family: Family, source: Source, mapped: bool, quantisation: str | None) -> None:
    """A device map and int8 weights ask for weights that are computed with one by one, as the file holds them."""
    joint = (
        f"one joint weight in {family.name}, of whose parts TransformerLens computes with copies"
        if family.copied
        else None
    )
    found = f"experts in {family.name}, which transformers stacks" if family.mlp == "experts" else joint
    if found is not None and (mapped or quantisation is not None):
        what = "device_map" if mapped else quantisation
        raise InputError(
            f"{what}: expected weights that are computed with as {source.directory} holds them, found {found}: load the model "
            "whole, in full precision"
        )


def unpatched(bridge: TransformerBridge) -> TransformerBridge:
    """The bridge without functions in the place of its modules' own `forward`, such as TransformerLens puts into Falcon's.

    They hold the module that they were made for, so that a copy of the model (`view_in`) would compute with its weights.
    """
    for module in bridge.modules():
        if isinstance(vars(module).get("forward"), FunctionType):
            del module.forward
    return bridge


def _bridge(module: PreTrainedModel, family: Family, name: str) -> TransformerBridge:
    """Wrap the module, which is changed in place, and see that it still computes the same."""
    d_vocab, device = module.config.vocab_size, module.device
    probe = torch.linspace(0, d_vocab - 1, 8, device=device).long()[None]
    with torch.no_grad():
        reference = _first_pass(lambda: module(probe, use_cache=False).logits, name)
        try:
            bridge = build_bridge_from_module(module, family.module, hf_config=module.config, model_name=name)
        except Exception as error:  # bare ones, of a library that does not know a setting of this architecture
            why = one_line(in_words(error)).rstrip(":")
            raise InputError(
                f"expected a model that TransformerLens can wrap, found {name}: {why}; it does not know a setting of it"
            ) from None
        bridge.eval()
        for parameter in bridge.parameters():
            parameter.requires_grad_(False)
        if family.copied:
            _let_go_of_joint(bridge)
        unpatched(bridge)
        check_same(reference, _first_pass(lambda: bridge(probe), name), name)
    return bridge


def _first_pass(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    """Its logits; an `InputError` for whatever is raised by settings that fit the weights and each other only in part."""
    try:
        return run()
    except Exception as error:
        raise InputError(
            f"expected a config.json with which {name} computes, found one that ends its first pass: "
            f"{one_line(in_words(error))}"
        ) from None


def _let_go_of_joint(bridge: TransformerBridge) -> None:
    """The joint weight of q, k and v, which have copies of it: nothing computes with it, nor would with a change of it."""
    for block in bridge.blocks:
        joint = block.attn.qkv.original_component
        for name, _ in list(joint.named_parameters()):
            setattr(joint, name, None)
