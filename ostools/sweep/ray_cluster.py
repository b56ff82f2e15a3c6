"""The executor of a Ray cluster: one that is there, or one on this machine that ends with the run.

Numbers are those of one process: in float32 on CPUs, with one CPU a worker, to the bit. Cost:
seconds until the workers have begun, milliseconds a cell; one process is the cheaper choice for a
sweep of a minute.

Workers are actors that keep a model between cells. In the place of a lost worker another begins
where a node has room for it, and its cell is measured again.
"""

import logging
import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from ostools.ground import InputError, in_words, refusal, whole_number
from ostools.models.shape import resolve_device
from ostools.sweep.cells import KeyedCell, to_load
from ostools.sweep.executor import Bench, CellOutcome, Executor, Terms

AUTO = "auto"
RETRIES = 2
"""How often a cell whose worker was lost is tried again. Then it is recorded as failed: it may be
what ends its workers.
"""
# How long an address has to answer (Ray itself would wait for minutes), and results are waited for
# before the nodes are counted again.
_SECONDS = 5.0

Amounts: TypeAlias = Mapping[str, float | int]
"""CPUs and GPUs that a node has, or that a worker asks for."""


class RayCluster(Executor):
    """The workers of a Ray cluster. Each has a model of its own, and measures one cell at a time.

    Args:
        address: such as "10.0.0.1:6379", as `ray start --head` prints it; "auto": the cluster that
            this machine belongs to. None: the one that this process is connected to; without such a
            one, a cluster on this machine is started, and ended again.
        workers: how many at most; None: as many as there is room for.
        cpus: how many CPUs a worker asks for, and how many threads it computes with. It also asks
            for a GPU if the device is cuda.

    Every node needs the same versions, plugins and checkpoints: a cell fails on a node that has
    others. A cell whose worker or node is lost is tried again, twice at most; where no worker is
    left and no node has room for one, the cells that are left have failed. A cell that raises has
    failed. Raises `InputError` if Ray is not installed, if no cluster answers, and if none of its
    nodes has room for a worker.
    """

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, cpus: int = 1
    ) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise InputError(
                "expected Ray, found none: pip install 'oversquashing-tools[ray]'"
            ) from None
        self.ray: ModuleType = ray
        self.address, self.cpus = address, whole_number("cpus", cpus, 1)
        self.workers = None if workers is None else whole_number("workers", workers, 1)

    def device(self, device: str) -> str:
        """cuda where the cluster, which need not be where this process runs, has GPUs; else cpu."""
        if device not in (AUTO, "cpu", "cuda"):
            raise InputError(
                f"device {device!r}: expected auto, cpu or cuda on a Ray cluster, which gives each "
                "worker a GPU of its own"
            )
        if self.address is None and not self.ray.is_initialized():
            return str(resolve_device(device))
        with _connected(self.ray, self.address):
            has_gpu = any(node.get("GPU", 0) >= 1 for node in self._nodes())
        return device if device != AUTO else "cuda" if has_gpu else "cpu"

    def measure(
        self, cells: Sequence[KeyedCell], terms: Terms
    ) -> Generator[CellOutcome, None, None]:
        if not cells:
            return
        needs = {"CPU": self.cpus, "GPU": int(terms.device == "cuda")}
        with _connected(self.ray, self.address):
            if not (room := _room(self._nodes(), needs)):
                raise InputError(
                    f"expected a node with {self.cpus} CPUs and {needs['GPU']} GPUs for a worker, "
                    "found none"
                )
            yield from self._measure(
                cells, terms, needs, min(room, len(cells), self.workers or room)
            )

    def _nodes(self) -> list[Amounts]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _measure(
        self, cells: Sequence[KeyedCell], terms: Terms, needs: Amounts, count: int
    ) -> Iterator[CellOutcome]:
        """Every cell once. Those of one model follow each other: a worker mostly keeps the model
        that it has.
        """
        queue = deque(sorted(cells, key=lambda keyed_cell: to_load(keyed_cell.cell)))
        kind = self.ray.remote(Worker).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], scheduling_strategy="SPREAD"
        )
        crew = _Crew(self.ray, partial(kind.remote, terms, os.getcwd(), self.cpus))
        losses = Counter[KeyedCell]()
        while (queue or crew.cells) and (room := _room(self._nodes(), needs)):
            crew.fill(min(count, room))
            for keyed_cell, rows in crew.results(queue):
                if isinstance(rows, self.ray.exceptions.RayError):
                    losses[keyed_cell] += 1
                    if losses[keyed_cell] <= RETRIES:
                        queue.appendleft(keyed_cell)
                        continue
                    rows = f"its worker was lost {RETRIES + 1} times: {in_words(rows)[:500]}"
                yield keyed_cell, rows
        for keyed_cell in (*queue, *crew.cells):
            yield keyed_cell, "no node of the cluster has room for a worker any more"


