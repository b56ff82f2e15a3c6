"""Functions with which a model computes attention, masks and experts: transformers' own, or the
model is refused.

A configuration names them, and anybody may register another under any name, "sdpa" and "eager" too.
ostools rebuilds a model with functions of its own choice: another would be left out, or measured as
if it were transformers', without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from ostools.ground.errors import InputError, short_repr
from ostools.ground.lens import PreTrainedConfig

CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Where a configuration in memory holds the names of its functions."""
_ATTENTION, _EXPERTS = CHOICES
_CHOSEN = ("eager", "sdpa")
"""What ostools itself computes with, whatever a configuration names."""
_NAMED = (
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "_experts_implementation",
)
"""Settings of a config.json that transformers reads as such a name."""
_KERNELS = "kernels-community/"
"""Of whom transformers takes flash attention where the package is missing
(`FLASH_ATTN_KERNEL_FALLBACK`).
"""


def configurations(model: nn.Module) -> list[PreTrainedConfig]:
    """Every configuration that a module of the model computes by."""
    settings = [getattr(part, "config", None) for part in model.modules()]
    return list(
        {id(config): config for config in settings if isinstance(config, PreTrainedConfig)}.values()
    )


def require_own_functions(model: nn.Module, what: str) -> None:
    """Raise `InputError` if a module computes attention, its mask or experts with a function that
    transformers has not.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    homes = {type(part).__module__ for part in model.modules()}
    attention = [
        vars(sys.modules[home]).get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
        for home in homes
    ]
    for config in configurations(model):
        for kind, choice, registries in (
            ("attention", _ATTENTION, attention),
            ("attention mask", _ATTENTION, [ALL_MASK_ATTENTION_FUNCTIONS]),
            ("experts", _EXPERTS, [ALL_EXPERTS_FUNCTIONS]),
        ):
            for name in (getattr(config, choice, None), *_CHOSEN):
                functions = [registry.get(name) for registry in registries]
                for function in functions:
                    if function is not None and not _is_own(str(name), function):
                        raise _foreign(kind, name, what, f", which is {_called(function)}")


def require_own_names(settings: Mapping[str, Any], what: str) -> None:
    """Raise `InputError` if a config.json, or a configuration in it, names attention or experts
    that transformers has not.
    """
    for setting in _NAMED:
        names = settings.get(setting)
        for name in names.values() if isinstance(names, Mapping) else [names]:
            if name is None or name == "eager" or str(name).startswith(_KERNELS):
                continue
            function = _registered(setting, str(name).removeprefix("paged|"))
            if function is None or not _is_own(name, function):
                raise _foreign(setting, name, what, "")
    for inner in settings.values():
        if isinstance(inner, Mapping):
            require_own_names(inner, what)


def _registered(setting: str, name: str) -> Any:
    """The function of that name, of attention or of experts; None where there is none."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return (ALL_EXPERTS_FUNCTIONS if "experts" in setting else ALL_ATTENTION_FUNCTIONS).get(name)


def _is_own(name: str, function: Any) -> bool:
    """Whether it stands in a module of transformers, or of ostools, under its own name
    (`functools.wraps` gives names, not places)."""
    home = str(getattr(function, "__module__", None))
    stands = getattr(sys.modules.get(home), getattr(function, "__name__", ""), None) is function
    return name.startswith(_KERNELS) or (home.startswith(("transformers.", "ostools.")) and stands)


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None)}.{name}"


def _foreign(kind: str, name: Any, what: str, which: str) -> InputError:
    return InputError(
        f"expected {kind} that is transformers' own in {what}, found {short_repr(name)}{which}: it would not be measured; "
        "choose 'eager' or 'sdpa', and make a change of attention with hooks or a mitigation"
    )
