"""`ostools contributions`: what each token contributes to the logit of the next one, in parts that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import Device, Dtype, InChat, Model, Out, System, Thinking
from ostools.cli.kit.prompts import Ids, Prompt, given_prompt
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import Contributions, Sensitivity
    from ostools.measure.passes.cost import Cost
    from ostools.runs.forecast.forecast import Unloaded

_COMPARED = ("full", "frozen", "detached")


def contributions(
    prompt: Prompt = None,
    ids: Ids = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    towards: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The next token that is meant. Else the one that ranks first.")
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Split the next token's logit into parts of the tokens, which add up.

    With patterns, norm scales and activations held as they are on the prompt. The biases' part is a row of its own. On the
    terminal with rank correlations of the parts' sizes with the measured sensitivity.

    \b
    Example:
      ostools contributions --prompt "Once upon a" --out parts.png
    """
    from ostools import measure
    from ostools.cli.kit import costs
    from ostools.measure.passes.cost import pass_cost

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    alone = out is not None or MANNERS.json

    def cost(on: Unloaded) -> Cost:
        parts = pass_cost(on.shape, turn.of(on).pos(given), 16)
        return parts if alone else parts + costs.sensitivity(turn.of(on), [given], _COMPARED, (0,), "auto")

    with at_work("splitting the logit", model, device, dtype, cost) as (loaded, progress):
        words = turn.prompt(loaded, given)
        result = measure.contributions(loaded, words, towards=towards)
        measured = None
        if not alone:
            measured = measure.sensitivity(
                loaded, words, linearisations=_COMPARED, max_memory=MANNERS.max_memory, progress=progress
            )
    give(result, out, lambda result: _show(result, measured))


def _show(result: Contributions, measured: Sensitivity | None) -> None:
    from ostools.reporting.look.theme import display_token

    said, frame, table = result.provenance.parameters, result.of_tokens, result.frame["contribution"].to_numpy()
    rows: list[tuple[Any, ...]] = [
        (int(position), display_token(str(token)), float(value))
        for position, token, value in zip(frame["position"], frame["token"], frame["contribution"], strict=True)
    ]
    biases, total = float(table[-1]), float(table.sum())
    title = f"Contributions to the logit of {display_token(str(said['token']))}"
    output.print_table(title, ["position", "token", "contribution"], [*rows, ("", "biases", biases)], left=2)
    cap = said["soft_cap"]
    behind = "" if cap is None else f" before the soft-cap; {float(said['logit']):.6g} behind it"
    output.print_text(
        ["", f"together {total:.6g}, the logit{behind}; off by {float(said['adds_up_within']):.1g} of its parts"]
    )
    if measured is not None:
        ranks = result.against(measured)
        output.print_text([""])
        output.print_table(
            "Rank correlation of the sizes of the parts with the measured sensitivity",
            ["linearisation", "norm", "spearman"],
            ranks[["linearisation", "norm", "spearman"]].itertuples(index=False, name=None),
            left=2,
        )
