"""Configuration of a checkpoint: which family it is, whether ostools loads it, and what
transformers makes of it.

A config.json carries the attention kernel, the dtype, the cache, the outputs and the devices of
whoever saved it. They say how some machine computed, and not which model it is: `without_saved`
leaves them out wherever a configuration is read.
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch

from ostools.ground import (
    InputError,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    collector_at_rest,
    refusal,
)
from ostools.models.families import FAMILIES, KNOWN_ARCHITECTURES, Family, family_of_config
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import check_declared_ids, refuse_quantised, require_own_names
from ostools.models.tokenizer_calls import decoded, token_ids

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SAVED_SETTINGS = """
    attn_implementation _attn_implementation _attn_implementation_internal
    _attn_implementation_autoset _flash_attn_2_enabled
    experts_implementation _experts_implementation _experts_implementation_internal
    use_kernels kernel_config disable_custom_kernels fusion_config compile_config
    dtype torch_dtype _pre_quantization_dtype quantization_config compression_config
    use_cache cache_implementation cache_config
    torchscript return_dict use_return_dict _output_attentions output_attentions
    output_hidden_states output_router_logits
    device_map tp_plan base_model_tp_plan base_model_pp_plan distributed_config transformers_weights
    gradient_checkpointing chunk_size_feed_forward
"""
SAVED = frozenset(_SAVED_SETTINGS.split())
"""Kernels, dtypes, quantisation (weights are dequantised before the model sees them), caches,
outputs, devices, training.
"""
_PREFIXES = (
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
)
_OF_OTHER_SENSES = (
    r"^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|audio_tower|embed_vision"
    r"|mtp)\."
)
"""How a multimodal checkpoint calls the weights of its text part, and those of its other parts."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers for one load: whatever it would report is checked here, and refused."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    has_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if has_bars:
            transformers_logging.enable_progress_bar()


def check_config(checkpoint: Checkpoint, generic: bool = False) -> Family:
    """The family of the model, or why ostools does not load it; `generic` as in
    `family_of_settings`.
    """
    refuse_quantised(checkpoint.config, checkpoint.directory)
    file = checkpoint.directory / "config.json"
    return family_of_settings(checkpoint.config, str(file), generic)


def family_of_settings(config: Mapping[str, object], where: str, generic: bool = False) -> Family:
    """The family of a model with these settings, or why ostools does not take it; `where`: what
    they are settings of.

    A model that no record describes, or any if `generic`, has a record that says so
    (`Family.generic`).
    """
    require_own_names(config, where)
    _require_causal(config, where)
    family = family_of_config(config)
    kind = config.get("model_type")
    if family is None and any(record.model_type == kind for record in FAMILIES):
        # transformers may not read the setting that differs from those of its records.
        raise InputError(
            f"expected settings of a known family ({KNOWN_ARCHITECTURES}), found model_type "
            f"{kind!r} with others in {where}: its hooks have not been held against Hugging Face's "
            "own model"
        )
    if family is None:
        return _generic_family(config, where)
    # What transformers itself computes wrongly stays refused; of the rest a proof decides, where it
    # is asked for.
    is_wrong_there = (family.refused or "").startswith("transformers")
    if family.generic_instead or (generic and not is_wrong_there):
        return _generic_family(config, where)
    if family.refused is not None:
        raise InputError(
            "expected a model whose hooks show and change what it computes, found "
            f"{family.name} in {where}: {family.refused}; `ostools list models` lists what loads"
        )
    if config.get("architectures") not in (None, [], [family.architecture]):
        raise InputError(
            f"expected architecture {family.architecture} for model_type {family.model_type!r}, "
            f"found {config['architectures']} in {where}: load the language model, not another "
            "head on it"
        )
    return family


def _require_causal(config: Mapping[str, object], where: str) -> None:
    """Refuse a model in which a token sees later ones: no statement of the theory is about it."""
    text = config.get("text_config")
    for settings in (config, text if isinstance(text, dict) else {}):
        for flag in ("is_encoder_decoder", "use_bidirectional_attention", "add_cross_attention"):
            if settings.get(flag):
                raise InputError(
                    "expected a decoder-only model with causal attention, found "
                    f"{flag} = {settings[flag]!r} in {where}: the theory does not cover it; use "
                    f"one of {KNOWN_ARCHITECTURES}"
                )


