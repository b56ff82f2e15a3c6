"""`ostools list` and `ostools doctor`: what there is to load, name and measure, and what is
missing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.mitigations.registry import Listed
    from ostools.models.families import Family

_DISTRIBUTION = "oversquashing-tools"
_GIB = 1 << 30
_OK, _MISSING, _NOTE = "ok", "MISSING", "note"
_LONGEST_PROMPT = 72
"""Characters of a prompt that a listing shows."""


def models(*, check: str | None = None) -> None:
    """List what can be loaded: the embedded models, real ones in packages, the families of models,
    and how to name a model.

    Args:
        check: a directory with a config.json, a GGUF file or a directory with one, or a hub id: say
            instead by which route that model goes, and what is refused of it. No weights are read.
    """
    if check is not None:
        terminal.print_text(checked_route(check))
        return
    from ostools.models.families import FAMILIES, ROUTES

    families = [
        {"family": family.name, "architecture": family.architecture} | family.routes
        for family in FAMILIES
        if family.refused is None
    ]
    others = [
        {
            "family": family.name,
            "loaded": "by the generic route" if family.generic_instead else "no",
            "why": family.refused,
        }
        for family in FAMILIES
        if family.refused is not None
    ]
    _give({"Models": list(_named_models()), "Families": families, "Others": others})
    if not GLOBALS.json:
        lines = (f"{name}: {what.replace('`', '')}." for name, what in ROUTES.items())
        terminal.print_text(
            [*lines, "Whatever else transformers loads goes by the generic route; see --check."]
        )


def _named_models() -> Iterator[dict[str, str]]:
    """Names that --model takes, and what they are."""
    from ostools.models.families import EMBEDDED
    from ostools.models.files.gguf_cache import PACKAGED_MODELS, is_installed
    from ostools.models.files.sources import EMBEDDED_DIRECTORIES

    for name, directory in EMBEDDED_DIRECTORIES.items():
        file = directory / "card.json"
        what = (
            _card_in_words(json.loads(file.read_text("utf-8")))
            if file.is_file()
            else "not in this installation"
        )
        yield {"name": name, "what": f"{what}; the default" if name == EMBEDDED else what}
    for name, model in PACKAGED_MODELS.items():
        state = (
            "installed"
            if is_installed(name)
            else f"not installed: {model.install}, or {model.make}"
        )
        yield {"name": name, "what": f"{model.about} ({model.licence}); {state}"}
    yield {
        "name": "./my-model",
        "what": "a directory with config.json, *.safetensors and a tokenizer",
    }
    yield {
        "name": "./my-model.gguf",
        "what": "a GGUF file, or a directory with one, dequantised; needs the package gguf",
    }
    yield {
        "name": "google/gemma-7b",
        "what": "a hub id; a gated one needs HF_TOKEN, one in the local cache no network",
    }


def _card_in_words(card: dict[str, Any]) -> str:
    tasks_by_length: dict[int, list[str]] = {}
    for task, length in card["trained_lengths"].items():
        tasks_by_length.setdefault(length, []).append(task)
    is_single = len(tasks_by_length) == 1
    trained = "; ".join(
        f"{'every task' if is_single else ', '.join(names)} to {length}"
        for length, names in tasks_by_length.items()
    )
    size = f"{card['parameters']:,} parameters, stored in {card['recipe']['stored']}"
    return f"{card['architecture']}, {size}, in this package; trained, by items of the sequence, on {trained}"


def checked_route(name: str) -> list[str]:
    """Route of the model with that config.json, or of that GGUF file, in sentences. `InputError`
    for one that goes by none.
    """
    from ostools.models.files.gguf_format.header import gguf_file_at

    file = gguf_file_at(Path(name).expanduser())
    return _route_of_config(name) if file is None else _route_of_gguf(file)


def _route_of_gguf(file: Path) -> list[str]:
    from ostools.models.files.config import quiet
    from ostools.models.files.gguf import describe_gguf
    from ostools.models.files.gguf_format.header import read_header

    header = read_header(file)
    with quiet():
        _, family, tokenizer = describe_gguf(header, file.name)
    bos = tokenizer.bos_token if tokenizer.add_bos_token else "nothing"
    return [
        f"{file.name}: {header.architecture}, {header.quantisation}, {sum(header.sizes):,} weights; its tokenizer puts {bos} "
        "in front of a text.",
        *_in_words(family),
    ]


def _route_of_config(name: str) -> list[str]:
    from huggingface_hub import hf_hub_download

    from ostools.ground.errors import in_words
    from ostools.models.files.checks import read_json
    from ostools.models.files.config import family_of_settings, refuse_quantised
    from ostools.models.files.sources import looks_like_a_path

    directory = Path(name)
    if looks_like_a_path(name) and not directory.exists():
        raise InputError(
            f"check: expected a directory, a GGUF file or a hub id, found nothing at {name!r}"
        )
    try:
        file = (
            directory / "config.json"
            if directory.is_dir()
            else Path(hf_hub_download(name, "config.json"))
        )
    except Exception as error:
        raise InputError(
            f"check: expected a directory or a hub id with a config.json, or a GGUF file, found {name!r}: {in_words(error)}"
        ) from None
    if not file.is_file():
        raise InputError(
            f"check: expected a config.json or a GGUF file in {name}, found none: give the directory of a model"
        )
    config = read_json(file)
    refuse_quantised(config, directory)
    return _in_words(family_of_settings(config, str(file)))


def _in_words(family: Family) -> list[str]:
    """What is measured of a family, and what is refused."""
    if family.generic:
        return [
            f"{family.module}: no record; the generic route, if v^(l) and y are proven at load.",
            "Measured: sensitivity and attribution (linearisation full, of a logit too), collapse, evaluate, probe, "
            "faithfulness.",
            "Where each block has one softmax over keys, and known norms, both proven at load: frozen and spectra too.",
            "Refused: detached, bounds, hops and masks, which need more of the inside of a block.",
        ]
    missing = [route for route, has in family.routes.items() if not has]
    return [f"{family.name}: by its record. Refused or slower: {', '.join(missing) or 'nothing'}."]


def tasks() -> None:
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value, and how the prompt of a question of four items
    begins. Then the pairs of prompts that `ostools collapse` and `collapse variation` compare, with
    a prompt of six items, whose last is then repeated.
    """
    from ostools.tasks.named import listing

    rows = [_row(_with_own_options(listed), _beginning(listed)) for listed in listing()]
    _give({"Tasks": rows, "Pairs of prompts": list(_pairs())})


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.
    """
    from ostools.mitigations.named import listing

    _give({"Mitigations": [_row(listed, listed.summary) for listed in listing()]})


def _with_own_options(row: Listed) -> Listed:
    """The row with the options of this one of the paper's prompts, which share a class."""
    from ostools.tasks.appendix_c import NAMES, options_of

    return row._replace(options=options_of(row.name)) if row.name in NAMES else row


