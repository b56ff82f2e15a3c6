"""adapter_config.json of a LoRA, as PEFT writes it: which modules it changes and by how much, or why it is not merged."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex

from ostools.ground.errors import InputError, shown
from ostools.models.files.checks import one_line, read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_REMEDY = "merge it with PEFT (`merge_and_unload`), save the whole model, and load that"
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",  # the module says which way its matrix stands; PEFT goes by it too
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
_READ = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "modules_to_save",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_dora",
        "use_rslora",
    }
)
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""The ways of `init_lora_weights` that leave the base model's weights as they are; others (PiSSA, OLoRA) do not."""
_LONGEST_PATTERN = 10_000
_LAYER = r".*?\.[^.]*\.(?P<index>\d+)\."


@dataclass
class _Matching:
    """Regular expressions of a file, which have `seconds` in all to match: a pattern that backtracks might never end."""

    file: Path
    seconds: float = 2.0

    def match(self, pattern: str, text: str) -> regex.Match[str] | None:
        """Where the text begins with the pattern. Raises `InputError` for no pattern, and for one that takes too long."""
        if len(pattern) > _LONGEST_PATTERN:
            raise self._refusal(f"one of {len(pattern)} characters")
        begin = time.perf_counter()
        try:
            found = regex.match(pattern, text, timeout=max(self.seconds, 0.01))
        except TimeoutError:
            raise self._refusal(f"{shown(pattern)}, which takes too long to match") from None
        except (regex.error, RecursionError) as error:
            raise self._refusal(f"one that is neither: {one_line(error)}") from None
        self.seconds -= time.perf_counter() - begin
        return found

    def _refusal(self, found: str) -> InputError:
        return InputError(f"expected names or regular expressions in {self.file}, found {found}")


@dataclass(frozen=True)
class LoraSettings:
    """What of adapter_config.json decides what is computed."""

    file: Path
    values: Mapping[str, Any]
    matching: _Matching = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matching", _Matching(self.file))

    @classmethod
    def read(cls, directory: Path) -> LoraSettings:
        """Those of a LoRA for a causal language model; `InputError` for another adapter, and for a setting that is not read."""
        file = directory / ADAPTER_CONFIG
        values = read_json(file)
        _require(values.get("peft_type") == "LORA", file, "peft_type LORA", "peft_type", values)
        _require(values.get("task_type") in ("CAUSAL_LM", None), file, "task_type CAUSAL_LM", "task_type", values)
        _require(values.get("bias", "none") == "none", file, "bias none", "bias", values)
        start = values.get("init_lora_weights", True)
        _require(
            any(start is one or (isinstance(start, str) and start == one) for one in _STARTS),
            file,
            "a base model that training began from as it is",
            "init_lora_weights",
            values,
        )
        # What PEFT has switched off is None, False or empty; of what a newer version switches on nothing is known here.
        for name in sorted(set(values) - _WITHOUT_EFFECT - _READ):
            _require(not values[name], file, "only settings that are known here", name, values)
        found = cls(file, values)
        found.check()
        return found

    def check(self) -> None:
        """Each value is of the kind that PEFT writes."""
        file, values = self.file, self.values
        for name in ("r", "lora_alpha"):
            _require(_is_size(values.get(name)), file, f"a number above 0 as {name}", name, values)
        for name in ("rank_pattern", "alpha_pattern"):
            pattern = values.get(name) or {}
            good = isinstance(pattern, dict) and all(_is_size(value) for value in pattern.values())
            _require(good, file, f"numbers above 0 by module as {name}", name, values)
        for name in ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern"):
            value = values.get(name) or []
            good = isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
            _require(good, file, f"names of modules as {name}", name, values)
        layers = values.get("layers_to_transform")
        good = layers is None or all(type(one) is int for one in _several(layers))
        _require(good, file, "numbers of layers as layers_to_transform", "layers_to_transform", values)
        _require(bool(values.get("target_modules")), file, "the modules that it changes", "target_modules", values)

    def scale(self, module: str, rank: int) -> float:
        """alpha / r of a module, alpha / sqrt(r) of a rank-stabilised LoRA; `InputError` for another rank than it says."""
        r = self._of(module, "rank_pattern", "r")
        if r != rank:
            raise InputError(
                f"expected {module} of rank {r} as {self.file} says, found {rank}: are both of one adapter?"
            )
        return self._of(module, "alpha_pattern", "lora_alpha") / (math.sqrt(r) if self.values.get("use_rslora") else r)

    @property
    def dora(self) -> bool:
        """Whether rows are scaled to lengths of their own."""
        return bool(self.values.get("use_dora"))

    def targets(self, module: str) -> bool:
        """Whether it changes that module by two factors."""
        targets, without = self.values["target_modules"], self.values.get("exclude_modules") or []
        if self._named(without, module) or self.saves(module):
            return False
        whole_name = isinstance(targets, str) or module in targets
        return self._named(targets, module) and (whole_name or self._in_layers(module))

    def saves(self, module: str) -> bool:
        """Whether it brings that module whole, or one around it."""
        return any(f".{name}." in f".{module}." for name in _several(self.values.get("modules_to_save") or []))

    @property
    def words(self) -> str:
        """Its kind, rank and alpha, of the modules for which no pattern says another."""
        kinds = [
            word for name, word in (("use_rslora", "rank-stabilised"), ("use_dora", "DoRA")) if self.values.get(name)
        ]
        varied = ", others by module" if self.values.get("rank_pattern") or self.values.get("alpha_pattern") else ""
        return f"LoRA{''.join(f', {kind}' for kind in kinds)}, r {self.values['r']}, alpha {self.values['lora_alpha']}{varied}"

    def _of(self, module: str, pattern: str, default: str) -> int | float:
        """The value of the first name in the pattern that the module's own ends with."""
        for name, value in (self.values.get(pattern) or {}).items():
            if self._matches_whole(rf"(.*\.)?({name})", module):
                return value
        return self.values[default]

    def _named(self, names: str | list[str], module: str) -> bool:
        """By a regular expression, or by a list of names that a module's own may end with."""
        if isinstance(names, str):
            return self._matches_whole(names, module)
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _in_layers(self, module: str) -> bool:
        layers, named = self.values.get("layers_to_transform"), self.values.get("layers_pattern") or []
        if layers is None or layers == []:
            return True
        patterns = [rf"(?:^|.*?\.){name}\.(?P<index>\d+)\." for name in _several(named)] or [_LAYER]
        found = (self.matching.match(pattern, module) for pattern in patterns)
        return next((int(one["index"]) in _several(layers) for one in found if one), False)

    def _matches_whole(self, pattern: str, module: str) -> bool:
        return self.matching.match(rf"(?:{pattern})\Z", module) is not None


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _require(good: bool, file: Path, expected: str, name: str, values: Mapping[str, Any]) -> None:
    if not good:
        raise InputError(f"expected {expected} in {file}, found {name} = {shown(values.get(name))}: {_REMEDY}")
