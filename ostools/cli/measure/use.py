"""What the model makes of each token: `ostools contributions`, parts of a logit; `ostools faithfulness`, what is lost
without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.mitigated import Acting, Under
from ostools.cli.kit.options import At, Device, Dtype, InChat, Model, Out, System, Thinking
from ostools.cli.kit.prompts import Ids, Prompt, given_prompt
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import Contributions, Faithfulness, Sensitivity
    from ostools.runs.forecast import Unloaded

_COMPARED = ("full", "frozen", "detached")
_DRAWS, _ORDERS, _STEPS = 4, 40, 12


def contributions(
    prompt: Prompt = None,
    ids: Ids = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    towards: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The next token that is meant. Default: the one that ranks first."),
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Split the next token's logit into parts of the tokens, which add up.

    Patterns, norm scales and activations are held as they are on the prompt. The part of the biases is a row of its own. The
    terminal also shows rank correlations of the parts' sizes with the measured sensitivity.

    \b
    Example:
      ostools contributions --prompt "Once upon a" --out parts.png
    """
    from ostools import measure
    from ostools.cli.kit import largest
    from ostools.measure.passes.memory import patterns_bytes

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])
    alone = out is not None or MANNERS.json

    def memory(on: Unloaded) -> int:
        def parts(pos: int) -> int:
            beside = 0 if alone else largest.sensitivity(on, pos, _COMPARED)
            return max(patterns_bytes(on.shape, pos), beside)

        return under.memory(turn.of(on), parts)

    with at_work("splitting the logit", model, device, dtype, memory, counted=not alone) as (loaded, progress):
        words = turn.prompt(loaded, given)
        acting: dict[str, Any] = {"mitigation": under.given}
        result = measure.contributions(loaded, words, towards=towards, **acting)
        measured = None
        if not alone:
            measured = measure.sensitivity(
                loaded, words, linearisations=_COMPARED, max_memory=MANNERS.max_memory, progress=progress, **acting
            )
    give(result, out, lambda result: _show_parts(result, measured))


def _show_parts(result: Contributions, measured: Sensitivity | None) -> None:
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
    behind = "" if cap is None else f" before the soft-cap; {float(said['logit']):.6g} after it"
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


def faithfulness(
    prompt: Prompt = None,
    ids: Ids = None,
    at: At = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    towards: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The answer, one token. Default: the one that ranks first.")
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="removed, replaced, masked; repeatable. Default: all three."),
    ] = None,
    linearisation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of the measured profiles; repeatable. Default: full and frozen."),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Path sums beside them; repeatable. Default: none."),
    ] = None,
    orders: Annotated[int, typer.Option(metavar="N", help="Random orders of deletion.", min=19)] = _ORDERS,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.", min=0)] = 0,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Ask whether sensitivity is use: take tokens out.

    Each token before the last is removed, replaced by another of its kind, and masked in attention. How far the last
    representation, the answer and the next token move is ranked beside what was measured of the token. Then more
    and more tokens go, in the order of each profile and in random order. With --at the answer is the token after that position,
    and tokens are taken out before it.

    \b
    Example:
      ostools faithfulness --prompt "Once upon a time, a girl named Ann had a" --out use.png
    """
    from ostools import measure
    from ostools.cli.kit import largest
    from ostools.ground.names import checked_names
    from ostools.measure.faithfulness.without import WAYS, cases_bytes
    from ostools.measure.jacobian.linearisations import LINEARISATIONS
    from ostools.measure.passes.output import read_up_to
    from ostools.measure.paths.memory import path_sum_bytes
    from ostools.measure.paths.variants import checked_variants

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])
    ways = checked_names("way", way or WAYS, WAYS)
    names = checked_names("linearisation", linearisation or ("full", "frozen"), LINEARISATIONS)
    variants = checked_variants(variant) if variant else ()
    positions = "last" if at is None else "all"

    def memory(on: Unloaded) -> int:
        def parts(pos: int) -> int:
            beside = largest.sensitivity(on, pos, names, at=at)
            beside = max(beside, path_sum_bytes(on.shape, pos, variants)) if variants else beside
            return max(beside, cases_bytes(on.shape, read_up_to(at, pos)))

        return under.memory(turn.of(on), parts)

    with at_work("taking tokens out", model, device, dtype, memory) as (loaded, progress):
        words = turn.prompt(loaded, given)
        how: dict[str, Any] = {"max_memory": MANNERS.max_memory, "mitigation": under.given}
        measured = measure.sensitivity(loaded, words, linearisations=names, at=at, **how)
        paths = [measure.path_sum(loaded, words, variants=variants, positions=positions, **how)] if variants else []
        numbers: dict[str, Any] = {"draws": _DRAWS, "orders": orders, "steps": _STEPS, "seed": seed}
        result = measure.faithfulness(
            loaded,
            [measured, *paths],
            towards=towards,
            ways=ways,
            mitigation=under.given,
            **numbers,
            progress=progress,
        )
    give(result, out, _show_use)


def _show_use(result: Faithfulness) -> None:
    from ostools.measure.faithfulness.faithfulness import BETWEEN
    from ostools.reporting.findings.faithfulness import faithfulness_findings

    output.print_text(faithfulness_findings(result))
    table: Any = result.correlations
    columns = ["way", "effect", "kind", "profile", "spearman", "low", "high"]
    rows = table.loc[table["kept"] == BETWEEN, columns].itertuples(index=False, name=None)
    output.print_table("Rank correlation of what is lost without a token with its profile", columns, rows, left=4)
    columns = ["way", "order", "aopc", "random", "random_low", "random_high", "p"]
    rows = result.areas[columns].itertuples(index=False, name=None)
    output.print_table("Deletion curves: mean loss of log p (AOPC), beside random orders", columns, rows, left=2)