def _beginning(row: Listed) -> str:
    """The beginning of a task's prompt on one line; what is wrong with it where it cannot be used."""
    from ostools.tasks import task

    try:
        return _short(task(row.name).prompt(4))
    except InputError:
        return row.summary


def _pairs() -> Iterator[dict[str, str]]:
    from ostools.tasks import REPEATING_TASKS, CollapseTask, task

    for name in REPEATING_TASKS:
        options = "" if name == "text" else "items=text|ids"
        yield {
            "name": name,
            "from": "ostools",
            "options": options,
            "what": _short(task(name, CollapseTask).example),
        }


def _short(prompt: str) -> str:
    line = on_one_line(prompt)
    return line if len(line) <= _LONGEST_PROMPT else f"{line[: _LONGEST_PROMPT - 1]}…"


def _row(listed: Listed, what: str) -> dict[str, str]:
    return {"name": listed.name, "from": listed.owner, "options": listed.options, "what": what}


def measurements() -> None:
    """List the measurements: each command that runs a model, and the Python function behind it."""
    from ostools.cli.commands import MEASURED

    rows = [
        {
            "command": f"ostools {command.name}",
            "function": command.function.replace(":", "."),
            "what": command.summary.replace("`", ""),
        }
        for command in sorted(MEASURED, key=lambda command: command.words)
    ]
    _give({"Measurements": rows})


