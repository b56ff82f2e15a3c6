"""The executor of a Ray cluster: one that is there, or one on this machine that ends with the run.

Numbers are those of one process: in float32 on CPUs, with one CPU a worker, to the bit. Cost: seconds until the workers have
begun, milliseconds a cell; one process is the cheaper choice for a sweep of a minute.

Workers are actors that keep a model between cells. A cell whose worker is lost is measured by another worker.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ostools.ground.errors import InputError
from ostools.models.load import resolve_device
from ostools.runs.cells import KeyedCell, code_version, to_load
from ostools.runs.executor import Bench, CellOutcome, Executor, Job, Rows, Terms
from ostools.runs.ray_connection import AUTO, alive, checked_address, connected

RETRIES = 2
"""How often a cell whose worker was lost is tried again. Then it is recorded as failed: it may be what ends its workers."""
_PATIENCE = 60.0  # seconds to wait for a node with room for a worker where none is left


class RayCluster(Executor):
    """The workers of a Ray cluster. Each has a model of its own, and measures one cell at a time.

    Args:
        address: such as "10.0.0.1:6379", as `ray start --head` prints it; "auto": the cluster that this machine belongs to.
            None: the one that this process is connected to; without such a one, a cluster on this machine is started, and
            ended again.
        workers: how many at most; None: as many as there is room for.
        cpus: how many CPUs a worker asks for, and how many threads it computes with. It also asks for a GPU if the device is
            cuda (with `device_map: auto`, for all GPUs of a node), and otherwise for the memory that the largest cell is
            forecast to take.

    Every node needs the same versions, plugins and checkpoints, and this is checked: other code ends the run, and another
    checkpoint or plugin fails the cell. A cell whose worker or node is lost is tried again, twice at most. A cell that raises
    has failed. Raises `InputError` if Ray is not installed, if no cluster answers, and if none of its nodes has room for a
    worker.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None, cpus: int = 1) -> None:
        for name, value in (("workers", workers), ("cpus", cpus)):
            if value is not None and value < 1:
                raise InputError(f"{name}: expected 1 or more, found {value}")
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise InputError("expected Ray, found none: pip install 'oversquashing-tools[ray]'") from None
        self.ray: Any = ray
        self.address = None if address is None else checked_address(address)
        self.workers, self.cpus = workers, cpus

    def device(self, device: str) -> str:
        """cuda where the cluster, which need not be where this process runs, has GPUs; else cpu."""
        if device not in (AUTO, "cpu", "cuda"):
            raise InputError(
                f"device {device!r}: expected auto, cpu or cuda on a Ray cluster, which gives each worker a GPU of its own"
            )
        if self.address is None and not self.ray.is_initialized():
            return str(resolve_device(device))
        with connected(self.ray, self.address):
            gpus = sum(node.get("GPU", 0) for node in alive(self.ray))
        if device == "cuda" and gpus < 1:
            raise InputError("device 'cuda': expected a Ray cluster with GPUs, found none; use device 'auto' or 'cpu'")
        return device if device != AUTO else "cuda" if gpus >= 1 else "cpu"

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        if not jobs:
            return
        with connected(self.ray, self.address):
            gpus = self._gpus(terms)
            largest = self._largest_memory(Needs(self.cpus, gpus, 0))
            for job in jobs:
                if not gpus and job.forecast.memory > largest:
                    yield job.keyed_cell, _too_large(job, largest)
            fitting = [job for job in jobs if gpus or job.forecast.memory <= largest]
            memory = 0 if gpus else max((job.forecast.memory for job in fitting), default=0)
            yield from self._measure(fitting, terms, Needs(self.cpus, gpus, memory))

    def _gpus(self, terms: Terms) -> int:
        """GPUs of a worker: one; all that a node has, where a model's weights may lie on several."""
        if terms.device != "cuda":
            return 0
        return 1 if terms.device_map != "auto" else max(int(node.get("GPU", 0)) for node in alive(self.ray))

    def _largest_memory(self, needs: Needs) -> float:
        """The most memory of a node that has the CPUs and GPUs of a worker. Raises `InputError` where there is none."""
        everywhere = alive(self.ray)
        nodes = [node for node in everywhere if needs.room([node])]
        if not nodes:
            node_words = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in everywhere)
            raise InputError(f"expected a node with {needs} for a worker, found nodes with {node_words}")
        if self.address is None and self.workers is not None and self.workers > (most := needs.room(nodes)):
            raise InputError(
                f"{self.workers} workers of {needs}: expected at most {most} on this machine; give fewer, or the address "
                "of a cluster"
            )
        return max(node.get("memory", 0) for node in nodes)

    def _measure(self, jobs: Sequence[Job], terms: Terms, needs: Needs) -> Iterator[CellOutcome]:
        """Every job once. Those of one model follow each other: a worker mostly keeps the model that it has."""
        queue = deque(sorted(jobs, key=lambda job: (to_load(job.keyed_cell.cell), -job.forecast.memory)))
        working: dict[Any, tuple[Any, Job]] = {}  # workers and their cells, by the references of the results
        tries: Counter[KeyedCell] = Counter()
        has_room = time.monotonic()

        def start(worker: Any) -> None:
            job = queue.popleft()
            working[worker.measure.remote(job)] = worker, job

        try:
            while queue or working:
                room = needs.room(alive(self.ray))
                for _ in range(min(room, self.workers or room) - len(working)):
                    if queue:
                        start(self._worker(terms, needs))
                if room:
                    has_room = time.monotonic()
                elif time.monotonic() - has_room > _PATIENCE:
                    raise InputError(
                        f"expected a node with room for a worker, found none for {_PATIENCE:g} seconds: "
                        f"{len(queue) + len(working)} cells are left; the same command goes on with them"
                    )
                if not working:
                    time.sleep(1.0)
                    continue
                for ref in self.ray.wait(list(working), timeout=1.0)[0]:
                    worker, job = working.pop(ref)
                    rows, lost = self._rows(ref)
                    if lost:
                        self._dismiss(worker)
                        tries[job.keyed_cell] += 1
                        if tries[job.keyed_cell] <= RETRIES:
                            queue.appendleft(job)
                            continue
                        rows = f"its worker was lost {tries[job.keyed_cell]} times: {rows}"
                    elif queue:  # its next cell is under way before this one is stored
                        start(worker)
                    else:
                        self._dismiss(worker)
                    yield job.keyed_cell, rows
        finally:
            for worker, _ in working.values():
                self._dismiss(worker)

    def _rows(self, ref: Any) -> tuple[Any, bool]:
        """What came of a cell; or why its worker was lost, and that it was. Raises `InputError` for a node with other code."""
        try:
            return self.ray.get(ref), False
        except self.ray.exceptions.RayTaskError as error:  # what a cell raises comes back as its rows
            raise InputError(_cause(error)) from error
        except self.ray.exceptions.RayError as error:
            return _cause(error), True

    def _worker(self, terms: Terms, needs: Needs) -> Any:
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory}
        kind = self.ray.remote(Worker).options(**options, max_restarts=0, scheduling_strategy="SPREAD")
        return kind.remote(terms, os.getcwd(), needs.cpus)

    def _dismiss(self, worker: Any) -> None:
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(worker, no_restart=True)


