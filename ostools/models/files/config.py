"""Configuration of a checkpoint: which family it is, whether ostools loads it, and what
transformers makes of it.

A config.json carries the attention kernel, the dtype, the cache, the outputs and the devices of
whoever saved it. They say how some machine computed, and not which model it is: `without_saved`
leaves them out wherever a configuration is read.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, short_repr
from ostools.ground.lens import PreTrainedConfig
from ostools.models.families import FAMILIES, KNOWN_ARCHITECTURES, Family, family_of_config
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import one_line
from ostools.models.files.functions import require_own_names

_POSITIVE = re.compile(
    r"rope_theta|rope_local_base_freq|rotary_emb_base|rotary_pct|sliding_window|max_position_embeddings|"
    r"(low_freq_|high_freq_|attention_|partial_rotary_|short_|long_)?factor|\w*softcap\w*|query_pre_attn_scalar|"
    r"\w+_multiplier|logits?_scal\w+"
)
_EPSILON = re.compile(r"\w*(eps|epsilon)")
"""Settings of which an absurd value may load, and give finite numbers that are no model's."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SAVED_SETTINGS = """
    attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset _flash_attn_2_enabled
    experts_implementation _experts_implementation _experts_implementation_internal
    use_kernels kernel_config disable_custom_kernels fusion_config compile_config
    dtype torch_dtype _pre_quantization_dtype quantization_config compression_config
    use_cache cache_implementation cache_config
    torchscript return_dict use_return_dict _output_attentions output_attentions output_hidden_states output_router_logits
    device_map tp_plan base_model_tp_plan base_model_pp_plan distributed_config transformers_weights
    gradient_checkpointing chunk_size_feed_forward
"""
SAVED = frozenset(_SAVED_SETTINGS.split())
"""Kernels, dtypes, quantisation (weights are dequantised before the model sees them), caches,
outputs, devices, training.
"""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers for one load: whatever it would report is checked here, and refused."""
    from transformers.utils import logging as transformers_logging

    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def check_config(checkpoint: Checkpoint, generic: bool = False) -> Family:
    """The family of the model, or why ostools does not load it; `generic` as in
    `family_of_settings`.
    """
    file = str(checkpoint.directory / "config.json")
    refuse_quantised(checkpoint.config, checkpoint.directory)
    require_own_names(checkpoint.config, file)
    return family_of_settings(checkpoint.config, file, generic)


def refuse_quantised(config: Mapping[str, Any], directory: Path) -> None:
    """Weights in few bits are not read, but for those of a model that transformers dequantised from
    a GGUF file and saved.
    """
    settings = config.get("quantization_config")
    if settings in (None, {}):
        return
    settings = settings if isinstance(settings, dict) else {}
    if settings.get("quant_method") == "gguf":
        return
    names = ("quant_method", "quant_type", "bits", "format")
    message = (
        ", ".join(f"{name} {str(settings[name])[:60]}" for name in names if name in settings)
        or "no quant_method"
    )
    raise InputError(
        f"expected full-precision weights, found a quantised checkpoint ({message}) in {directory}: use the original or a "
        "GGUF file of it; or load it with transformers, dequantise it there, and take it with ost.adopt"
    )