def _give(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Show the tables, or give their rows as JSON: those of one by themselves, several by their
    titles.
    """
    if GLOBALS.json:
        by_title = {title.lower(): rows for title, rows in tables.items()}
        terminal.print_json(by_title if len(by_title) > 1 else next(iter(by_title.values())))
        return
    words = {True: "yes", False: "-"}
    for title, rows in tables.items():
        cells = [
            [words[value] if isinstance(value, bool) else value for value in row.values()]
            for row in rows
        ]
        terminal.print_table(title, [*rows[0]], cells, text_columns=len(rows[0]))


# ---- doctor


class Finding(NamedTuple):
    """One line of the doctor: the part, its state ("ok", "MISSING", "note"), and the figure."""

    what: str
    state: str
    found: str


def doctor() -> None:
    """Say what this installation has, and what is missing.

    Versions, device, memory, the embedded model, extras. Exit code 1 where something that is needed
    is missing.
    """
    findings = list(_packages())
    if any(finding.state == _MISSING for finding in findings):
        advice = "not looked at: install what is missing first, with pip install -e . or make"
        findings.append(Finding("the rest", _NOTE, advice))
    else:
        findings += [*_machine(), *_models(), *_plugins()]
    _give({"This installation": [finding._asdict() for finding in findings]})
    raise click.exceptions.Exit(int(any(finding.state == _MISSING for finding in findings)))


def _packages() -> Iterator[Finding]:
    from importlib import metadata

    from packaging.requirements import Requirement

    yield Finding("python", _OK, platform.python_version())
    yield Finding("system", _OK, f"{platform.system()} {platform.machine()}")
    try:
        yield Finding(_DISTRIBUTION, _OK, metadata.version(_DISTRIBUTION))
    except metadata.PackageNotFoundError:
        yield Finding(_DISTRIBUTION, _MISSING, "run from a source tree that is not installed")
        return
    for requirement in map(Requirement, metadata.requires(_DISTRIBUTION) or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = ""
        if version and requirement.specifier.contains(version, prereleases=True):
            yield Finding(requirement.name, _OK, version)
        else:
            expected = requirement.specifier or "any version"
            yield Finding(
                requirement.name, _MISSING, f"{version or 'not installed'}; expected {expected}"
            )


def _machine() -> Iterator[Finding]:
    import psutil
    import torch

    from ostools.cli import SPIN, WAITING
    from ostools.ground.memory import free_memory

    yield Finding(
        "memory",
        _OK,
        f"{free_memory()}; the machine has {psutil.virtual_memory().total / _GIB:.1f} GiB",
    )
    yield Finding(
        "cpu", _OK, f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    )
    waiting = ", ".join(f"{name}={os.environ[name]}" for name in sorted(WAITING & set(os.environ)))
    words = waiting or "spin, which is slow on a busy machine"
    yield Finding(
        "waiting threads",
        _OK,
        f"{words} (in Python, set GOMP_SPINCOUNT={SPIN} before torch is imported)",
    )
    if not torch.cuda.is_available():
        yield Finding("cuda", _NOTE, "none found; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        size = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield Finding(f"cuda:{index}", _OK, f"{torch.cuda.get_device_name(index)}, {size}")


def _models() -> Iterator[Finding]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from ostools.models.files.gguf_cache import PACKAGED_MODELS, is_installed
    from ostools.models.files.sources import EMBEDDED_DIRECTORIES

    for name, directory in EMBEDDED_DIRECTORIES.items():
        weights = directory / "model.safetensors"
        if weights.is_file():
            yield Finding(f"model {name}", _OK, f"{weights.stat().st_size:,} bytes")
        else:
            yield Finding(f"model {name}", _MISSING, f"no {weights.name}")
    for name, model in PACKAGED_MODELS.items():
        installed = is_installed(name)
        words = "installed" if installed else f"not installed: {model.install}"
        yield Finding(f"model {name}", _OK if installed else _NOTE, words)
    # Whether there is a token, never the token.
    token = (
        "set"
        if os.environ.get("HF_TOKEN")
        else "not set; gated models such as google/gemma-7b need it"
    )
    yield Finding("HF_TOKEN", _NOTE, token)
    cached = len(list(os.scandir(HF_HUB_CACHE))) if os.path.isdir(HF_HUB_CACHE) else 0
    yield Finding("hub cache", _NOTE, f"{cached} entries")


def _plugins() -> Iterator[Finding]:
    from ostools.mitigations.named import listing as listed_mitigations
    from ostools.tasks.named import listing as listed_tasks

    for kind, rows in (("mitigation", listed_mitigations()), ("task", listed_tasks())):
        for row in rows:
            if row.owner != "ostools":
                state = _OK if row.usable else _MISSING
                yield Finding(f"{kind} {row.name}", state, f"{row.owner}: {row.summary}")
