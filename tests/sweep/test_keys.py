"""What a key hashes; and that what is renamed into place is on disk before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ostools.models.files.sources import locate
from ostools.sweep import cells, run, sweep_of
from tests.sweep.test_faults import SWEEP, Quick


def test_every_file_that_loading_reads_is_in_the_checkpoints_hash_with_its_name(
    directory: str, tmp_path: Path
) -> None:
    copy, hashes = tmp_path / "copy", []

    def hashed() -> None:
        hashes.append(cells.checkpoint_hash(locate(str(copy), None)))

    shutil.copytree(directory, copy)
    hashed()
    names = ["model.safetensors", "config.json", "tokenizer.json", "merges.txt", "tokenizer.model"]
    for name in (*names, "chat_template.jinja", "additional_chat_templates/default.jinja"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"a")
        hashed()
    (copy / "merges.txt").rename(copy / "merges2.txt")  # no other file stands between the two names
    hashed()
    assert len(set(hashes)) == len(hashes)


def test_another_version_of_what_computes_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, honest = cells.code_version.__wrapped__, cells.version
    keys = [fresh()]
    for package in cells._VERSIONS:
        versions = {package: "0.0"}
        monkeypatch.setattr(cells, "version", lambda name, v=versions: v.get(name) or honest(name))
        keys.append(fresh())
    assert len(set(keys)) == 1 + len(cells._VERSIONS)


def test_whatever_a_sweep_renames_is_on_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file was handed to the disk, as long as it is, before it got its name."""
    synced: set[tuple[int, int]] = set()
    names: list[str] = []
    fsync = os.fsync

    def syncing(handle: int) -> None:
        stat = os.fstat(handle)
        synced.add((stat.st_ino, stat.st_size))
        fsync(handle)

    def renaming(honest: Any) -> Any:
        def rename(source: Any, target: Any, **options: Any) -> Any:
            stat = os.stat(source)
            assert (stat.st_ino, stat.st_size) in synced, f"{target}: renamed before it was on disk"
            names.append(Path(target).name)
            return honest(source, target, **options)

        return rename

    monkeypatch.setattr(os, "fsync", syncing)
    for name in ("replace", "rename"):  # which those of pathlib call
        monkeypatch.setattr(os, name, renaming(getattr(os, name)))
    run(sweep_of(SWEEP), tmp_path / "out", executor=Quick("count-ones"))
    assert len(names) == 4  # the manifest, two cells, a failure
