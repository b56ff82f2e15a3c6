"""A run that is followed through a file system that fails for a moment."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from ostools.runs.stored import following
from ostools.runs.stored.store import Store
from tests.runs.test_results import keep, wanted


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.locked():
        store.ask([wanted(0)])
        keep(store, wanted(0))
        watch = following.Following(tmp_path)
        with mock.patch.object(following.parquet, "read_schema", side_effect=OSError("Input/output error")):
            assert watch.look().measured == 0
        assert watch.look().measured == 1
