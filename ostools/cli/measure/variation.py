"""`ostools attention-variation`: how far the last token's attention moves when it is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Device, Lengths512, LoadDtype, Mitigated, Model, Out, Seeds, parse_lengths
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import AttentionVariation
    from ostools.runs.forecast import Unloaded


def attention_variation(
    task: Annotated[
        str, typer.Option(metavar="NAME", help="figure-5a, -5b, -5c, -5d, letters, words or text.")
    ] = "figure-5a",
    lengths: Lengths512 = "1:128",
    seed: Seeds = None,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Take the tokenizer's BOS out of every prompt.")] = False,
    mitigation: Mitigated = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Measure the total variation of Theorem B.3's proof on the model's own attention.

    delta(alpha_n, alpha*_n+1) + alpha*_n+1,n+1, no factor 1/2, in every layer and head; KL beside it. In float64.

    \b
    Example:
      ostools attention-variation --task figure-5c --lengths 1:200 --out variation.png
    """
    from mitigations import optional
    from ostools import measure, tasks
    from ostools.cli.kit import largest

    check(out)
    wanted, pairs, given = parse_lengths(lengths), tasks.repeating(task), optional(mitigation)

    def memory(on: Unloaded) -> int:
        return largest.variation(on, pairs, wanted)

    with at_work("comparing attention", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.attention_variation(
            loaded,
            pairs,
            lengths=wanted,
            seeds=tuple(seed or (0,)),
            bos=not no_bos,
            mitigation=given,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: AttentionVariation) -> None:
    show_variation(result.over_heads(), str(result.frame["task"].iloc[0]))


def show_variation(table: Any, task: str) -> None:
    """A row a layer: the proof's sum at some lengths, and its parts at the longest; of the mean over heads."""
    shown, part = output.some_of(table["length"], most=6)
    last = table[table["length"] == table["length"].max()].set_index("layer")
    total = table[table["length"].isin(shown)].pivot(index="layer", columns="length", values="total")
    rows = (
        (layer, *map(float, row), *(float(last.loc[layer, name]) for name in ("delta", "own", "kl")))
        for layer, row in zip(total.index, total[shown].to_numpy(), strict=True)
    )
    title = f"delta + own weight, mean over heads, {task}{part}"
    output.print_table(title, ["layer", *(f"n = {n}" for n in shown), "delta", "own", "KL"], rows)
    output.print_text(["", f"delta, own weight and KL (nats; inf: a token is no longer seen) at n = {shown[-1]}."])
