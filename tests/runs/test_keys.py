"""What a key hashes, found from the imports and not from a list; and that what is renamed into place is on disk before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hooks
import mitigations
from ostools.models.files.sources import locate
from ostools.results import write_atomically
from ostools.runs import run, sweep_of
from ostools.runs.asked import cells
from scripts import house
from tests.runs.test_faults import SWEEP, Quick

ROOT = Path(house.ROOT)


def defining() -> set[Path]:
    """The files of every module that a measurement of a sweep reaches, with the `__init__` of the packages that it is in.

    Not what the `__init__` of ostools and of its `runs` reach: they hand on everything, and are run by no measurement.
    """
    files = house.modules()
    found = house.imports(files)
    seen: set[str] = set()
    wanted = [name for name in files if name.startswith("ostools.runs.measurements")]
    while wanted:
        name = wanted.pop()
        if name in seen or name in ("ostools", "ostools.runs"):
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
    monkeypatch.setattr(cells, "__file__", str(tmp_path / "ostools" / "runs" / "asked" / "cells.py"))
    return tmp_path


def _hashes() -> dict[str, str]:
    return dict(cells._sources(cells._DEFINING))


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
    found = [fresh()]
    (copied / "hooks" / "another.py").touch()
    found.append(fresh())
    (copied / "hooks" / "another.py").rename(copied / "hooks" / "other.py")
    found.append(fresh())
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "tokenizer.json", "merges.txt", "tokenizer.model", "chat_template.jinja"],
)
def test_every_file_that_loading_reads_is_in_the_checkpoints_hash(directory: str, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    found = []
    for content in (b"a", b"b"):
        (copy / name).write_bytes(content)
        found.append(cells.checkpoint_hash(locate(str(copy), None)))
    assert found[0] != found[1]


def test_the_names_of_its_files_are_in_the_checkpoints_hash(directory: str, tmp_path: Path) -> None:
    """No other file stands between the two names."""
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / "vocab.txt").write_bytes(b"a")
    before = cells.checkpoint_hash(locate(str(copy), None))
    (copy / "vocab.txt").rename(copy / "vocab2.txt")
    assert cells.checkpoint_hash(locate(str(copy), None)) != before


@pytest.mark.parametrize(
    "package",
    ["torch", "transformers", "transformer-lens", "tokenizers", "numpy", "scipy", "scikit-learn", "statsmodels"],
)
def test_another_version_of_what_computes_is_another_key(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, known = cells.code_version.__wrapped__, cells.version
    before = fresh()
    monkeypatch.setattr(cells, "version", lambda name: "0.0" if name == package else known(name))
    assert fresh() != before


def test_another_python_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cells.code_version.__wrapped__()
    monkeypatch.setattr(cells.platform, "python_version", lambda: "3.0.0")
    assert cells.code_version.__wrapped__() != before


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names that files were renamed to; each was handed to the disk, as long as it is, before that."""
    synced: set[tuple[int, int]] = set()
    names: list[str] = []
    fsync = os.fsync

    def syncing(handle: int) -> None:
        found = os.fstat(handle)
        synced.add((found.st_ino, found.st_size))
        fsync(handle)

    def renaming(honest: Any) -> Any:
        def rename(source: Any, target: Any, **options: Any) -> Any:
            found = os.stat(source)
            assert (found.st_ino, found.st_size) in synced, f"{target}: renamed before it was on disk"
            names.append(Path(target).name)
            return honest(source, target, **options)

        return rename

    monkeypatch.setattr(os, "fsync", syncing)
    for name in ("replace", "rename"):  # which those of pathlib call
        monkeypatch.setattr(os, name, renaming(getattr(os, name)))
    yield names
    assert names


def test_what_is_renamed_into_place_is_on_disk_before(renamed: list[str], tmp_path: Path) -> None:
    write_atomically(tmp_path / "x.txt", lambda part: part.write_text("text"))
    assert renamed == ["x.txt"]


def test_whatever_a_sweep_renames_is_on_disk_before(renamed: list[str], tmp_path: Path) -> None:
    run(sweep_of(SWEEP), tmp_path / "out", executor=Quick("count-ones"))
    assert len(renamed) == 4  # the manifest, two cells, a failure
