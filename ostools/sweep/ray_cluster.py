"""The executor of a Ray cluster: one that is there, or one on this machine that ends with the run.

Numbers are those of one process: in float32 on CPUs, with one CPU a worker, to the bit. Cost:
seconds until the workers have begun, milliseconds a cell; one process is the cheaper choice for a
sweep of a minute.

Workers are actors that keep a model between cells. A cell whose worker is lost is measured by
another worker.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from ostools.ground.errors import InputError, in_words, short_repr
from ostools.models.devices import resolve_device
from ostools.sweep.cells import KeyedCell, to_load
from ostools.sweep.executor import Bench, CellOutcome, Executor, Job, Rows, Terms

AUTO = "auto"
RETRIES = 2
"""How often a cell whose worker was lost is tried again. Then it is recorded as failed: it may be
what ends its workers.
"""
_PATIENCE = 60.0  # seconds to wait for a node with room for a worker where none is left
_SECONDS = 5.0  # how long a cluster has to answer; Ray itself would wait for ever
_OBJECTS = (
    128 << 20
)  # bytes of shared memory of a cluster of our own: results are tables of kilobytes

Amounts: TypeAlias = Mapping[str, float | int]
"""CPU, GPU and bytes of memory that a node has, or that a worker asks for."""


class RayCluster(Executor):
    """The workers of a Ray cluster. Each has a model of its own, and measures one cell at a time.

    Args:
        address: such as "10.0.0.1:6379", as `ray start --head` prints it; "auto": the cluster that
            this machine belongs to. None: the one that this process is connected to; without such a
            one, a cluster on this machine is started, and ended again.
        workers: how many at most; None: as many as there is room for.
        cpus: how many CPUs a worker asks for, and how many threads it computes with. It also asks
            for a GPU if the device is cuda (with `device_map: auto`, for all GPUs of a node), and
            otherwise for the memory that the largest cell is forecast to take.

    Every node needs the same versions, plugins and checkpoints: a cell fails on a node that has
    others. A cell whose worker or node is lost is tried again, twice at most. A cell that raises
    has failed. Raises `InputError` if Ray is not installed, if no cluster answers, and if none of
    its nodes has room for a worker.
    """

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, cpus: int = 1
    ) -> None:
        for name, value in (("workers", workers), ("cpus", cpus)):
            if value is not None and value < 1:
                raise InputError(f"{name}: expected 1 or more, found {value}")
        if not isinstance(address, str | None):
            raise InputError(
                f"Ray address: expected auto, or HOST:PORT, found {short_repr(address)}"
            )
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise InputError(
                "expected Ray, found none: pip install 'oversquashing-tools[ray]'"
            ) from None
        self.ray: Any = ray
        self.address, self.workers, self.cpus = address, workers, cpus

    def device(self, device: str) -> str:
        """cuda where the cluster, which need not be where this process runs, has GPUs; else cpu."""
        if device not in (AUTO, "cpu", "cuda"):
            raise InputError(
                f"device {device!r}: expected auto, cpu or cuda on a Ray cluster, which gives each worker a GPU of its own"
            )
        if self.address is None and not self.ray.is_initialized():
            return str(resolve_device(device))
        with _connected(self.ray, self.address):
            has_gpu = any(node.get("GPU", 0) >= 1 for node in self._nodes())
        if device == "cuda" and not has_gpu:
            raise InputError(
                "device 'cuda': expected a Ray cluster with GPUs, found none; use device 'auto' or 'cpu'"
            )
        return device if device != AUTO else "cuda" if has_gpu else "cpu"

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        if not jobs:
            return
        with _connected(self.ray, self.address):
            needs = {"CPU": self.cpus, "GPU": self._gpus(terms)}
            nodes = [node for node in self._nodes() if _room([node], needs)]
            if not nodes:
                present = "; ".join(
                    f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs"
                    for node in self._nodes()
                )
                raise InputError(
                    f"expected a node with {self.cpus} CPUs and {needs['GPU']} GPUs for a worker, found nodes with {present}"
                )
            largest = float("inf") if needs["GPU"] else max(node.get("memory", 0) for node in nodes)
            for job in jobs:
                if job.forecast.memory > largest:
                    yield (
                        job.keyed_cell,
                        (
                            f"forecast to take {job.forecast.memory / 2**30:.2f} GiB of memory, and no node of the cluster has "
                            f"more than {largest / 2**30:.2f} GiB for workers"
                        ),
                    )
            fitting = [job for job in jobs if job.forecast.memory <= largest]
            if not needs["GPU"]:  # the memory of a GPU is its own, of which Ray keeps no account
                needs["memory"] = max((job.forecast.memory for job in fitting), default=0)
            yield from self._measure(fitting, terms, needs)

    def _nodes(self) -> list[Amounts]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _gpus(self, terms: Terms) -> int:
        """GPUs of a worker: one; all that a node has, where a model's weights may lie on several."""
        if terms.device != "cuda":
            return 0
        return (
            1
            if terms.device_map != "auto"
            else max(int(node.get("GPU", 0)) for node in self._nodes())
        )

    def _measure(self, jobs: Sequence[Job], terms: Terms, needs: Amounts) -> Iterator[CellOutcome]:
        """Every job once. Those of one model follow each other: a worker mostly keeps the model
        that it has.
        """
        queue = deque(
            sorted(jobs, key=lambda job: (to_load(job.keyed_cell.cell), -job.forecast.memory))
        )
        working: dict[
            Any, tuple[Any, Job]
        ] = {}  # workers and their cells, by the references of the results
        tries: Counter[KeyedCell] = Counter()
        resources = {
            "num_cpus": needs["CPU"],
            "num_gpus": needs["GPU"],
            "memory": needs.get("memory", 0),
        }
        kind = self.ray.remote(Worker).options(
            **resources, max_restarts=0, scheduling_strategy="SPREAD"
        )

        def work_on(worker: Any = None) -> None:
            """The next cell of a worker, None: of a new one; the worker's end, and room for others,
            where no cell is left.
            """
            if queue:
                job, worker = queue.popleft(), worker or kind.remote(terms, os.getcwd(), self.cpus)
                working[worker.measure.remote(job)] = worker, job
            elif worker is not None:
                self._dismiss(worker)

        try:
            room = _room(self._nodes(), needs)
            for _ in range(min(room, self.workers or room)):
                work_on()
            while working:
                ready, _ = self.ray.wait(list(working), timeout=_PATIENCE)
                if not ready and not _room(self._nodes(), needs):
                    raise InputError(
                        f"expected a node with room for a worker, found none for {_PATIENCE:g} seconds: "
                        f"{len(queue) + len(working)} cells are left; the same command goes on with them"
                    )
                for reference in ready:
                    worker, job = working.pop(reference)
                    try:
                        rows = self.ray.get(reference)
                    except self.ray.exceptions.RayError as error:
                        self._dismiss(worker)
                        tries[job.keyed_cell] += 1
                        rows, worker = (
                            f"its worker was lost {tries[job.keyed_cell]} times: {_lost(error)}",
                            None,
                        )
                        if tries[job.keyed_cell] <= RETRIES:
                            queue.appendleft(job)
                    work_on(worker)  # its next cell is under way before this one is stored
                    if worker is not None or tries[job.keyed_cell] > RETRIES:
                        yield job.keyed_cell, rows
        finally:
            for worker, _ in working.values():
                self._dismiss(worker)

    def _dismiss(self, worker: Any) -> None:
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(worker)


