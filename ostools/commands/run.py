"""The commands: load, measure, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths
from ostools.results import checked_output

if TYPE_CHECKING:
    from ostools.measure import Collapse

DTYPES = ("float32", "bfloat16", "float16")
SHOWN = 16
"""How many lengths of a collapse curve a terminal shows; a file gets all."""


def report(model: str, prompt: str | None, out: Path, device: str, dtype: str) -> None:
    """`ostools report`."""
    checked_output(out, (".html",))
    loaded = load(model, device, dtype)
    with output.progress("measuring") as progress:
        written = ost.report(loaded, prompt=prompt, out=out, progress=progress)
    output.print_text([f"wrote {written}"])


def collapse(
    model: str,
    task: str,
    lengths: str,
    dtypes: Sequence[str] | None,
    seeds: Sequence[int] | None,
    out: Path | None,
    device: str,
) -> None:
    """`ostools collapse`."""
    check(out)
    wanted = parse_lengths(lengths)
    chosen = ost.tasks.get(task)
    loaded = load(model, device, "float32")
    with output.progress("comparing pairs") as progress:
        result = ost.collapse(
            loaded,
            chosen,
            lengths=wanted,
            dtypes=tuple(dtypes or DTYPES),
            seeds=tuple(seeds or (0,)),
            progress=progress,
        )
    if not saved(result, out):
        _show_collapse(result)


def models() -> None:
    """`ostools models`."""
    import json

    from ostools.models.families import FAMILIES
    from ostools.models.sources import EMBEDDED_DIRECTORY

    card_file = EMBEDDED_DIRECTORY / "card.json"
    lines = ["embedded: not in this installation"]
    if card_file.is_file():
        card: dict[str, Any] = json.loads(card_file.read_text(encoding="utf-8"))
        trained = ", ".join(f"{task} to {longest}" for task, longest in card["trained_lengths"].items())
        lines = [
            f"embedded: {card['architecture']}, {card['parameters']:,} parameters, float32, in this package; the default.",
            f"  Trained, by items of the sequence, on: {trained}.",
        ]
    output.print_text(
        [
            *lines,
            "a directory: --model ./my-model, with config.json, *.safetensors and a tokenizer.",
            "a hub id: --model google/gemma-7b; a gated one needs HF_TOKEN. What is in the local cache needs no network.",
            f"Architectures: {', '.join(sorted({family.architecture for family in FAMILIES.values()}))}.",
        ]
    )


def _show_collapse(result: Collapse) -> None:
    from ostools.reporting import findings

    frame: Any = result.frame
    frame = frame[(frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")]
    lengths = sorted(set(frame["length"]))
    shown = sorted({lengths[round(i * (len(lengths) - 1) / (SHOWN - 1))] for i in range(SHOWN)})
    table = frame[frame["length"].isin(shown)].pivot(
        index=["pair", "seed", "length"], columns="dtype", values=["mean", "noise", "machine_line"]
    )
    dtypes = list(dict.fromkeys(frame["dtype"]))
    columns = [(value, dtype) for dtype in dtypes for value in ("mean", "noise", "machine_line")]
    words = {"mean": "", "noise": " noise", "machine_line": " step"}
    rows = ((*map(str, key), *map(float, row)) for key, row in zip(table.index, table[columns].to_numpy(), strict=True))
    part = f", {len(shown)} of {len(lengths)} lengths" if len(shown) < len(lengths) else ""
    title = f"L2 distance at y, {frame['task'].iloc[0]}{part}; rounding noise and one representable step beside it"
    names = ["pair", "seed", "n", *(f"{dtype}{words[value]}" for value, dtype in columns)]
    output.stdout().print(output.table(title, names, rows))
    trained = result.provenance.model.get("trained_lengths")
    output.print_text(["", *findings.collapse_findings(result, trained)])
