"""One reader of files under atheris: bytes are chosen by which code they reach.

`python -m stress._covering READER DIR CASES SEED`. What may be raised is a refusal in one line;
everything else is atheris' to report.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

READERS = ("sweep", "config", "weights", "manifest", "words")
_COVERED = [
    "yaml",
    "ostools.sweep.sweep_file",
    "ostools.sweep.sweep_file",
    "ostools.sweep.store",
    "ostools.models.files.checks",
    "ostools.models.files.shards",
    "ostools.cli",
    "click",
]


def _reader(name: str, folder: Path) -> tuple[Callable[[bytes], object], list[bytes]]:
    """What reads the bytes, and the whole files that it begins from."""
    from ostools.models.files.checkpoint import Checkpoint
    from ostools.models.files.config import check_config
    from ostools.models.files.shards import read_shards
    from ostools.models.files.sources import EMBEDDED_DIRECTORY
    from ostools.sweep import read_sweep
    from ostools.sweep.store import MANIFEST, Store

    def written(file: str, content: bytes) -> Path:
        (folder / file).write_bytes(content)
        return folder

    def words(content: bytes) -> None:
        from ostools.cli import app

        try:
            app(
                [*content.decode("utf-8", "surrogateescape").split("\n"), "--help"],
                standalone_mode=False,
            )
        except Exception as error:
            if hasattr(error, "format_message"):  # a usage error of click
                return
            raise

    manifest = (
        b'{"cells": [{"base": "0", "cell": {"model": "a", "task": "b", "dtype": "c", "mitigation": "d", "seed": 0, '
        b'"measurement": "e", "options": "{}", "lengths": [1, 2]}}]}'
    )
    weights = (
        b'\x3b\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}    ' + bytes(8)
    )
    card = b'{"trained_lengths": {"sum": 60}}'
    readers: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
        "sweep": (
            lambda content: read_sweep(written("sweep.yaml", content) / "sweep.yaml"),
            [(Path(__file__).parents[1] / "examples" / "sweep.yaml").read_bytes()],
        ),
        "config": (
            lambda content: (
                check_config(Checkpoint("x", written("config.json", content))),
                Checkpoint("x", written("card.json", content)).trained_lengths,
            ),
            [(EMBEDDED_DIRECTORY / "config.json").read_bytes(), card],
        ),
        "weights": (lambda content: read_shards(written("model.safetensors", content)), [weights]),
        "manifest": (lambda content: Store(written(MANIFEST, content)).planned_cells(), [manifest]),
        "words": (
            words,
            [
                b"sweep\nrun\nsweep.yaml\n--out\nx",
                b"sensitivity\n--prompt\na",
                b"collapse\n--lengths\n1:3",
            ],
        ),
    }
    return readers[name]


def main(name: str, scratch: str, cases: str, seed: str) -> None:
    """Never returns: atheris ends the process, with exit code 0 where nothing was found."""
    atheris: Any = importlib.import_module("atheris")  # is not there for every Python

    with atheris.instrument_imports(include=_COVERED):
        read, whole = _reader(name, Path(scratch))
    from ostools.ground.errors import InputError
    from ostools.mitigations import MitigationError

    corpus = Path(scratch) / "corpus"
    corpus.mkdir()
    for index, content in enumerate(whole):
        (corpus / str(index)).write_bytes(content)

    def one(content: bytes) -> None:
        try:
            read(content)
        except (InputError, MitigationError) as refusal:
            if "\n" in str(refusal):
                raise RuntimeError(f"a refusal of more than one line: {refusal}") from refusal

    limits = ["-timeout=30", "-rss_limit_mb=8192", "-max_len=4096"]
    atheris.Setup(
        [
            sys.argv[0],
            f"-runs={cases}",
            f"-seed={seed}",
            f"-artifact_prefix={scratch}/",
            *limits,
            str(corpus),
        ],
        one,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