class Worker:
    """A process of the cluster, with a model and `cpus` threads. Relative names mean what they mean
    in `directory`.
    """

    def __init__(self, terms: Terms, directory: str, cpus: int) -> None:
        with suppress(
            OSError
        ):  # not on this node: then a relative name is refused when it is looked for
            os.chdir(directory)
        torch.set_num_threads(cpus)
        self._bench = Bench(terms)

    def measure(self, job: Job) -> Rows | str:
        """The rows of a cell, or what went wrong."""
        return self._bench.measure_planned(job.keyed_cell)


def _room(nodes: Sequence[Amounts], needs: Amounts) -> int:
    """How many workers the nodes have room for, whoever else is there."""
    return sum(
        min(int(node.get(name, 0) // amount) for name, amount in needs.items() if amount)
        for node in nodes
    )


def _lost(error: Exception) -> str:
    """Return the beginning of Ray's page about a lost worker, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connected to the cluster, and disconnected again; a connection that was there stays.

    `address` None: the connection that there is, or a cluster on this machine, which ends with the
    block.
    """
    if ray.is_initialized():
        if address is not None:
            raise InputError(
                f"Ray address {address!r}: this process is connected to a Ray cluster already: give no address "
                "to use that one, or call ray.shutdown() first"
            )
        yield
        return
    # Ray's variables are gone afterwards; no usage statistics are sent; what the command prints is
    # a table.
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with (
        tempfile.TemporaryDirectory(prefix="ostools-ray-", ignore_cleanup_errors=True) as scratch,
        patch.dict(os.environ, variables),
        redirect_stdout(sys.stderr),
    ):
        try:
            _connect(ray, address, scratch)
            yield
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str | None, scratch: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECTS}
        options |= {"_temp_dir": scratch}
    else:
        options |= {"address": _answering(address)}
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except Exception as error:  # whatever Ray raises: another version, no shared memory, paths too long for sockets
        where = "on this machine" if address in (None, AUTO) else f"at {address!r}"
        start = (
            "; `ray start --head` starts one, HOST:PORT names another" if address == AUTO else ""
        )
        raise InputError(
            f"expected a Ray cluster {where}, found none that can be used: {in_words(error)[:300]}{start}"
        ) from error
    finally:
        # Ray takes the signal, and would abort at it with a dump of its threads.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, at_sigterm)


def _answering(address: str) -> str:
    """The address, once something listens there. Raises `InputError` within seconds, where Ray
    would wait for ever.
    """
    address = os.environ.get("RAY_ADDRESS") or AUTO if address == AUTO else address
    if address == AUTO:
        return address  # Ray looks for the processes of a cluster on this machine, and says so where it finds none
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"Ray address {address!r}: expected auto, or HOST:PORT of a Ray cluster such as 10.0.0.1:6379, found none there "
            f"({in_words(error)[:300]}): start one with `ray start --head`"
        ) from error
    return address
