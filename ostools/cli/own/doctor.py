"""`ostools doctor`: what this installation has, measured, and what is missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import NamedTuple

import click

from ostools.cli import output
from ostools.cli.global_options import GLOBALS

_DISTRIBUTION = "oversquashing-tools"
_GIB = 1 << 30
_OK, _MISSING, _NOTE = "ok", "MISSING", "note"


class Finding(NamedTuple):
    """One line: what was looked at, how it is ("ok", "MISSING", "note"), and the figure."""

    what: str
    state: str
    found: str


def doctor() -> None:
    """Say what this installation has, and what is missing.

    Versions, device, memory, the embedded model, extras. Exit code 1 where something that is needed is missing.
    """
    findings = list(_findings())
    if GLOBALS.json:
        output.print_json([finding._asdict() for finding in findings])
    else:
        output.print_table("This installation", Finding._fields, findings, left=3)
    raise click.exceptions.Exit(int(any(finding.state == _MISSING for finding in findings)))


def _findings() -> Iterator[Finding]:
    yield Finding("python", _OK, platform.python_version())
    yield Finding("system", _OK, f"{platform.system()} {platform.machine()}")
    packages = list(_packages())
    yield from packages
    if any(package.state == _MISSING for package in packages):
        yield Finding("the rest", _NOTE, "not looked at: install what is missing first, with pip install -e . or make")
        return
    yield from _machine()
    yield from _models()
    yield from _plugins()


def _packages() -> Iterator[Finding]:
    """Every distribution that this one needs, in the version that is installed."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        yield Finding(_DISTRIBUTION, _OK, metadata.version(_DISTRIBUTION))
    except metadata.PackageNotFoundError:
        yield Finding(_DISTRIBUTION, _MISSING, "run from a source tree that is not installed")
        return
    for line in metadata.requires(_DISTRIBUTION) or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding(wanted.name, _MISSING, f"not installed; expected {wanted.specifier or 'any version'}")
            continue
        fits = wanted.specifier.contains(found, prereleases=True)
        yield Finding(
            wanted.name, _OK if fits else _MISSING, found if fits else f"{found}; expected {wanted.specifier}"
        )


def _machine() -> Iterator[Finding]:
    import psutil
    import torch

    from ostools.ground.memory import free_memory

    yield Finding("memory", _OK, f"{free_memory()}; the machine has {psutil.virtual_memory().total / _GIB:.1f} GiB")
    yield Finding("cpu", _OK, f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        yield Finding("cuda", _NOTE, "none found; models run on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield Finding(f"cuda:{index}", _OK, f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")


def _models() -> Iterator[Finding]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from ostools.models.files.packages import PACKAGED_MODELS, is_installed
    from ostools.models.files.sources import EMBEDDED_DIRECTORIES

    for name, directory in EMBEDDED_DIRECTORIES.items():
        weights = directory / "model.safetensors"
        there = weights.is_file()
        size = f"{weights.stat().st_size:,} bytes" if there else f"no {weights.name}"
        yield Finding(f"model {name}", _OK if there else _MISSING, size)
    for name, model in PACKAGED_MODELS.items():
        there = is_installed(name)
        yield Finding(
            f"model {name}", _OK if there else _NOTE, "installed" if there else f"not installed: {model.install}"
        )
    # Whether there is a token, never the token.
    token = "set" if os.environ.get("HF_TOKEN") else "not set; gated models such as google/gemma-7b need it"
    yield Finding("HF_TOKEN", _NOTE, token)
    cached = len(list(os.scandir(HF_HUB_CACHE))) if os.path.isdir(HF_HUB_CACHE) else 0
    yield Finding("hub cache", _NOTE, f"{cached} entries")


def _plugins() -> Iterator[Finding]:
    """What other distributions add, and whether it can be used."""
    from mitigations.named import listing as mitigations
    from ostools.tasks.named import listing as tasks

    for kind, listed in (("mitigation", mitigations()), ("task", tasks())):
        for row in listed:
            if row.owner != "ostools":
                yield Finding(f"{kind} {row.name}", _OK if row.usable else _MISSING, f"{row.owner}: {row.summary}")
