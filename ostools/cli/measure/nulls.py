"""`ostools nulls`: a measured profile beside those of null models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.mitigated import Acting, Under
from ostools.cli.kit.options import Device, Dtype, InChat, Model, Out, System, Thinking
from ostools.cli.kit.prompts import Ids, Prompt, given_prompt
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import Nulls
    from ostools.measure.passes.cost import Cost
    from ostools.runs.forecast.forecast import Unloaded


def nulls(
    prompt: Prompt = None,
    ids: Ids = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="initialised, embeddings-kept, shuffled; repeatable. Default: initialised."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="How many null models of each kind, from seed 0.", min=1)] = 3,
    measure: Annotated[
        str, typer.Option(metavar="NAME", help="sensitivity, or a prediction of it such as second-moment or cesaro.")
    ] = "sensitivity",
    linearisation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of sensitivity: full (the default), frozen, frozen-attention, frozen-norm, detached."
        ),
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Ask what of a profile was there before training.

    The sensitivity of the last token to each other, or a prediction of it, of the model and of null models: the same
    configuration with fresh weights, or with its own in another order.

    \b
    Example:
      ostools nulls --prompt "Once upon a time" --kind initialised --kind shuffled --out nulls.png
      ostools nulls --prompt "Once upon a time" --measure second-moment
    """
    from ostools import measure as measurements
    from ostools.cli.kit import costs
    from ostools.ground.names import checked_names
    from ostools.measure.paths.cost import path_sum_cost
    from ostools.measure.profiles.nulls import SENSITIVITY, Measured
    from ostools.models.null import KINDS

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])
    kinds = checked_names("kind of null model", kind or ("initialised",), KINDS)
    asked = Measured.asked(measure, linearisation, None)

    def cost(on: Unloaded) -> Cost:
        times = 1 + len(kinds) * seeds
        if measure == SENSITIVITY:
            one = costs.sensitivity(turn.of(on), under.read, (asked.linearisation,), (0,), "auto")
        else:
            one = path_sum_cost(on.shape, turn.of(on).pos(under.one), (measure,))
        # Each again under the cesaro path sum beside it.
        return (one + under.cost(turn.of(on)) * 2) * times

    with at_work("differentiating", model, device, dtype, cost) as (loaded, progress):
        words = turn.prompt(loaded, given)
        result = measurements.nulls(
            loaded,
            words,
            measure=measure,
            kinds=kinds,
            seeds=range(seeds),
            linearisation=linearisation,
            max_memory=MANNERS.max_memory,
            mitigation=under.given,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: Nulls) -> None:
    table: Any = result.summary.drop(columns="weight_hash").astype({"seed": object})
    words = ["source", "seed", "verdict"]
    numbers = [name for name in table.columns if name not in words]
    rows = table[words + numbers].itertuples(index=False, name=None)
    output.print_table("Profiles of the model and of its null models", [*words, *numbers], rows, left=3)
