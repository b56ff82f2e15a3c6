"""The configuration and the tokenizer of a checkpoint, as transformers reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from ostools.ground.errors import InputError
from ostools.models.families import Family
from ostools.models.files.checks import has_tokenizer, one_line, read_json
from ostools.models.files.quantised import Quantisation, check_quantisation
from ostools.models.files.vocabulary import check_declared_ids, read_declared
from ostools.models.saved_settings import without_saved
from ostools.models.text.calling import decoded, is_failure, token_ids


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


def read_config(directory: Path, family: Family) -> tuple[PreTrainedConfig, Quantisation | None]:
    """The configuration of the text model, ready for its causal language model class, and the checkpoint's quantisation.

    What the machine that saved it says of itself is left out (`saved_settings`)."""
    settings = read_json(directory / "config.json")
    quantisation = check_quantisation(settings, directory)
    try:
        config = _config_of(settings)
    except Exception as error:  # whatever a hand-edited config.json makes the library raise
        raise InputError(
            f"expected a config.json that transformers can read in {directory}: {one_line(error)}"
        ) from None
    if family.renames:  # multimodal: the output layer is tied or not by the outer configuration
        text = config.get_text_config()
        text.tie_word_embeddings = config.tie_word_embeddings
        config = text
    _check_module(config, family, directory)
    without_unread(config, family)
    return config, quantisation


def _config_of(settings: dict[str, Any]) -> PreTrainedConfig:
    """What transformers makes of a config.json that says these, without those of the machine that saved it.

    As `AutoConfig.from_pretrained` does, which reads a file alone: here nothing is written to a disk."""
    if "configuration_files" in settings:
        raise ValueError(
            "configuration_files, which send to another file for one version of transformers, are not read"
        )
    own_settings = without_saved(settings)
    name = own_settings.pop("model_type", None)
    return AutoConfig.for_model(
        "ministral" if name == "mistral" and "layer_types" in own_settings else name, **own_settings
    )


def without_unread(config: PreTrainedConfig, family: Family) -> None:
    """What the class does not read is not there: others ask the configuration which layers have a window."""
    if family.windows == "none" and hasattr(config, "sliding_window"):
        config.sliding_window = None
    if family.windows == "all layers" and hasattr(config, "layer_types"):
        config.layer_types = None


def experts_one_by_one(config: PreTrainedConfig, family: Family) -> None:
    """The kernel that runs all experts together knows no float64."""
    if family.mlp == "experts":
        config._experts_implementation = "eager"


def _check_module(config: PreTrainedConfig, family: Family, directory: Path) -> None:
    """transformers may read another model out of the settings than `model_type` names: Mistral's with `layer_types` are those
    of Ministral."""
    modules: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    module_name = (modules[type(config)] if type(config) in modules else type(config)).__name__
    if module_name != family.module:
        raise InputError(
            f"expected settings of {family.module} in {directory / 'config.json'}, found some that transformers reads as "
            f"{module_name}: `ostools list models` lists what loads"
        )


def read_tokenizer(directory: Path) -> Any:
    """The tokenizer of a checkpoint, which has shown that it can be used; None for a checkpoint without one."""
    if not has_tokenizer(directory):
        return None
    try:
        declared = read_declared(directory)
        file = directory / "config.json"  # an adapter's directory has none
        options = {"config": _config_of(read_json(file))} if file.exists() else {}
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True, **options)
        decoded(tokenizer, [*token_ids(tokenizer, "a"), *tokenizer.all_special_ids])
        check_declared_ids(tokenizer, declared, directory)
        return tokenizer
    except BaseException as error:  # bare ones for a broken file, any where a setting of a wrong type is first needed
        if isinstance(error, InputError) or not is_failure(error):
            raise
        raise InputError(f"expected a tokenizer that transformers can read in {directory}: {one_line(error)}") from None
