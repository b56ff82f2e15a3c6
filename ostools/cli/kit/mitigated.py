"""`--mitigation` of the commands that measure on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ostools.cli.kit.prompts import Given
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from mitigations import Mitigation
    from ostools.runs.forecast import Unloaded

Under = Annotated[
    str | None,
    typer.Option(
        "--mitigation",
        metavar="NAME[:OPTIONS]",
        help="Measure under it, such as sliding-window:window=16; ostools mitigations lists them.",
    ),
]


@dataclass(frozen=True)
class Acting:
    """A mitigation, None for none, and the prompts as it rewrites their texts: what a forecast is of."""

    given: Mitigation | None
    read: tuple[Given, ...]

    @classmethod
    def of(cls, spec: str | None, prompts: Sequence[Given]) -> Acting:
        """Refuses, by the options' names and before a model is loaded, what cannot rewrite these prompts."""
        if spec is None:
            return cls(None, tuple(prompts))
        from mitigations import mitigation, parts, rewrite
        from ostools.measure.mitigated import rewrites

        given = mitigation(spec)
        if any(rewrites(part, "sequence") for part in parts(given)):
            raise InputError(
                f"--mitigation {spec}: it rewrites the sequence of a task, and a text has none: `ostools prompts --task NAME "
                f"--mitigation {spec}` writes the prompts that it makes; measure those, without --mitigation"
            )
        if any(rewrites(part, "prompt") for part in parts(given)) and not all(isinstance(one, str) for one in prompts):
            raise InputError(f"--mitigation {spec}: it rewrites the text, expected --prompt beside it, found token ids")
        return cls(given, tuple(rewrite(given, one) if isinstance(one, str) else one for one in prompts))

    def memory(self, on: Unloaded, largest: Callable[[int], int]) -> int:
        """Bytes that the work holds: `largest` of the tokens of the longest prompt, or what it takes
        to see that the mitigation acts there."""
        from ostools.measure.mitigated import acting_bytes

        pos = max(on.pos(one) for one in self.read)
        return max(largest(pos), acting_bytes(on.shape, pos, self.given))
