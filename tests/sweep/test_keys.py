"""What a key hashes, found from the imports and not from a list; and that what is renamed into place is on disk before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hooks
import mitigations
from ostools.ground.records import records
from ostools.models.files.sources import locate
from ostools.reporting.reproduction.reproduce import _MEASURING
from ostools.sweep import cells, run, sweep_of
from scripts import house
from tests.sweep.test_faults import SWEEP, Quick

ROOT = Path(house.ROOT)


def defining() -> set[Path]:
    """The files of every module that a measurement of a sweep reaches, with the `__init__` of the packages that it is in.

    Not what the `__init__` of ostools and of its `sweep` reach: they hand on everything, and are run by no measurement.
    """
    files = house.modules()
    found = house.imports()
    seen: set[str] = set()
    swept = [record.sweep.partition(":")[0] for record in records().values() if record.sweep]
    wanted = ["ostools.sweep.measurements", *(f"ostools.{module}" for module in swept)]
    while wanted:
        name = wanted.pop()
        if name in seen or name in ("ostools", "ostools.sweep"):
            continue
        seen.add(name)
        parts = name.split(".")
        packages = (".".join(parts[:end]) for end in range(1, len(parts)))
        wanted += [*found[name], *(package for package in packages if package in files)]
    return {files[name] for name in seen}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the source whose hashes the keys take."""
    for package in house.PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "embedded"))
    for package in (hooks, mitigations):
        monkeypatch.setattr(package, "__file__", str(tmp_path / package.__name__ / "__init__.py"))
    monkeypatch.setattr(cells, "__file__", str(tmp_path / "ostools" / "sweep" / "cells.py"))
    return tmp_path


def _hashes() -> dict[str, str]:
    return dict(cells._source_hashes(cells._DEFINING))


@pytest.mark.slow
def test_every_module_that_a_measurement_reaches_is_in_the_key(copied: Path) -> None:
    """One byte more in each of them changes its hash; the hashes are in the key."""
    before, reached = _hashes(), defining()
    rooms = {path.parts[:2] for path in reached}
    assert {("ostools", room) for room in ("ground", "theory", "measure", "models", "tasks")} <= rooms
    assert {path.parts[0] for path in reached} == {"hooks", "mitigations", "ostools"}
    assert len(reached) > 100
    for path in reached:
        with (copied / path).open("a") as file:
            file.write("\n")
    after = _hashes()
    assert after.keys() == before.keys()
    assert len({name for name in after if after[name] != before[name]}) >= len(reached)
    fresh = cells.code_version.__wrapped__
    whole = fresh()
    with (copied / max(reached)).open("a") as file:
        file.write("\n")
    assert fresh() != whole


def test_a_module_that_is_added_or_moved_changes_the_key(copied: Path) -> None:
    fresh = cells.code_version.__wrapped__
    keys = [fresh()]
    (copied / "hooks" / "another.py").touch()
    keys.append(fresh())
    (copied / "hooks" / "another.py").rename(copied / "hooks" / "other.py")
    assert len({*keys, fresh()}) == 3


@pytest.mark.parametrize("room", [*_MEASURING, "sweep/corpus"])
def test_a_change_of_what_decides_a_stored_part_or_a_corpus_changes_its_key(copied: Path, room: str) -> None:
    """A room is a folder or one file; one that is not there is refused, as its key would never change."""
    fresh = cells.code_version.__wrapped__
    target = copied / "ostools" / room
    before = fresh(room)
    with (target if target.is_file() else min(target.rglob("*.py"))).open("a") as file:
        file.write("\n")
    assert fresh(room) != before
    with pytest.raises(FileNotFoundError, match="decides numbers"):
        fresh(f"{room}-of-yesterday")


def test_every_file_that_loading_reads_is_in_the_checkpoints_hash_with_its_name(directory: str, tmp_path: Path) -> None:
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
        monkeypatch.setattr(cells, "version", lambda name: "0.0" if name == package else honest(name))  # noqa: B023
        keys.append(fresh())
    monkeypatch.setattr(cells.platform, "python_version", lambda: "3.0.0")
    keys.append(fresh())
    assert len(set(keys)) == 2 + len(cells._VERSIONS)


def test_whatever_a_sweep_renames_is_on_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