def _generic_family(config: Mapping[str, object], where: str) -> Family:
    """The record of whatever transformers loads as a causal language model; of a multimodal
    checkpoint its text part.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    text = config.get("text_config")
    is_multimodal = isinstance(text, dict) and "model_type" in text
    settings = cast(Mapping[str, object], text) if is_multimodal else config
    module = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(settings.get("model_type")))
    architectures = cast(list[str], config.get("architectures") or [str(module)])
    if module is None or not (is_multimodal or architectures == [module]):
        raise InputError(
            "expected a causal language model of transformers, found model_type "
            f"{config.get('model_type')!r} and architectures {config.get('architectures')} in "
            f"{where}: `ostools list models` lists the families; others load where transformers "
            "has a ...ForCausalLM for them"
        )
    has_experts = any(isinstance(settings.get(name), int) for name in _EXPERTS)
    return Family(
        str(config.get("model_type")),
        architectures[0],
        module,
        module=module,
        renames=_PREFIXES if is_multimodal else (),
        ignored=_OF_OTHER_SENSES if is_multimodal else None,
        mlp="experts" if has_experts else "gated",
        generic=True,
    )


def read_config(checkpoint: Checkpoint, family: Family) -> PreTrainedConfig:
    """The configuration of the text model, ready for its causal language model class.

    What the machine that saved it says of itself is left out (`without_saved`). Raises `InputError`
    where transformers reads another model out of the settings than `model_type` names: Mistral's
    with `layer_types` are those of Ministral."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    with refusal(f"a config.json that transformers can read in {checkpoint.directory}"):
        config = saved_config(checkpoint.config)
        if family.renames:  # multimodal: the output layer is tied or not by the outer configuration
            text = config.get_text_config()
            text.tie_word_embeddings = config.tie_word_embeddings
            config = text
    module = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), type(config))
    module_name = getattr(module, "__name__", "")
    if module_name != family.module:
        raise InputError(
            f"expected settings of {family.module} in {checkpoint.directory / 'config.json'}, "
            f"found some that transformers reads as {module_name}: `ostools list models` lists "
            "what loads"
        )
    without_unread(config, family)
    return config


def saved_config(settings: Mapping[str, object]) -> PreTrainedConfig:
    """Configuration that transformers makes of these settings, without those of the machine that
    saved them.

    As `AutoConfig.from_pretrained` does, which reads a file alone: here nothing is written to a
    disk."""
    from transformers import AutoConfig

    if "configuration_files" in settings:
        raise ValueError(
            "configuration_files, which send to another file for one version of transformers, "
            "are not read"
        )
    own_settings = without_saved(settings)
    name = own_settings.pop("model_type", None)
    return AutoConfig.for_model(
        "ministral" if name == "mistral" and "layer_types" in own_settings else str(name),
        **own_settings,
    )


def without_saved(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of a configuration, and of the configurations in it, without those of the
    machine that saved it.
    """
    return {
        name: without_saved(value)
        if isinstance(value, Mapping) and name.endswith("_config")
        else value
        for name, value in settings.items()
        if name not in SAVED
    }


def without_unread(config: PreTrainedConfig, family: Family) -> None:
    """Remove settings that the class does not read: others ask the configuration which layers have
    a window.
    """
    if not family.generic and family.windows == "none" and hasattr(config, "sliding_window"):
        config.sliding_window = None
    if not family.generic and family.windows == "all layers" and hasattr(config, "layer_types"):
        config.layer_types = None


def experts_one_by_one(config: PreTrainedConfig, family: Family) -> None:
    """Let experts run one by one: the kernel that runs all of them together knows no float64."""
    if family.mlp == "experts":
        config._experts_implementation = "eager"


def built(config: PreTrainedConfig, family: Family, dtype: torch.dtype) -> PreTrainedModel:
    """The Hugging Face model of a configuration, whose own object is left as it is, on the CPU."""
    import transformers

    own_config = copy.deepcopy(config)
    experts_one_by_one(own_config, family)
    with torch.device("cpu"):
        return getattr(transformers, family.module)._from_config(
            own_config, dtype=dtype, attn_implementation="eager"
        )


# ---- the tokenizer


@collector_at_rest()
def read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint, which has shown that it can be used; None for a checkpoint
    without one.
    """
    if not checkpoint.has_tokenizer:
        return None
    from transformers import AutoTokenizer

    directory = checkpoint.directory
    has_config = (directory / "config.json").exists()
    options = {"config": saved_config(checkpoint.config)} if has_config else {}
    with refusal(f"a tokenizer that transformers can read in {directory}"):
        declared_tokens = checkpoint.declared_tokens()
        tokenizer = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True, **options
        )
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        check_declared_ids(tokenizer, declared_tokens, directory)
    # Python's own copies, which nothing reads any more: 140 MB of Gemma's vocabulary.
    for own_copy in ("_vocab", "_merges"):
        vars(tokenizer).pop(own_copy, None)
    return tokenizer
