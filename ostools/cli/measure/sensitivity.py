"""`ostools sensitivity` and `ostools path-sum`: how much the last token depends on each, measured, and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.mitigated import Acting, Under
from ostools.cli.kit.options import (
    At,
    Cotangents,
    Device,
    Dtype,
    InChat,
    Method,
    Model,
    Out,
    System,
    Thinking,
    parse_layers,
)
from ostools.cli.kit.prompts import ManyIds, Prompts, PromptsFile, given_prompts
from ostools.cli.kit.steps import at_work, check, give_all
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.measure import PathSum, Sensitivity
    from ostools.runs.forecast import Unloaded


def sensitivity(
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    ids: ManyIds = None,
    linearisation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="full, frozen, frozen-attention, frozen-norm, detached; repeatable. Default: full and frozen.",
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(metavar="WHICH", help="Residual streams: 0 (the embeddings), 0,2 or all, from the same passes."),
    ] = "0",
    method: Method = "auto",
    cotangents: Cotangents = 8,
    relative_error: Annotated[
        float, typer.Option(metavar="X", help="An estimate takes cotangents until every interval is that narrow.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the cotangents.")] = 0,
    at: At = None,
    towards: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="A next token whose logit is meant; given twice, the first minus the second."
        ),
    ] = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Measure how much the last token depends on each token.

    The norms of d y_n / d v_i for every token i, exact or estimated. Nothing is held constant (full), or attention patterns
    and norm scales are (frozen). Every run is checked by finite differences. By default norms are exact up to d_model 256, and
    a sketch of 8 random cotangents above: Frobenius norms with their 95% intervals, at the cost of about 8 forward passes.

    Several prompts come as one table, with their numbers from 1 in the column prompt, and as one chart, of their mean over
    relative position. Prompts of one length share their passes. Finite differences are then taken of one of them, and the
    others are held against a row of autograd.

    \b
    Example:
      ostools sensitivity --prompt "The capital of France is" --out france.html
      ostools sensitivity --prompt "The capital of France is" --layers all --out layers.png
      ostools sensitivity --prompt "The capital of France is" --method sketch --cotangents 16
      ostools sensitivity --prompts prompts.jsonl --out norms.parquet
      ostools sensitivity --ids 2,40,50 --model ./my-model
      ostools sensitivity --prompt "Once upon a" --towards " time" --towards " day"
    """
    from ostools import measure
    from ostools.cli.kit import largest
    from ostools.ground.names import checked_names
    from ostools.measure.jacobian.linearisations import LINEARISATIONS

    given, turn = given_prompts(prompt, prompts, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, given)
    check(out)
    names = checked_names("linearisation", linearisation or ("full", "frozen"), LINEARISATIONS)
    wanted, meant = parse_layers(layers), _towards(towards, method, names)

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"at": at, "one_row": meant is not None, "cotangents": cotangents}
        how |= {"layers": wanted, "method": method}
        return under.memory(turn.of(on), lambda pos: largest.sensitivity(on, pos, names, **how))

    with at_work("differentiating", model, device, dtype, memory) as (loaded, progress):
        found = measure.sensitivity(
            loaded,
            [turn.prompt(loaded, one) for one in given],
            linearisations=names,
            layers=wanted,
            method=method,
            cotangents=cotangents,
            relative_error=relative_error,
            seed=seed,
            at=at,
            towards=meant,
            mitigation=under.given,
            max_memory=MANNERS.max_memory,
            announce=_announce,
            progress=progress,
        )
    give_all(found, out, _show_sensitivity)


def _towards(given: list[str] | None, method: str, names: Sequence[str]) -> str | tuple[str, ...] | None:
    """One token, or two for a difference. Refuses, by the options' names, what is not measured of a logit."""
    if not given:
        return None
    if len(given) > 2:
        raise InputError(
            f"--towards: expected one token, or two for the difference of their logits, found {len(given)}"
        )
    if method in ("sketch", "estimate"):
        raise InputError(f"--towards: a logit's sensitivity is exact, found --method {method}: leave --method out")
    if "detached" in names:
        raise InputError(
            "--towards: found --linearisation detached: use `ostools contributions --towards`, which has its parts"
        )
    return given[0] if len(given) == 1 else tuple(given)


