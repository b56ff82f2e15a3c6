"""Effect status of a mitigation on a question, evaluated on the model that a number is measured on.

The precision decides: what computes a 16-bit model in float32 changes nothing of a float32 copy, and numbers taken there say
nothing of it.
"""

from __future__ import annotations

from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation, acts, changes_pass, label, parts
from ostools.measure.task_prompt import TaskPrompt

ACTIVE, INACTIVE, REFUSED = "active", "inactive", "refused"


class EffectStatus:
    """Effect status of one mitigation, or none, on `model` as the user gave it and on copies of it.

    Each part of a composed one is tried alone: a part that a copy silences must not hide behind one that acts there.
    """

    def __init__(self, model: TransformerBridge, mitigation: Mitigation | None) -> None:
        self.model, self.mitigation = model, mitigation
        self.parts = [part for part in parts(mitigation) if changes_pass(part)]
        self._known: dict[tuple[int, int, int], bool] = {}

    def status(self, task_prompt: TaskPrompt, on: TransformerBridge | None = None) -> tuple[str, str]:
        """The status of a question measured `on` that model (None: the user's own), and the reason of a refusal.

        Active: its text, or a logit bit for bit, is another; inactive: neither is, there and on the user's model; refused: a
        part of the mitigation acts on the user's model and not there. Cost: two forward passes for each part with hooks.
        """
        if self.mitigation is None:
            return ACTIVE, ""
        on, active = on or self.model, task_prompt.rewritten
        for index, part in enumerate(self.parts):
            if self._acts(on, index, task_prompt):
                active = True
            elif on is not self.model and self._acts(self.model, index, task_prompt):
                dtype = str(next(on.parameters()).dtype).removeprefix("torch.")
                return REFUSED, f"{label(part)} changes nothing in {dtype}"
        return (ACTIVE if active else INACTIVE), ""

    def _acts(self, on: TransformerBridge, index: int, task_prompt: TaskPrompt) -> bool:
        if on is not self.model:
            return acts(on, self.parts[index], task_prompt.prompt.ids)
        key = index, task_prompt.length, task_prompt.seed
        if key not in self._known:
            self._known[key] = acts(on, self.parts[index], task_prompt.prompt.ids)
        return self._known[key]


def of_pair(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    """Effect status of an (n, n + 1) pair: active where one of the two questions is."""
    order = (ACTIVE, REFUSED, INACTIVE)
    return min(first, second, key=lambda status: order.index(status[0]))
