"""The commands about everything: the report, and what can be loaded and named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import load, told_written
from ostools.commands.manners import MANNERS, on_one_line
from ostools.ground.lengths import parse_lengths
from ostools.results import checked_output

if TYPE_CHECKING:
    from mitigations.registry import Listed


_SHOWN = 72
"""How many characters of a prompt a listing shows."""


def report(
    model: str, prompt: str | None, out: Path, section: list[str] | None, lengths: str | None, device: str, dtype: str
) -> None:
    """`ostools report`."""
    checked_output(out, (".html",))
    wanted = None if lengths is None else parse_lengths(lengths)
    loaded = load(model, device, dtype)
    with output.progress("measuring") as progress:
        written = ost.report(
            loaded, prompt=prompt, out=out, sections=section or None, lengths=wanted, progress=progress
        )
    told_written(written)


def report_on_run(directory: Path, out: Path, given: list[str]) -> None:
    """`ostools report --run`; `given`: other options of the command, which say what to measure."""
    if given:
        raise ost.InputError(
            f"--run reports on cells that are there and measures nothing: leave out {' and '.join(given)}; "
            "what a sweep measures stands in its file"
        )
    told_written(ost.report(run=directory, out=out, say=output.note))


def models() -> None:
    """`ostools models`."""
    from ostools.models.families import FAMILIES
    from ostools.models.sources import EMBEDDED_DIRECTORY

    card_file = EMBEDDED_DIRECTORY / "card.json"
    card: dict[str, Any] | None = json.loads(card_file.read_text(encoding="utf-8")) if card_file.is_file() else None
    architectures = sorted({family.architecture for family in FAMILIES.values()})
    if MANNERS.json:
        output.print_json({"embedded": card, "architectures": architectures})
        return
    lines = ["embedded: not in this installation"]
    if card is not None:
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
            f"Architectures: {', '.join(architectures)}.",
        ]
    )


def tasks() -> None:
    """`ostools tasks`."""
    from ostools.tasks.named import listing

    _show("Tasks", "a question of four items begins", ((row, _begins(row)) for row in listing()))


def mitigations() -> None:
    """`ostools mitigations`."""
    from mitigations.named import listing

    _show("Mitigations", "what it does", ((row, row.summary) for row in listing()))


def _begins(row: Listed) -> str:
    """The beginning of a task's prompt on one line; what is wrong with it where it cannot be used."""
    try:
        prompt = ost.tasks.task(row.name).prompt(4)
    except ost.InputError:
        return row.summary
    line = on_one_line(prompt)
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _show(title: str, what: str, listed: Iterable[tuple[Listed, str]]) -> None:
    rows = [(row.name, row.owner, row.options, words) for row, words in listed]
    if MANNERS.json:
        output.print_json([dict(zip(("name", "from", "options", "what"), row, strict=True)) for row in rows])
        return
    output.stdout().print(output.table(title, ["name", "from", "options", what], rows, left=4))
