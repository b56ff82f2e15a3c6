"""Sweeps on a real Ray cluster of two nodes: the numbers of one process to the bit, whatever is
lost on the way.
"""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.ground.errors import InputError
from ostools.sweep import (
    RayCluster,
    executor,
    plan,
    ray_cluster,
    results,
    run,
    sweep_of,
)
from ostools.sweep.cells import KeyedCell
from ostools.sweep.ray_cluster import Worker
from stress._runs import table
from tests.sweep.test_run import asked

ray = pytest.importorskip("ray", reason="Ray is not installed")
# Ray leaves sockets and processes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")
FEW: dict[str, Any] = {"measurements": "evaluate", "dtypes": ["float32", "bfloat16"]}
"""Two cells."""
MANY = {**FEW, "tasks": ["copy-last", "count-ones"], "mitigations": ["none", "separator:every=2"]}
"""Eight cells."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, installed: Any) -> Iterator[Any]:
    """A head and another node, with room for one worker each, that have a plugin; the driver finds
    it too.
    """
    from ray.cluster_utils import Cluster

    home = tmp_path_factory.mktemp("plugin")
    installed(home, "Lethal", LETHAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(home)]))
        patch.syspath_prepend(str(home))
        found = Cluster(
            initialize_head=True, connect=False, head_node_args={**NODE, "include_dashboard": False}
        )
        found.add_node(**NODE)
        yield found
        ray.shutdown()
        found.shutdown()


HERE = Path(__file__).resolve().parents[2]
LETHAL = """
import os
from dataclasses import dataclass

from ostools.mitigations import Mitigation


@dataclass(frozen=True)
class Lethal(Mitigation):
    def hooks(self, model):
        os._exit(3)  # as the kernel ends a process that takes too much memory
"""
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}


def address(cluster: Any) -> str:
    return f"127.0.0.1:{cluster.address.rpartition(':')[2]}"


def stored(out: Path) -> int:
    return len(list((out / "cells").glob("[!.]*.parquet")))


class Harm(threading.Thread):
    """Does something once the first cell is stored, from another thread; `after` is how many were
    stored by then.
    """

    def __init__(self, out: Path, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.out, self.act, self.after = out, act, 0
        self.start()

    def run(self) -> None:
        while not stored(self.out):
            time.sleep(0.02)
        self.act()
        self.after = stored(self.out)


# --- numbers and losses


@pytest.mark.slow
def test_the_numbers_are_those_of_one_process_whatever_is_lost(
    cluster: Any, written: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A node with its worker, while it is at work."""
    sweep, cells = sweep_of(asked(written, **MANY)), 8
    node = cluster.list_all_nodes()[1]
    harm = Harm(tmp_path / "ray", lambda: cluster.remove_node(node, allow_graceful=False))
    counts: list[tuple[int, int]] = []
    capfd.readouterr()
    done = run(
        sweep,
        tmp_path / "ray",
        executor=RayCluster(address(cluster)),
        progress=lambda *count: counts.append(count),
    )
    told = capfd.readouterr()
    harm.join()
    cluster.add_node(**NODE)
    assert 0 < harm.after < cells  # it was under way
    assert (done.measured, done.failed) == (cells, ())
    assert (counts, told.out) == ([(done_cells, cells) for done_cells in range(cells + 1)], "")
    assert not ray.is_initialized()
    run(sweep, tmp_path / "local")
    pd.testing.assert_frame_equal(
        table(tmp_path / "ray"), table(tmp_path / "local"), check_exact=True
    )


@pytest.mark.slow
def test_a_worker_for_which_there_is_no_room_any_more_holds_no_cell(
    cluster: Any, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes have room for two: the third waits for one that does not come."""
    monkeypatch.setattr(ray_cluster, "_room", lambda nodes, needs: 3)
    monkeypatch.setattr(ray_cluster, "_SECONDS", 0.5)
    done = run(sweep_of(asked(written, **MANY)), tmp_path, executor=RayCluster(address(cluster)))
    assert (done.measured, done.failed) == (8, ())


@pytest.mark.slow
def test_a_cell_that_ends_its_worker_is_recorded_and_the_others_go_on(
    cluster: Any, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostools.sweep.ray_cluster.RETRIES", 1)
    sweep = sweep_of(asked(written, mitigations=["lethal", "none"], lengths=[3]))
    done = run(sweep, tmp_path / "out", executor=RayCluster(address(cluster)))
    assert done.measured == 1
    (failed,) = done.failed
    assert "under lethal" in failed
    assert "its worker was lost 2 times: Actor" in failed
    assert results(tmp_path / "out")["mitigation"].tolist() == ["none"]
    assert run(sweep, tmp_path / "out").failed[0].endswith(failed)


# --- what must be the same on every node


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "keyed",
            "expected the plugins and files that the sweep was planned with, found others on ",
        ),
        (
            "checkpoint_hash",
            "expected the checkpoint of .* that the sweep was planned with, found another one here",
        ),
        (
            "code_version",
            "expected the versions that the sweep was planned with, found others here",
        ),
    ],
)
def test_a_worker_with_another_plugin_checkpoint_or_code_measures_nothing(
    written: Path, tmp_path: Path, name: str, message: str
) -> None:
    nothing = "0" * 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            executor, name, lambda *of: KeyedCell(of[0], nothing) if name == "keyed" else nothing
        )
        found = plan(sweep_of(asked(written, **FEW)), tmp_path)
    assert re.search(message, str(Worker(found.terms, os.getcwd(), 1).measure(found.pending[0])))


# --- room


@pytest.mark.slow
def test_a_cluster_without_room_for_a_worker_is_refused(
    cluster: Any, written: Path, tmp_path: Path
) -> None:
    for device, cpus, words in (
        (
            "cpu",
            64,
            "a node with 64 CPUs and 0 GPUs for a worker, found none",
        ),
        ("cuda", 1, "a node with 1 CPUs and 1 GPUs for a worker, found none"),
        ("cuda:1", 1, "device 'cuda:1': expected auto, cpu or cuda"),
    ):
        with pytest.raises(InputError, match=words):
            run(
                sweep_of(asked(written, device=device)),
                tmp_path,
                executor=RayCluster(address(cluster), cpus=cpus),
            )
    assert not ray.is_initialized()


def test_room_is_counted_node_by_node() -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 3.0, "GPU": 2.0}, {"memory": 100.0}]
    needs = [{"CPU": 1, "GPU": 0}, {"CPU": 2, "GPU": 0}, {"CPU": 1, "GPU": 1}]
    assert [ray_cluster._room(nodes, amounts) for amounts in needs] == [7, 3, 2]


# --- addresses


def test_where_no_cluster_answers_there_is_none(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_SECONDS", 0.3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{other.getsockname()[1]}"
        for where in (closed, "no-such-host.invalid:6379", "", "10.0.0.1", "host:65536"):
            with pytest.raises(InputError, match="HOST:PORT of a Ray cluster that answers"):
                run(sweep_of(asked(written)), tmp_path, executor=RayCluster(where))
    assert not ray.is_initialized()


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'oversquashing-tools\[ray\]'"):
        RayCluster()