def _check_numbers(settings: Mapping[str, Any], where: Path) -> None:
    """Every base, factor, cap and length is a positive number, and every epsilon is at least 0 and
    below 1.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_numbers(value, where)
        numbers = [
            number
            for number in (value if isinstance(value, list) else [value])
            if isinstance(number, int | float)
        ]
        is_epsilon = _EPSILON.fullmatch(name) is not None
        if not is_epsilon and _POSITIVE.fullmatch(name) is None:
            continue
        if name == "sliding_window" and value == 0 and settings.get("use_sliding_window") is False:
            continue  # as transformers writes no window of Qwen 2 MoE
        for number in numbers:
            is_sound = 0 <= number < 1 if is_epsilon else 0 < number < math.inf
            if isinstance(number, bool) or not is_sound:
                words = "at least 0 and below 1" if is_epsilon else "above 0, and finite"
                raise InputError(
                    f"expected {name} in {where} to be {words}, found {short_repr(number)}: is it this checkpoint's own?"
                )


def family_of_settings(config: Mapping[str, Any], where: str, generic: bool = False) -> Family:
    """The family of a model with these settings, or why ostools does not take it; `where`: what
    they are settings of.

    A model that no record describes, or any if `generic`, has a record that says so
    (`Family.generic`).
    """
    _require_causal(config, where)
    family = family_of_config(config)
    if family is None:
        _require_no_record(config, where)
    refused = "" if family is None else family.refused or ""
    # What transformers itself computes wrongly stays refused; of the rest a proof decides, where it
    # is asked for.
    if (
        family is None
        or family.generic_instead
        or (generic and not refused.startswith("transformers"))
    ):
        return _generic_family(config, where)
    if family.refused is not None:
        raise InputError(
            f"expected a model whose hooks show and change what it computes, found {family.name} in "
            f"{where}: {family.refused}; `ostools list models` lists what loads"
        )
    architectures = config.get("architectures")
    if architectures and architectures != [family.architecture]:
        raise InputError(
            f"expected architecture {family.architecture} for model_type {family.model_type!r}, found "
            f"{architectures} in {where}: load the language model, not another head on it"
        )
    return family


def _require_causal(config: Mapping[str, Any], where: str) -> None:
    """Refuse a model in which a token sees later ones: no statement of the theory is about it."""
    text = config.get("text_config")
    for settings in (config, text if isinstance(text, dict) else {}):
        for flag in ("is_encoder_decoder", "use_bidirectional_attention", "add_cross_attention"):
            if settings.get(flag):
                raise InputError(
                    f"expected a decoder-only model with causal attention, found {flag} = {settings[flag]!r} "
                    f"in {where}: the theory does not cover it; use one of {KNOWN_ARCHITECTURES}"
                )


def _require_no_record(config: Mapping[str, Any], where: str) -> None:
    """Refuse settings that no record of their `model_type` describes: transformers may not read the
    one that differs.
    """
    kind = config.get("model_type")
    candidates = [family for family in FAMILIES if family.model_type == kind]
    if not candidates:
        return
    settings = {
        setting.name: setting.read(config) for family in candidates for setting in family.when
    }
    description = f"model_type {kind!r}" + "".join(
        f", {name} {value!r}" for name, value in settings.items()
    )
    raise InputError(
        f"expected a model of a known family ({KNOWN_ARCHITECTURES}), found {description} in {where}: its "
        "hooks have not been held against Hugging Face's own model"
    )


def _generic_family(config: Mapping[str, Any], where: str) -> Family:
    """The record of whatever transformers loads as a causal language model; of a multimodal
    checkpoint its text part.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    text = config.get("text_config")
    multimodal = isinstance(text, dict) and "model_type" in text
    kind = (text if isinstance(text, dict) and multimodal else config).get("model_type")
    module = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(kind))
    named = config.get("architectures")
    expected = [module] if not multimodal else (named or [module])
    if module is None or (named and named != expected):
        raise InputError(
            f"expected a causal language model of transformers, found model_type {config.get('model_type')!r} and "
            f"architectures {named} in {where}: `ostools list models` lists the families; others load where transformers "
            "has a ...ForCausalLM for them"
        )
    settings = text if isinstance(text, dict) and multimodal else config
    experts = any(isinstance(settings.get(name), int) for name in _EXPERTS)
    prefixes = (
        (r"^model\.language_model\.", "model."),
        (r"^language_model\.(model|lm_head)\.", r"\1."),
    )
    return Family(
        str(config.get("model_type")),
        (named or [module])[0],
        module,
        module=module,
        renames=prefixes if multimodal else (),
        ignored=r"^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|audio_tower|embed_vision|mtp)\."
        if multimodal
        else None,
        mlp="experts" if experts else "gated",
        generic=True,
    )


def read_config(checkpoint: Checkpoint, family: Family) -> PreTrainedConfig:
    """The configuration of the text model, ready for its causal language model class.

    What the machine that saved it says of itself is left out (`without_saved`)."""
    file = checkpoint.directory / "config.json"
    try:
        _check_numbers(_with_infinity(checkpoint.config), file)
        config = saved_config(checkpoint.config)
        if family.renames:  # multimodal: the output layer is tied or not by the outer configuration
            text = config.get_text_config()
            text.tie_word_embeddings = config.tie_word_embeddings
            config = text
    except InputError:
        raise
    except Exception as error:  # whatever a hand-edited config.json makes the library raise
        raise InputError(
            f"expected a config.json that transformers can read in {checkpoint.directory}: {one_line(error)}"
        ) from None
    _check_module(config, family, file)
    without_unread(config, family)
    return config


def saved_config(settings: Mapping[str, Any]) -> PreTrainedConfig:
    """Configuration that transformers makes of these settings, without those of the machine that
    saved them.

    As `AutoConfig.from_pretrained` does, which reads a file alone: here nothing is written to a
    disk."""
    from transformers import AutoConfig

    if "configuration_files" in settings:
        raise ValueError(
            "configuration_files, which send to another file for one version of transformers, are not read"
        )
    own_settings = without_saved(settings)
    name = own_settings.pop("model_type", None)
    return AutoConfig.for_model(
        "ministral" if name == "mistral" and "layer_types" in own_settings else name,
        **_with_infinity(own_settings),
    )


def _with_infinity(value: Any) -> Any:
    """The settings with the numbers that JSON cannot write, as transformers writes them:
    {"__float__": "Infinity"}.
    """
    if isinstance(value, Mapping):
        inner = {name: _with_infinity(setting) for name, setting in value.items()}
        return float(inner["__float__"]) if set(inner) == {"__float__"} else inner
    return [_with_infinity(element) for element in value] if isinstance(value, list) else value


def without_saved(settings: Mapping[str, Any]) -> dict[str, Any]:
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
    if family.generic:
        return
    if family.windows == "none" and hasattr(config, "sliding_window"):
        config.sliding_window = None
    if family.windows == "all layers" and hasattr(config, "layer_types"):
        config.layer_types = None


def experts_one_by_one(config: PreTrainedConfig, family: Family) -> None:
    """The kernel that runs all experts together knows no float64."""
    if family.mlp == "experts":
        config._experts_implementation = "eager"


def _check_module(config: PreTrainedConfig, family: Family, file: Path) -> None:
    """transformers may read another model out of the settings than `model_type` names: Mistral's
    with `layer_types` are those of Ministral."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    modules: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    module_name = (modules[type(config)] if type(config) in modules else type(config)).__name__
    if module_name != family.module:
        raise InputError(
            f"expected settings of {family.module} in {file}, found some that transformers reads as "
            f"{module_name}: `ostools list models` lists what loads"
        )
