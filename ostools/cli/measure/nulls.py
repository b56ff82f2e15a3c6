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
    from ostools.runs.forecast import Unloaded


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
    linearisation: Annotated[
        str, typer.Option(metavar="NAME", help="full, frozen, frozen-attention, frozen-norm, detached.")
    ] = "full",
    method: Annotated[str, typer.Option(metavar="NAME", help="auto, exact, sketch, estimate.")] = "auto",
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Ask what of a profile was there before training.

    The sensitivity of the last token to each other, of the model and of null models: the same configuration with fresh
    weights, or with its own in another order.

    \b
    Example:
      ostools nulls --prompt "Once upon a time" --kind initialised --kind shuffled --out nulls.png
    """
    from ostools import measure
    from ostools.cli.kit import largest
    from ostools.ground.names import checked_name, checked_names
    from ostools.measure.jacobian.linearisations import LINEARISATIONS
    from ostools.models.null import KINDS

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])
    kinds = checked_names("kind of null model", kind or ("initialised",), KINDS)
    checked_name("linearisation", linearisation, LINEARISATIONS)

    def memory(on: Unloaded) -> int:
        profile = under.memory(turn.of(on), lambda pos: largest.sensitivity(on, pos, (linearisation,), method=method))
        return profile + on.shape.element * on.shape.parameters  # a null model stands beside the model

    with at_work("differentiating", model, device, dtype, memory) as (loaded, progress):
        words = turn.prompt(loaded, given)
        result = measure.nulls(
            loaded,
            words,
            kinds=kinds,
            seeds=range(seeds),
            linearisation=linearisation,
            method=method,
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
