"""`ostools models`, `tasks` and `mitigations`: what can be loaded and named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS, on_one_line
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from mitigations.registry import Listed

_SHOWN = 72
"""How many characters of a prompt a listing shows."""


def models() -> None:
    """List what can be loaded.

    The embedded model, the families of architectures, and how to name a hub model.

    \b
    Example:
      ostools models
    """
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
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value.

    \b
    Example:
      ostools tasks
    """
    from ostools.tasks.named import listing

    _show("Tasks", "a question of four items begins", ((row, _begins(row)) for row in listing()))


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.

    \b
    Example:
      ostools mitigations
    """
    from mitigations.named import listing

    _show("Mitigations", "what it does", ((row, row.summary) for row in listing()))


def _begins(row: Listed) -> str:
    """The beginning of a task's prompt on one line; what is wrong with it where it cannot be used."""
    from ostools.tasks import task

    try:
        prompt = task(row.name).prompt(4)
    except InputError:
        return row.summary
    line = on_one_line(prompt)
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _show(title: str, what: str, listed: Iterable[tuple[Listed, str]]) -> None:
    rows = [(row.name, row.owner, row.options, words) for row, words in listed]
    if MANNERS.json:
        output.print_json([dict(zip(("name", "from", "options", "what"), row, strict=True)) for row in rows])
        return
    output.print_table(title, ["name", "from", "options", what], rows, left=4)
