"""Bytes that the largest step of a command holds beside a model, forecast before the model is loaded.

The record of a measurement names the function that counts them, which stands beside what is large
(`measure.unloaded`). It takes those of the command's arguments that it has as parameters; `pos` are
the tokens of the longest prompt, as a mitigation rewrites it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mitigations import optional
from ostools.cli.commands import Command
from ostools.cli.prompts import Prompts, rewritten
from ostools.cli.signature import UNKNOWN, imported, signature_of
from ostools.measure.mitigated_prompts import acting_bytes
from ostools.measure.unloaded import Unloaded

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""


def memory_of(command: Command, values: Mapping[str, Any]) -> Memory:
    """Bytes that the largest step of a command holds beside a model, as a function of the model."""
    function = imported(f"ostools.{command.memory}")
    defaults = {parameter.name: parameter.default for parameter in signature_of(command.function).parameters}
    defaults = {name: value for name, value in defaults.items() if value is not UNKNOWN and value is not None}
    names = inspect.signature(function).parameters
    arguments = {name: value for name, value in {**defaults, **values}.items() if name in names}
    prompts, mitigation = values.get("prompt", values.get("prompts")), values.get("mitigation")
    if "pos" not in names or not isinstance(prompts, Prompts):
        return lambda model: function(model, **arguments)

    def memory(model: Unloaded) -> int:
        """The work on the longest prompt, and the pass that shows whether a mitigation acts."""
        in_chat = replace(model, chat=prompts.wrapped or {})
        pos = max(map(in_chat.pos, rewritten(prompts, mitigation)))
        return max(acting_bytes(model.shape, pos, optional(mitigation)), function(model, pos, **arguments))

    return memory