def _too_large(job: Job, largest: float) -> str:
    return (
        f"forecast to take {job.forecast.memory / 2**30:.2f} GiB of memory, and no node of the cluster has more than "
        f"{largest / 2**30:.2f} GiB for workers"
    )


class Worker:
    """A process of the cluster, with a model and `cpus` threads. Relative names mean what they mean in `directory`."""

    def __init__(self, terms: Terms, directory: str, cpus: int) -> None:
        with suppress(OSError):  # not on this node: then a relative name is refused when it is looked for
            os.chdir(directory)
        torch.set_num_threads(cpus)
        self._bench = Bench(terms)

    def measure(self, job: Job) -> Rows | str:
        """The rows of a cell, or what went wrong. Raises `InputError` where this node has other code: the run ends."""
        if code_version() != self._bench.terms.code:
            raise InputError(
                "expected the code and versions that the sweep was planned with on every node, found others on "
                f"{os.uname().nodename}: install the same there"
            )
        return self._bench.measure_planned(job.keyed_cell)


@dataclass(frozen=True)
class Needs:
    """What a worker asks of a node. The memory forecast for a GPU is the GPU's own, of which Ray keeps no account."""

    cpus: int
    gpus: int
    memory: int

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus > 1)}{gpus}"

    def room(self, nodes: Sequence[dict[str, float | int]]) -> int:
        """How many workers the nodes have room for, whoever else is there."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return sum(
            min(int(node.get(name, 0) // amount) for name, amount in amounts.items() if amount) for node in nodes
        )


def _cause(error: Exception) -> str:
    """Why a worker was lost, from Ray's pages about it."""
    text = " ".join(str(error).split())
    cause = re.search(r"[Tt]he actor is dead because .*?(?=\. |$)", text) or re.search(r"\S*Error: .*", text)
    return f"{type(error).__name__}: {cause.group() if cause else text}"[:500]