def path_sum(
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    ids: ManyIds = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="local, windowed(k), theorem-5.1, theorem-b5[-literal], proof; repeatable. Without it: local.",
        ),
    ] = None,
    positions: Annotated[
        str, typer.Option(metavar="WHICH", help="last, or all: the triangular matrix (to a table file).")
    ] = "last",
    mlp_norm: Annotated[
        str,
        typer.Option(metavar="NAME", help="svd (exact) or product (cheaper, looser)."),
    ] = "svd",
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Bound sensitivity (Theorem 5.1), and say what the forms that are no bounds are worth.

    The sum over paths from every token to the last, from one forward pass without a gradient. Several prompts come as one
    table, with their numbers from 1 in the column prompt, and as one chart, of their mean over relative position.

    \b
    Example:
      ostools path-sum --prompt "The capital of France is" --variant local --variant proof
    """
    from ostools import measure
    from ostools.measure.paths.memory import path_sum_bytes
    from ostools.measure.paths.variants import USUAL, checked_variants

    check(out)
    given, turn = given_prompts(prompt, prompts, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, given)
    names = checked_variants(variant or USUAL)

    def memory(on: Unloaded) -> int:
        return under.memory(turn.of(on), lambda pos: path_sum_bytes(on.shape, pos, names))

    with at_work("folding the blocks", model, device, dtype, memory) as (loaded, progress):
        found = measure.path_sum(
            loaded,
            [turn.prompt(loaded, one) for one in given],
            variants=names,
            mlp_norm=mlp_norm,
            positions=positions,
            mitigation=under.given,
            max_memory=MANNERS.max_memory,
            announce=_announce,
            progress=progress,
        )
    give_all(found, out, _show_path_sum)


def _announce(forecast: str) -> None:
    """How a run goes, before it starts."""
    output.note(f"plan: {forecast}")


def _show_sensitivity(result: Sensitivity) -> None:
    from ostools.reporting.findings import sensitivity as findings

    frame: Any = result.frame
    lowest, is_estimate = frame["layer"].min(), (frame["method"] != "exact").any()
    ends = ["frobenius_norm", "frobenius_lower", "frobenius_upper"]
    columns = ends if is_estimate else ["operator_norm", "frobenius_norm"]
    table = frame[frame["layer"] == lowest].pivot(index=["position", "token"], columns="linearisation", values=columns)
    names = [
        f"{linearisation} {str(norm).removesuffix('_norm').replace('_', ' ')}" for norm, linearisation in table.columns
    ]
    word = "Estimated" if is_estimate else "Measured"
    _show_tokens(f"{word} sensitivity of {_meant(result.provenance.parameters)}, at layer {lowest}", names, table)
    output.print_text(["", *findings.sensitivity_findings(result)])


def _meant(asked: Mapping[str, Any]) -> str:
    """What was differentiated, in words."""
    place = f"position {asked['at']}" if "at" in asked else "the last token"
    if "towards" not in asked:
        return f"the representation of {place}" if "at" in asked else "the last representation"
    tokens = [repr(token) for token in asked["towards"]]
    return f"the logit of {' minus that of '.join(tokens)} after {place}"


def _show_path_sum(result: PathSum) -> None:
    from ostools.reporting.look.theme import KINDS

    frame: Any = result.frame
    frame, columns = frame[frame["last"] == frame["last"].max()], ["variant", "kind", "linearisation", "norm"]
    table = frame.pivot(index=["position", "token"], columns=columns, values="value")
    table = table[frame[columns].drop_duplicates().itertuples(index=False, name=None)]
    names = [str(column[0]) for column in table.columns]
    output.print_text([f"{name}: {words}" for name, words in result.beliefs[["variant", "words"]].to_numpy()])
    _show_tokens("Path sums from each token to the last", names, table)
    norms = {"operator": "operator", "frobenius": "Frobenius"}
    notes = [
        f"{variant}: {KINDS[kind]}, beside the {linearisation} {norms[norm]} norm"
        for variant, kind, linearisation, norm in table.columns
    ]
    output.print_text(["", *notes])


def _show_tokens(title: str, names: Sequence[str], table: Any) -> None:
    from ostools.reporting.look.theme import display_token

    rows = (
        (int(position), display_token(str(token)), *map(float, values))
        for (position, token), values in zip(table.index, table.to_numpy(), strict=True)
    )
    output.print_table(title, ["position", "token", *names], rows, left=2)
