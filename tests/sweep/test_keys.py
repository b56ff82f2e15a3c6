"""What a key hashes; and that what is renamed into place is on disk before."""

import os
import shutil
from pathlib import Path

import pytest

from ostools.models.files.sources import locate
from ostools.results import write_atomically
from ostools.sweep import cells


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


def test_what_is_renamed_into_place_was_handed_to_the_disk_as_long_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    replace = Path.replace

    def renamed(part: Path, target: Path) -> Path:
        assert synced == [part.stat().st_size]
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", renamed)
    write_atomically(tmp_path / "x", lambda part: part.write_bytes(b"content"))
    assert (tmp_path / "x").read_bytes() == b"content"
