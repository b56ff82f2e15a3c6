"""`ostools collapse`: the distance of two sequences, at every length and precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import (
    Device,
    Lengths512,
    LoadDtype,
    Mitigated,
    Model,
    Norm,
    Out,
    Per,
    Site,
    checked_items,
    parse_layers,
    parse_lengths,
)
from ostools.cli.kit.prompts import Given, Ids, chosen
from ostools.cli.kit.steps import at_work, check, check_precisions, give
from ostools.cli.measure.variation import show_variation
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.measure import Collapse
    from ostools.measure.collapse.readings import Reading
    from ostools.runs.forecast import Unloaded
    from ostools.tasks import CollapseTask


def collapse(
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="figure-5a, -5b, -5c, -5d, letters, words, text, or a task at n and n + 1 items such as count-ones. Default: "
            "figure-5a.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instead of a task: your own text, its last token repeated.")
    ] = None,
    ids: Ids = None,
    item: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --prompt: what is repeated after it, such as ' and'.")
    ] = None,
    items: Annotated[
        str,
        typer.Option(metavar="HOW", help="text, or ids: each item by its own token, whatever the tokenizer merges."),
    ] = "text",
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Take the tokenizer's BOS out of every prompt.")] = False,
    lengths: Lengths512 = "1:256",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="float32, bfloat16, float16, float64: the model cast; or one part stored in few bits: int8-weights, "
            "bfloat16-residual, float8_e4m3fn-kv, ...; or int8-dynamic: int8 products; repeatable. "
            "Default: float32, bfloat16, float16.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Seed of the digit stream; repeatable. Default: 0.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="all|0,2,...",
            help="Also after these blocks: v^(l), 0 the embedding, and the attention's total variation. Default: after the "
            "last.",
        ),
    ] = None,
    site: Site = None,
    per: Per = None,
    norm: Norm = None,
    mitigation: Mitigated = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Measure representational collapse (Theorem 4.2).

    Distance between the last-token representations of a sequence and of the same with its last token repeated.

    \b
    Example:
      ostools collapse --task figure-5a --lengths 1:512 --dtype float32 --dtype bfloat16 --out collapse.html
      ostools collapse --task figure-5c --layers all --out layers.png
      ostools collapse --prompt "Once upon a time" --item " and" --no-bos --dtype int8-kv --dtype bfloat16
    """
    from mitigations import optional
    from ostools import measure
    from ostools.cli.kit import largest

    check(out)
    wanted, pairs = parse_lengths(lengths), _pairs(task, chosen(prompt, ids), item, items)
    where = None if layers is None else parse_layers(layers)
    reading = _reading(site, per, norm, by_layer=where is not None)
    check_precisions(dtype)
    given = optional(mitigation)
    dtypes, seeds = tuple(dtype or ("float32", "bfloat16", "float16")), tuple(seed or (0,))

    def memory(on: Unloaded) -> int:
        return largest.pairs(on, pairs, wanted, dtypes, layers=where, mitigation=given)

    with at_work("comparing pairs", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.collapse(
            loaded,
            pairs,
            lengths=wanted,
            dtypes=dtypes,
            seeds=seeds,
            layers=where,
            bos=not no_bos,
            mitigation=given,
            progress=progress,
        )
    give(replace(result, reading=reading), out, _show, _verdicts)


def _pairs(task: str | None, given: Given | None, item: str | None, items: str) -> CollapseTask:
    """The task of that name, or the user's own text or ids. Raises `InputError` for options that exclude each other."""
    from ostools import tasks

    put = checked_items(items)
    if item is not None and not isinstance(given, str):
        raise InputError("--item is what --prompt repeats: give --prompt too")
    if given is None:
        return tasks.task(f"{task or 'figure-5a'}:items={items}", tasks.CollapseTask)
    if task is not None:
        raise InputError(
            f"--task and {'--prompt' if isinstance(given, str) else '--ids'} exclude each other: leave one out"
        )
    if not isinstance(given, str):
        return tasks.RepeatedIds(given, name="prompt")
    # Without an item the text's own last token is repeated, which is done on ids.
    return tasks.RepeatTask("prompt", given, item, put if item else "ids")


def _reading(site: str | None, per: str | None, norm: str | None, *, by_layer: bool) -> Reading | None:
    """What is to be shown, None for the default. Raises `InputError` for what there is not."""
    from ostools.measure.collapse.readings import Reading

    if not by_layer and not (site or per or norm):
        return None
    found = Reading.with_defaults(site or ("residual" if by_layer else "y"), per, norm or "l2")
    if by_layer and found.site != "residual":
        raise InputError(
            f"--layers compares v^(l) after each block: expected --site residual or none, found {found.site}"
        )
    return found


def _show(result: Collapse) -> None:
    from ostools.measure.collapse.readings import Reading

    reading = result.reading or Reading.with_defaults("y", None, "l2")
    if len(set(result.frame["layer"])) > 1:
        return _show_layers(result, reading)
    frame: Any = reading.of(result.measured())
    shown, part = output.some_of(frame["length"])
    table = frame[frame["length"].isin(shown)].pivot(
        index=["pair", "seed", "length"], columns="dtype", values=["mean", "pair_noise", "machine_line"]
    )
    dtypes = list(dict.fromkeys(frame["dtype"]))
    columns = [(value, dtype) for dtype in dtypes for value in ("mean", "pair_noise", "machine_line")]
    words = {"mean": "", "pair_noise": " noise", "machine_line": " step"}
    rows = ((*map(str, key), *map(float, row)) for key, row in zip(table.index, table[columns].to_numpy(), strict=True))
    title = (
        f"{reading.words}, {frame['task'].iloc[0]}{part}; noise of the difference and one representable step beside it"
    )
    names = ["pair", "seed", "n", *(f"{dtype}{words[value]}" for value, dtype in columns)]
    output.print_table(title, names, rows)
    output.print_text(["", *_said(result)])


def _said(result: Collapse) -> list[str]:
    """Every finding on what is shown."""
    from ostools.reporting.findings.collapse import collapse_findings, reading_findings

    if result.reading is not None:
        return reading_findings(result, result.reading)
    return collapse_findings(result, result.provenance.model.get("trained_lengths"))


def _verdicts(result: Collapse) -> list[str]:
    """A line a dtype, beside a file: over which lengths the pair is hidden."""
    from ostools.measure.collapse.readings import Reading
    from ostools.reporting.findings.collapse import verdict_lines

    return verdict_lines(result, result.reading or Reading.with_defaults("y", None, "l2"))


def _show_layers(result: Collapse, reading: Reading) -> None:
    """A row a layer: the distance at some lengths, and where it collapses there."""
    frame: Any = reading.of(result.measured(), every_layer=True)
    shown, part = output.some_of(frame["length"], most=6)
    keys = ["dtype", "pair", "seed", "layer"]
    table = frame[frame["length"].isin(shown)].pivot(index=keys, columns="length", values="mean")
    verdicts: Any = result.verdicts(reading.per, reading.norm)
    ends = verdicts[verdicts["site"] == "residual"].set_index(keys)["status"].to_dict()
    rows = (
        (*key, *map(float, row), ends.get(key, "reference"))
        for key, row in zip(table.index, table[shown].to_numpy(), strict=True)
    )
    title = f"{reading.words.replace('v^(L)', 'v^(l)')}, {frame['task'].iloc[0]}{part}; layer 0 is the embedding"
    output.print_table(title, [*keys, *(f"n = {n}" for n in shown), "hidden"], rows, left=2)
    _show_attention(result, str(frame["task"].iloc[0]))


def _show_attention(result: Collapse, task: str) -> None:
    """The attention's total variation beside the distances, or why there is none."""
    from ostools.measure.collapse.variation import mean_over_heads

    if result.variation is not None:
        output.print_text(["", "Total variation of the attention that reads v^(l) (Theorem B.3's proof), in float64:"])
        show_variation(mean_over_heads(result.variation), task)
    elif words := result.provenance.parameters.get("variation"):
        output.print_text(["", f"Total variation of the attention {words}."])
