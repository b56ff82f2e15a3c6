"""The memory that is left to a process: under real limits, and under control groups as a kernel shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ostools.ground.errors import InsufficientMemoryError
from ostools.ground.memory import cgroup_limits
from ostools.ground.out_of_memory import chunk, chunks_that_fit

GIB = 1 << 30


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def left(proc: Path, mounted: Path) -> list[int]:
    return [found.bytes for found in cgroup_limits(proc, mounted)]


def test_every_group_up_the_tree_limits_a_process(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text("0::/job/step\n")
    group(mounted / "job" / "step", V2, "max", 3 * GIB, 0)
    group(mounted / "job", V2, str(8 * GIB), 3 * GIB, GIB)
    assert left(proc, mounted) == [6 * GIB]
    group(mounted / "job" / "step", V2, str(4 * GIB), 3 * GIB, 0)
    assert left(proc, mounted) == [GIB, 6 * GIB]
    group(mounted / "job" / "step", V2, str(GIB), 3 * GIB, 0)
    assert left(proc, mounted)[0] == 0


def test_the_first_version_too(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text("9:name=systemd:/\n5:cpu,cpuacct:/slurm/job_1\n4:memory:/slurm/job_1\n0::/\n")
    group(mounted / "memory" / "slurm" / "job_1", V1, str(5 * GIB), 2 * GIB, GIB)
    group(mounted / "memory", V1, "9223372036854771712", 9 * GIB, 0)
    assert left(proc, mounted) == [4 * GIB, 9223372036854771712 - 9 * GIB]


@pytest.mark.parametrize("content", ["", "nonsense\n", "0::/\n", "0::\n4:memory\n"])
def test_what_is_not_there_is_no_limit(tmp_path: Path, content: str) -> None:
    (tmp_path / "cgroup").write_text(content)
    assert left(tmp_path / "cgroup", tmp_path / "fs") == []
    assert left(tmp_path / "missing", tmp_path / "fs") == []
    group(tmp_path / "fs", V2, "much", 1, 1)
    assert left(tmp_path / "cgroup", tmp_path / "fs") == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's memory against these limits")
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_on_this_process_is_seen(name: str) -> None:
    """What is said to be free can be had, and no more: to 8 MiB, in pieces of one."""
    code = f"""
import resource, psutil
from ostools.ground.memory import free_memory
now = psutil.Process().memory_info()
used = now.vms if {name!r} == "RLIMIT_AS" else now.data
resource.setrlimit(resource.{name}, (used + (100 << 20), resource.RLIM_INFINITY))
found = free_memory()
assert {name!r} in str(found), found
import mmap
held = []
try:
    while True:
        held.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
except OSError:
    pass
print(found.bytes - (len(held) << 20))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert abs(int(done.stdout)) < 8 << 20


def test_what_is_forecast_not_to_fit_is_tried_in_halves_as_well() -> None:
    """It is refused before it is computed, by what it needs in chunks of the size that they have then."""
    tried: list[int] = []

    def work() -> None:
        tried.append(chunk(4096))
        if tried[-1] > 1024:
            raise InsufficientMemoryError(f"forecast {tried[-1]} bytes")

    assert chunks_that_fit(work, lambda error: InsufficientMemoryError(str(error))) == (None, 0.25)
    assert tried == [4096, 2048, 1024]
