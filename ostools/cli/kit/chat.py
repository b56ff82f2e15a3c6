"""`--chat`, `--system` and `--thinking` of the commands that measure on a text."""

from __future__ import annotations

from dataclasses import InitVar, asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.cli.kit.prompts import Given
    from ostools.models import Prompt
    from ostools.runs.forecast import Unloaded


@dataclass(frozen=True)
class Turn:
    """How a text is put to a model: plain, or as a user's turn in its chat template. `InputError` for what needs a template."""

    chat: bool
    system: str | None
    thinking: bool
    ids: InitVar[object] = None

    def __post_init__(self, ids: object) -> None:
        from ostools.ground.errors import InputError

        given = "--system" if self.system is not None else "--thinking"
        if not self.chat and (self.system is not None or self.thinking):
            raise InputError(f"{given}: expected --chat beside it, found none: only a chat template uses it")
        if self.chat and ids:
            raise InputError(
                "--chat: expected --prompt beside it, found --ids: a chat template is written around a text"
            )

    def of(self, on: Unloaded) -> Unloaded:
        """The model whose prompts are counted so."""
        return replace(on, chat=asdict(self))

    def prompt(self, model: TransformerBridge, given: Given) -> str | Prompt:
        """The prompt as measurements take it: in tokens, or a text as it is where no template is asked for."""
        from ostools.models import Prompt, encode

        if not isinstance(given, str):
            return Prompt.from_ids(model, given)
        return encode(model, given, **asdict(self)) if self.chat else given


PLAIN = Turn(chat=False, system=None, thinking=False)
