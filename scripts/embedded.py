"""The tables of docs/embedded.md, of the models' cards: `python -m scripts.embedded` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.scale import write_page
from ostools.models.files.sources import EMBEDDED_DIRECTORIES, EMBEDDED_MODELS

PAGE = Path(__file__).parents[1] / "docs" / "embedded.md"
ANSWERED = ("copy-last", "count-ones", "count-ones-bernoulli")
"""Of the copies, those of uniformly drawn digits."""


def main() -> None:
    """Write every table of the page."""
    cards = {
        name: json.loads((EMBEDDED_DIRECTORIES[name] / "card.json").read_text())
        for name in EMBEDDED_MODELS
    }
    write_page(PAGE, **{name: "\n".join(grouped(table(cards))) for name, table in TABLES.items()})


def header(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def grouped(lines: Iterable[str]) -> Iterator[str]:
    """A table whose first cell stands once: empty in the rows below that have the same."""
    above = None
    for line in lines:
        first, _, rest = line.removeprefix("| ").partition(" | ")
        yield f"| | {rest}" if first == above else line
        above = first


def made(cards: Mapping[str, Any]) -> Iterator[str]:
    """What each model is, of its card."""
    yield from header(
        "model",
        "parameters",
        "layers",
        "steps",
        "tokens seen",
        "text among them",
        "longest task",
        "bits per byte",
    )
    for name, card in cards.items():
        recipe = card["recipe"]
        text = recipe["text_tokens"] / (recipe["text_tokens"] + recipe["task_tokens"])
        windows = (
            "" if recipe["window"] is None else f", windows of {recipe['window']} in all but one"
        )
        yield row(
            f"`{name}`",
            f"{card['parameters']:,}",
            f"{recipe['n_layers']}{windows}",
            f"{recipe['steps']:,}",
            f"{card['tokens_seen']:,}",
            f"{text:.0%}",
            f"{max(card['trained_lengths'].values())} items",
            f"{card['held_out_bits_per_byte']:.2f}",
        )


def answers(cards: Mapping[str, Any]) -> Iterator[str]:
    """Right answers by length, of each card; its bands are those of its own trained lengths."""
    bands = [(1, 8), (17, 32), (49, 64), (97, 128), (193, 256)]
    yield from header("task", "model", *(f"{low}-{high}" for low, high in bands))
    plain = ("interleave", "hint", "tidy")
    for task in ANSWERED:
        uniform = task.startswith("copy-")
        for name, card in cards.items():
            found = {
                (one["length_from"], one["length_to"]): one["accuracy"]
                for one in card["accuracy"]
                if one["task"] == task
                and one["uniform"] == uniform
                and not any(one[other] for other in plain)
                and not one["separator_every"]
            }
            label = task + (" (uniform)" if uniform else "")
            yield row(label, f"`{name}`", *(_share(found, band) for band in bands))


def _share(found: Mapping[tuple[int, int], float], band: tuple[int, int]) -> str:
    return f"{found[band]:.0%}" if band in found else ""


TABLES = {"made": made, "answers": answers}

if __name__ == "__main__":
    main()