class _Crew:
    """Workers of a cluster. One that begins has no cell: if its node is lost meanwhile it waits for
    another, which may never come.
    """

    def __init__(self, ray: ModuleType, begin: Callable[[], Any]) -> None:
        self._ray, self._begin = ray, begin
        self._idle: list[Any] = []
        # Workers and their cells (None: it begins), by the references of the results.
        self._working: dict[object, tuple[Any, KeyedCell | None]] = {}

    @property
    def cells(self) -> list[KeyedCell]:
        """The cells that are at work."""
        return [keyed_cell for _, keyed_cell in self._working.values() if keyed_cell]

    def fill(self, count: int) -> None:
        """Have workers begin until there are so many."""
        while len(self._idle) + len(self._working) < count:
            worker = self._begin()
            self._working[worker.runs.remote()] = worker, None

    def results(self, queue: deque[KeyedCell]) -> Iterator[tuple[KeyedCell, Any]]:
        """Give cells of the queue to idle workers, and wait for a while: what came of each cell
        that is ready, Ray's error where its worker was lost.
        """
        while queue and self._idle:
            worker, keyed_cell = self._idle.pop(0), queue.popleft()
            self._working[worker.measure.remote(keyed_cell)] = worker, keyed_cell
        references, _ = self._ray.wait(list(self._working), timeout=_SECONDS)
        for reference in references:
            worker, keyed_cell = self._working.pop(reference)
            try:
                rows = self._ray.get(reference)
                self._idle.append(worker)
            except self._ray.exceptions.RayError as error:
                rows = error
            if keyed_cell is not None:
                yield keyed_cell, rows


class Worker(Bench):
    """A process of the cluster, with a model and `cpus` threads. Relative names mean what they mean
    in `directory`.
    """

    def __init__(self, terms: Terms, directory: str, cpus: int) -> None:
        # Not on this node: then a relative name is refused when it is looked for.
        with suppress(OSError):
            os.chdir(directory)
        torch.set_num_threads(cpus)
        super().__init__(terms)

    def runs(self) -> None:
        """Nothing; whoever asks for it learns that the worker runs."""


def _room(nodes: Sequence[Amounts], needs: Amounts) -> int:
    """How many workers the nodes have room for, whoever else is there."""
    return sum(
        min(int(node.get(name, 0) // amount) for name, amount in needs.items() if amount)
        for node in nodes
    )


@contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """Connected to the cluster, and disconnected again, which ends its workers; a connection that
    was there stays.

    `address` None: the connection that there is, or a cluster on this machine, which ends with the
    block.
    """
    if ray.is_initialized() and address is None:
        yield
        return
    if address not in (None, AUTO):
        host, _, port = address.rpartition(":")
        with refusal(
            f"HOST:PORT of a Ray cluster that answers, such as 10.0.0.1:6379, found {address!r}"
        ):
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    # No usage statistics are sent; what the command prints is a table.
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with patch.dict(os.environ, variables), redirect_stdout(sys.stderr):
        with refusal(f"a Ray cluster at {address or 'this machine'} that can be used"):
            local = {"include_dashboard": False} if address is None else {}
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **local,
            )
        try:
            yield
        finally:
            ray.shutdown()
