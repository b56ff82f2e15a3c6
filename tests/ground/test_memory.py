"""Memory: what is left to a process under real limits and under control groups, smaller chunks, the
collector.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ostools.ground.errors import InsufficientMemoryError
from ostools.ground.memory import cgroup_limits, chunk, in_smaller_chunks

GIB = 1 << 30


def group(folder: Path, limit: str, used: int, cached: int) -> None:
    """A control group as a kernel shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


@pytest.fixture
def left(tmp_path: Path) -> Callable[[str], list[int]]:
    """The bytes that the groups under tmp_path / "fs" leave a process of which the kernel says
    this.
    """

    def found(content: str) -> list[int]:
        (tmp_path / "cgroup").write_text(content)
        return list(cgroup_limits(tmp_path / "cgroup", tmp_path / "fs"))

    return found


def test_every_group_up_the_tree_limits_a_process(
    left: Callable[[str], list[int]], tmp_path: Path
) -> None:
    job = tmp_path / "fs" / "job"
    group(job, str(8 * GIB), 3 * GIB, GIB)
    for limit, expected in (
        ("max", [6 * GIB]),
        (str(4 * GIB), [GIB, 6 * GIB]),
        (str(GIB), [0, 6 * GIB]),
    ):
        group(job / "step", limit, 3 * GIB, 0)
        assert left("0::/job/step\n") == expected


def test_what_is_forecast_not_to_fit_is_tried_in_halves_as_well() -> None:
    """It is refused before it is computed, by what it needs in chunks of the size that they have
    then.
    """
    tried: list[int] = []

    @in_smaller_chunks
    def work(least: int) -> str:
        tried.append(chunk(4096))
        if tried[-1] > least:
            raise InsufficientMemoryError(f"forecast {tried[-1]} bytes")
        return "done"

    assert (work(1024), tried) == ("done", [4096, 2048, 1024])
    with pytest.raises(InsufficientMemoryError, match="forecast 256 bytes"):
        work(0)
