"""A LoRA in a directory, merged by PEFT into the weights of its base model: W + (alpha / r) B A.

PEFT is handed settings and tensors that were read and checked here, and never a path: it opens no
file, asks no network and matches no regular expression of the adapter's own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import regex
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ostools.ground.errors import InputError, short_repr
from ostools.models.families import Family
from ostools.models.files.checks import one_line, read_json
from ostools.models.files.shards import read_shard

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_REMEDY = "merge it with PEFT (`merge_and_unload`), save the whole model, and load that"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+?)\.lora_(embedding_)?(A|B|magnitude_vector)(\.weight)?")
_NAME = re.compile(r"\^?(\\?[\w.-])+")
"""A module's name, or its ending, as PEFT's patterns may write it: without anything that repeats."""
_FIRST_FACTOR = re.compile(r"\.lora_(embedding_)?A\b")
_LONGEST_PATTERN = 10_000
_KINDS = {"peft_type": ("LORA",), "task_type": ("CAUSAL_LM", None), "bias": ("none", None)}
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base as it is; PiSSA, OLoRA and others do not."""
_PATTERNS = frozenset({"alpha_pattern", "rank_pattern"})
_NAMES = frozenset({"exclude_modules", "layers_pattern", "modules_to_save", "target_modules"})
_GIVEN_TO_PEFT = _PATTERNS | _NAMES | {"layers_to_transform", "lora_alpha", "r", "task_type", "use_dora", "use_rslora"}
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",  # PEFT goes by the kind of the module
        "inference_mode",
        "init_lora_weights",
        "lora_dropout",
        "lora_ga_config",
        "loftq_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
"""Settings that say how an adapter was trained or is stored, and do not change what it computes."""


