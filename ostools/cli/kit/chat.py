"""`--chat`, `--system` and `--thinking` of the commands that measure on a text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.models import Prompt
    from ostools.runs.forecast.forecast import Unloaded


@dataclass(frozen=True)
class Turn:
    """How a text is put to a model: plain, or as a user's turn in its chat template. `InputError` for what needs a template."""

    chat: bool
    system: str | None
    thinking: bool

    def __post_init__(self) -> None:
        from ostools.ground.errors import InputError

        given = "--system" if self.system is not None else "--thinking"
        if not self.chat and (self.system is not None or self.thinking):
            raise InputError(f"{given}: expected --chat beside it, found none: only a chat template knows of it")

    def of(self, on: Unloaded) -> Unloaded:
        """The model whose prompts are counted so."""
        return replace(on, chat=asdict(self))

    def prompt(self, model: TransformerBridge, text: str) -> str | Prompt:
        """The text in tokens, or as it is where no template is asked for."""
        from ostools.models import encode

        return encode(model, text, **asdict(self)) if self.chat else text
