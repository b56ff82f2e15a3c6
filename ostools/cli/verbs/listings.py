"""`ostools list` and `ostools doctor`: what there is to name and measure, and what is missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import NamedTuple

import click
from packaging.requirements import Requirement

from ostools.cli import SPIN, WAITING, terminal
from ostools.cli.commands import MEASURED
from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.errors import InputError
from ostools.mitigations import named as mitigations_named
from ostools.mitigations.registry import Listed
from ostools.tasks import named as tasks_named
from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import options_of
from ostools.tasks.pairs import CollapseTask

_DISTRIBUTION = "oversquashing-tools"
_OK, _MISSING, _NOTE = "ok", "MISSING", "note"
_EXTRAS = ("gguf", "ray", "hosted", "explore")
_LONGEST_PROMPT = 160
"""Characters of a prompt that a listing shows."""


def tasks() -> None:
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value, and how the prompt of a question of four items
    begins. Then the pairs of prompts that `ostools collapse` and `ostools collapse variation`
    compare, with a prompt of six items, whose last is then repeated.
    """
    rows = []
    for listed in tasks_named.listing():
        if listed.name in APPENDIX_NAMES:  # the paper's prompts share a class, not their options
            listed = listed._replace(options=options_of(listed.name))
        try:
            rows.append(_row(listed, _short(tasks_named.task(listed.name).prompt(4))))
        except InputError:  # what is wrong with it where it cannot be used
            rows.append(_row(listed, listed.summary))
    pairs = []
    for name in tasks_named.REPEATING_TASKS:
        options = "" if name == "text" else "items=text|ids"
        what = _short(tasks_named.task(name, CollapseTask).example)
        pairs.append({"name": name, "from": "ostools", "options": options, "what": what})
    give_tables({"Tasks": rows, "Pairs of prompts": pairs})


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.
    """
    rows = [_row(listed, listed.summary) for listed in mitigations_named.listing()]
    give_tables({"Mitigations": rows})


def measurements() -> None:
    """List the measurements: each command that runs a model, and the Python function behind it."""
    rows = [
        {
            "command": f"ostools {command.name}",
            "function": command.function.replace(":", "."),
            "what": command.summary.replace("`", ""),
        }
        for command in sorted(MEASURED, key=lambda command: command.words)
    ]
    give_tables({"Measurements": rows})


def _short(prompt: str) -> str:
    line = on_one_line(prompt)
    return line if len(line) <= _LONGEST_PROMPT else f"{line[: _LONGEST_PROMPT - 1]}…"


def _row(listed: Listed, what: str) -> dict[str, str]:
    return {"name": listed.name, "from": listed.owner, "options": listed.options, "what": what}


def give_tables(tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
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

    Versions, extras, device, memory, models that the package or pip brings. Exit code 1 where
    something that is needed is missing.
    """
    findings = list(_packages())
    if any(finding.state == _MISSING for finding in findings):
        advice = "not looked at: install what is missing first, with pip install -e . or make"
        findings.append(Finding("the rest", _NOTE, advice))
    else:
        findings += [*_extras(), *_machine(), *_models(), *_plugins()]
    give_tables({"This installation": [finding._asdict() for finding in findings]})
    raise click.exceptions.Exit(int(any(finding.state == _MISSING for finding in findings)))


def _packages() -> Iterator[Finding]:
    yield Finding("python", _OK, platform.python_version())
    yield Finding("system", _OK, f"{platform.system()} {platform.machine()}")
    for requirement in [Requirement(_DISTRIBUTION), *_requirements()]:
        version = _installed_version(requirement)
        if version and requirement.specifier.contains(version, prereleases=True):
            yield Finding(requirement.name, _OK, version)
        else:
            expected = requirement.specifier or "any version"
            state = f"{version or 'not installed'}; expected {expected}"
            yield Finding(requirement.name, _MISSING, state)


def _installed_version(requirement: Requirement) -> str:
    """The version that is installed; empty where there is none."""
    try:
        return metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return ""


def _requirements() -> Iterator[Requirement]:
    """What the installed distribution needs, without its extras; nothing where it is not there."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in map(Requirement, metadata.requires(_DISTRIBUTION) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement


def _extras() -> Iterator[Finding]:
    """What each extra for users adds, and whether it is there."""
    for requirement in map(Requirement, metadata.requires(_DISTRIBUTION) or ()):
        for extra in _EXTRAS:
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                continue
            if marker.evaluate({"extra": extra}):
                missing = f"not installed: pip install '.[{extra}]'"
                words = _installed_version(requirement) or missing
                yield Finding(f"{requirement.name} (extra {extra})", _NOTE, words)


def _machine() -> Iterator[Finding]:
    import psutil
    import torch

    from ostools.ground.memory import free_memory

    total = psutil.virtual_memory().total
    yield Finding("memory", _OK, f"{free_memory()}; the machine has {total / 2**30:.1f} GiB")
    cores = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    yield Finding("cpu", _OK, cores)
    waiting = ", ".join(f"{name}={os.environ[name]}" for name in sorted(WAITING & set(os.environ)))
    words = waiting or "spin, which is slow on a busy machine"
    advice = f"in Python, set GOMP_SPINCOUNT={SPIN} before torch is imported"
    yield Finding("waiting threads", _OK, f"{words} ({advice})")
    if not torch.cuda.is_available():
        yield Finding("cuda", _NOTE, "none found; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        size = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        yield Finding(f"cuda:{index}", _OK, f"{torch.cuda.get_device_name(index)}, {size}")


def _models() -> Iterator[Finding]:
    from ostools.models.files.gguf_cache import PACKAGED_MODELS, is_installed
    from ostools.models.files.sources import EMBEDDED_DIRECTORIES

    for name, directory in EMBEDDED_DIRECTORIES.items():
        is_there = (directory / "model.safetensors").is_file()
        words = "in this package" if is_there else "no model.safetensors"
        yield Finding(f"model {name}", _OK if is_there else _MISSING, words)
    for name, model in PACKAGED_MODELS.items():
        words = "installed" if is_installed(name) else f"not installed: `{model.make}`"
        yield Finding(f"model {name}", _NOTE, words)
    # Whether there is a token, never the token.
    is_set = "HF_TOKEN" in os.environ
    words = "set" if is_set else "not set; gated models such as google/gemma-7b need it"
    yield Finding("HF_TOKEN", _NOTE, words)


def _plugins() -> Iterator[Finding]:
    plugins = {"mitigation": mitigations_named.listing(), "task": tasks_named.listing()}
    for kind, rows in plugins.items():
        for row in rows:
            if row.owner != "ostools":
                state = _OK if row.usable else _MISSING
                yield Finding(f"{kind} {row.name}", state, f"{row.owner}: {row.summary}")