def require_peft() -> None:
    """Refuse where the package is missing that merges adapters."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            "expected the package peft, which merges an adapter into its base model, found none: "
            "pip install 'oversquashing-tools[peft]' (or pip install peft)"
        )


def merge_adapter(base: PreTrainedModel, directory: Path, family: Family) -> tuple[PreTrainedModel, str]:
    """The base with the adapter merged into its weights in place, and what the adapter is, in words.

    Raises `InputError` for a setting that is not known here, a tensor that fits nothing in the base,
    a module that the settings name and the file lacks, numbers that are not finite, and a change of
    one of two weights that are tied.
    """
    require_peft()
    import peft

    file = directory / ADAPTER_CONFIG
    values = _read_settings(file)
    tensors = _read_tensors(directory / ADAPTER_WEIGHTS, family)
    modules = [name for name, _ in base.named_modules()]
    settings = _settings_for_peft(values, modules, tensors, family, file)
    tensors = {_renamed(name, family): tensor for name, tensor in tensors.items()}
    tables = base.get_input_embeddings(), base.get_output_embeddings()
    tied = tables[1] is not None and tables[0].weight is tables[1].weight
    if tied:
        _refuse_one_of_tied(tensors, base, tables, directory)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            model: Any = peft.get_peft_model(base, peft.LoraConfig(**settings))
            result = peft.set_peft_model_state_dict(model, {_PREFIX + name: tensor for name, tensor in tensors.items()})
            added = (".lora_", ".modules_to_save.")
            lacking = [key for key in result.missing_keys if any(part in key for part in added)]
            if lacking:
                raise ValueError(f"no {lacking[0].removeprefix(_PREFIX)}, which {file.name} names")
            if result.unexpected_keys:
                raise ValueError(
                    f"{result.unexpected_keys[0].removeprefix(_PREFIX)[:120]}, which the base model "
                    f"does not have or {file.name} does not name"
                )
            merged = model.merge_and_unload(progressbar=False)
        except Exception as error:  # whatever broken settings or tensors make PEFT raise
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"expected in {directory} an adapter of this base model that PEFT can merge, found "
                f"{one_line(reason)}: is it whole, and this base model's own?"
            ) from None
    if tied:
        _tie_again(merged, directory)
    return merged, f"{_words(values)}, of {directory} (sha256 {_hash_of(directory)})"


def _read_settings(file: Path) -> Mapping[str, Any]:
    """The settings of a LoRA for a causal language model; `InputError` for any that is not known."""
    values = read_json(file)
    for name, expected in _KINDS.items():
        _require(values.get(name) in expected, f"{name} {expected[0]}", name, values, file)
    start = values.get("init_lora_weights", True)
    is_known_start = any(type(start) is type(known_start) and start == known_start for known_start in _STARTS)
    _require(is_known_start, "a base that training began from as it is", "init_lora_weights", values, file)
    # PEFT writes None, False or nothing for what is off; what a newer version adds is not known.
    for name in sorted(set(values) - _WITHOUT_EFFECT - _GIVEN_TO_PEFT - set(_KINDS)):
        _require(not values[name], "only settings that are known here", name, values, file)
    for name in sorted(_NAMES):
        value = values.get(name) or []
        names = [value] if isinstance(value, str) else value
        good = isinstance(names, list) and all(isinstance(part, str) for part in names)
        _require(good, f"names of modules as {name}", name, values, file)
        if name in ("layers_pattern", "modules_to_save"):
            _require_names(names, name, values, file)
    for name in sorted(_PATTERNS):
        _require(isinstance(values.get(name) or {}, dict), f"numbers by name as {name}", name, values, file)
        _require_names(values.get(name) or {}, name, values, file)
    return values


def _read_tensors(file: Path, family: Family) -> dict[str, Tensor]:
    """The tensors of the file by the names of their modules in the model that it was trained on."""
    tensors = {}
    for key, tensor in read_shard(file).read():
        if not key.startswith(_PREFIX):
            raise InputError(f"expected in {file} only tensors of a LoRA, found {key[:120]}: {_REMEDY}")
        floating = tensor.is_floating_point() and tensor.element_size() > 1
        if not (floating and tensor.isfinite().all()):
            raise InputError(
                f"expected in {file} finite numbers of 16 bits or more, found others in {key[:120]}: fetch it again"
            )
        name = key.removeprefix(_PREFIX)
        if family.ignored is None or not re.search(family.ignored, name):
            tensors[name] = tensor
    return tensors


def _settings_for_peft(
    values: Mapping[str, Any],
    modules: Iterable[str],
    tensors: Mapping[str, Tensor],
    family: Family,
    file: Path,
) -> dict[str, Any]:
    """The settings that decide what is computed, with names of the text model's modules alone.

    A regular expression is matched here, where it has to end, and becomes the names that it matches.
    """
    settings = {name: values[name] for name in _GIVEN_TO_PEFT if values.get(name) is not None}
    ranks = [part.shape[0] for name, part in tensors.items() if _FIRST_FACTOR.search(name)]
    if not ranks:
        raise InputError(f"expected factors of a LoRA beside {file}, found none: is it whole?")
    for rank in (values.get("r"), *(values.get("rank_pattern") or {}).values()):
        if type(rank) is not int or not 0 < rank <= max(ranks):  # PEFT would make room for it
            raise InputError(
                f"expected ranks of 1 to {max(ranks)} in {file}, as the factors have, found "
                f"{short_repr(rank)}: are both of one adapter?"
            )
    outside = {_name_outside(name, tensors, family): name for name in modules}
    for name in _NAMES & set(settings) - {"layers_pattern"}:
        value = settings[name]
        if isinstance(value, str) and name != "modules_to_save":
            settings[name] = [outside[module] for module in _matched(value, outside, file)]
        else:
            names = [value] if isinstance(value, str) else value
            settings[name] = [_renamed(f"{module}.", family)[:-1] for module in names]
    has_names = bool(settings.get("target_modules"))
    _require(has_names, "names of modules as target_modules", "target_modules", values, file)
    changed = {_renamed(name, family) for name in _factors(tensors)}
    for name in _PATTERNS & set(settings):
        settings[name] = {_renamed(key, family): value for key, value in settings[name].items()}
        for key in settings[name]:
            is_known = any(re.match(rf"(.*\.)?({key})$", module) for module in changed)
            _require(is_known, f"names of changed modules as {name}", name, values, file)
    return settings


def _matched(pattern: str, names: Iterable[str], file: Path) -> list[str]:
    """The names that a regular expression matches; `InputError` for one that takes too long."""
    end = time.perf_counter() + 2
    try:
        if len(pattern) > _LONGEST_PATTERN:
            raise TimeoutError
        expression = regex.compile(pattern)
        remaining = (max(end - time.perf_counter(), 0.01) for _ in itertools.count())
        return [name for name in names if expression.fullmatch(name, timeout=next(remaining))]
    except TimeoutError:
        reason = f"{short_repr(pattern)}, which takes too long to match"
    except (regex.error, RecursionError) as error:
        reason = f"one that is neither: {one_line(error)}"
    raise InputError(f"expected names or regular expressions in {file}, found {reason}: {_REMEDY}")


def _name_outside(name: str, tensors: Iterable[str], family: Family) -> str:
    """Name of a module of the text model in the model that the adapter was trained on."""
    matches = (re.match(old, key) for key in tensors for old, new in family.renames if new == "model.")
    prefix = next((match.group() for match in matches if match), "model.")
    return f"{prefix}{name.removeprefix('model.')}" if name.startswith("model.") else name


def _factors(tensors: Mapping[str, Tensor]) -> set[str]:
    """The modules that the file has factors of."""
    matches = (_FACTOR.fullmatch(name) for name in tensors)
    return {match["module"] for match in matches if match}


def _renamed(name: str, family: Family) -> str:
    """The name in the text model of what a multimodal checkpoint calls otherwise."""
    for pattern, replacement in family.renames:
        name = re.sub(pattern, replacement, name)
    return name


def _refuse_one_of_tied(
    tensors: Mapping[str, Tensor], base: PreTrainedModel, tables: tuple[Any, Any], directory: Path
) -> None:
    """Factors of a tied table, or two tables that differ: the base has one, PEFT computes with two."""
    names = [name for name, module in base.named_modules() if any(module is table for table in tables)]
    table_tensors = [tensors[key] for name in names if (key := f"{name}.weight") in tensors]
    differ = len(table_tensors) == 2 and not torch.equal(*table_tensors)
    if differ or _factors(tensors) & set(names):
        raise _changed_apart(directory)


def _tie_again(merged: PreTrainedModel, directory: Path) -> None:
    """Make one weight of two tables that were one before; `InputError` where they now differ."""
    first: Any = merged.get_input_embeddings()
    second: Any = merged.get_output_embeddings()
    if not torch.equal(first.weight, second.weight):
        raise _changed_apart(directory)
    second.weight = first.weight


def _changed_apart(directory: Path) -> InputError:
    return InputError(
        "expected the input and the output table changed alike, which are one weight of the base model, "
        f"found them changed apart by the adapter {directory}: merge it with PEFT into a base with "
        "tie_word_embeddings false, save that, and load it"
    )


def _words(values: Mapping[str, Any]) -> str:
    """Its kind, rank and alpha, of the modules for which no pattern says another."""
    kinds = {"use_rslora": ", rank-stabilised", "use_dora": ", DoRA"}
    kind = "".join(words for name, words in kinds.items() if values.get(name))
    varied = ", others by module" * any(bool(values.get(name)) for name in _PATTERNS)
    return f"LoRA{kind}, r {values['r']}, alpha {values.get('lora_alpha')}{varied}"


def _hash_of(directory: Path) -> str:
    with (directory / ADAPTER_WEIGHTS).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def _require_names(names: Any, setting: str, values: Mapping[str, Any], file: Path) -> None:
    _require(all(_NAME.fullmatch(name) for name in names), f"names of modules as {setting}", setting, values, file)


def _require(good: bool, expected: str, name: str, values: Mapping[str, Any], file: Path) -> None:
    if not good:
        raise InputError(f"expected {expected} in {file}, found {name} = {short_repr(values.get(name))}: {_REMEDY}")
