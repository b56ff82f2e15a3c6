"""`--mitigation` of the commands that measure on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ostools.cli.kit.prompts import Given
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from mitigations import Mitigation
    from ostools.measure.passes.cost import Cost
    from ostools.runs.forecast.forecast import Unloaded

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

    @property
    def one(self) -> Given:
        """The only prompt."""
        (found,) = self.read
        return found

    def cost(self, on: Unloaded) -> Cost:
        """What it takes to see that it acts on every prompt."""
        from ostools.measure.mitigated import acting_cost
        from ostools.measure.passes.cost import Cost

        each = (acting_cost(on.shape, on.pos(one), self.given) for one in self.read if self.given is not None)
        return sum(each, Cost())
