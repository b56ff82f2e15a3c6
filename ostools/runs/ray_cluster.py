"""The executor of a Ray cluster: one that is there, or one on this machine that ends with the run.

Numbers are those of one process: in float32 on CPUs, with one CPU a worker, to the bit. Cost: seconds until the workers have
begun, milliseconds a cell; one process is the cheaper choice for a sweep of a minute.

Workers are actors that keep a model between cells. Ray's own retries are not used: tasks that found a model in a process's
cache would hold memory that Ray does not count, and a restarted actor tells nobody that it lost its cell and its model. Here a
lost cell goes back into the queue, is told, and is measured by whichever worker is free.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ostools.ground.errors import InputError
from ostools.models.load import resolve_device
from ostools.runs.cells import KeyedCell, code_version, to_load
from ostools.runs.executor import Bench, CellOutcome, Executor, Job, Terms
from ostools.runs.measurements.record import Rows
from ostools.runs.ray_connection import AUTO, alive, checked_address, connected, import_ray

RETRIES = 2
"""How often a cell whose worker was lost is tried again. Then it is recorded as failed: it may be what ends its workers."""
_FALSE_STARTS = 10  # how many workers in a row may be lost before they have begun
_PATIENCE = 60.0  # seconds to wait for a node with room for a worker where none is left
_TICK = 1.0
_Loads: TypeAlias = tuple[str, str]


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
        say: called with one line for every worker that is lost, and for every cell that is tried again.

    Every node needs the same versions, plugins and checkpoints, and this is checked: other code ends the run, and another
    checkpoint or plugin fails the cell. A cell whose worker or node is lost is tried again, twice at most. A cell that raises
    has failed. Raises `InputError` if Ray is not installed, if no cluster answers, and if none of its nodes has room for a
    worker.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus: int = 1,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        for name, value in (("workers", workers), ("cpus", cpus)):
            if value is not None and value < 1:
                raise InputError(f"{name}: expected 1 or more, found {value}")
        self.ray = import_ray()
        self.address = None if address is None else checked_address(address)
        self.workers, self.cpus, self.say = workers, cpus, say

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
            fitting, too_large = self._fitting(jobs, gpus)
            yield from too_large
            memory = 0 if gpus else max((job.forecast.memory for job in fitting), default=0)
            crew = _Crew(self.ray, fitting, terms, Needs(self.cpus, gpus, memory), self.workers, self.say)
            try:
                yield from crew.measure()
            finally:
                crew.dismiss_all()

    def _gpus(self, terms: Terms) -> int:
        """GPUs of a worker: one; all that a node has, where a model's weights may lie on several."""
        if terms.device != "cuda":
            return 0
        return 1 if terms.device_map != "auto" else max(int(node.get("GPU", 0)) for node in alive(self.ray))

    def _fitting(self, jobs: Sequence[Job], gpus: int) -> tuple[list[Job], list[CellOutcome]]:
        """The jobs that some node has the memory for, and the others as failures. Raises `InputError` where no worker fits."""
        needs, everywhere = Needs(self.cpus, gpus, 0), alive(self.ray)
        nodes = [node for node in everywhere if needs.room([node])]
        if not nodes:
            node_words = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in everywhere)
            raise InputError(f"expected a node with {needs} for a worker, found nodes with {node_words}")
        if self.address is None and self.workers is not None and self.workers > (most := needs.room(nodes)):
            raise InputError(
                f"{self.workers} workers of {needs}: expected at most {most} on this machine; give fewer, or the address "
                "of a cluster"
            )
        largest = max(node.get("memory", 0) for node in nodes)
        too_large = [job for job in jobs if not gpus and job.forecast.memory > largest]
        failures: list[CellOutcome] = [
            (
                job.keyed_cell,
                f"forecast to take {job.forecast.memory / 2**30:.2f} GiB of memory, and no node of the cluster has "
                f"more than {largest / 2**30:.2f} GiB for workers",
            )
            for job in too_large
        ]
        return [job for job in jobs if gpus or job.forecast.memory <= largest], failures


class Worker:
    """A process of the cluster, with a model and `cpus` threads."""

    def begin(self, terms: Terms, directory: str, cpus: int) -> str | None:
        """None, or why this process may not measure. Relative names of models mean what they mean in `directory`."""
        with suppress(OSError):  # not on this node: then a relative name is refused when it is looked for
            os.chdir(directory)
        torch.set_num_threads(cpus)
        self._bench = Bench(terms)
        if code_version() != terms.code:
            return (
                "expected the code and versions that the sweep was planned with on every node, found others on "
                f"{os.uname().nodename}: install the same there"
            )
        return None

    def measure(self, job: Job) -> Rows | str:
        """The rows of a cell, or what went wrong."""
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


@dataclass(eq=False)
class _Member:
    """A worker, the model that it holds, and its cell: None while it begins."""

    actor: Any
    loads: _Loads | None = None
    job: Job | None = None


class _Crew:
    """The workers of one run. `say` is told of every worker that is lost."""

    def __init__(
        self,
        ray: Any,
        jobs: Sequence[Job],
        terms: Terms,
        needs: Needs,
        workers: int | None,
        say: Callable[[str], None],
    ) -> None:
        self.ray, self.terms, self.needs, self.workers, self.say = ray, terms, needs, workers, say
        self._queues: dict[_Loads, deque[Job]] = {}
        for job in sorted(jobs, key=lambda job: job.forecast.memory, reverse=True):  # a long one is not left to the end
            self._queues.setdefault(to_load(job.keyed_cell.cell), deque()).append(job)
        self._members: dict[Any, _Member] = {}  # by the reference of what each is doing
        self._tries: Counter[KeyedCell] = Counter()
        self._false_starts = 0
        self._kind = ray.remote(Worker)

    @property
    def _jobs_left(self) -> int:
        return sum(map(len, self._queues.values()))

    def measure(self) -> Iterator[CellOutcome]:
        """Every job once. A worker's next cell is under way before its last one is stored: at most one result a worker."""
        progressed = time.monotonic()
        while self._jobs_left or any(member.job for member in self._members.values()):
            self._hire()
            if self._members:
                progressed = time.monotonic()
            elif time.monotonic() - progressed > _PATIENCE:
                raise InputError(
                    f"expected a node with room for a worker, found none for {_PATIENCE:g} seconds: {self._jobs_left} "
                    "cells are left; the same command goes on with them"
                )
            else:
                time.sleep(_TICK)
                continue
            for ref in self.ray.wait(list(self._members), num_returns=1, timeout=_TICK)[0]:
                outcome = self._finish(ref)
                if outcome is not None:
                    yield outcome

    def dismiss_all(self) -> None:
        for member in self._members.values():
            self._dismiss(member)
        self._members.clear()

    def _hire(self) -> None:
        """Start workers while there is room and work for them."""
        room = self.needs.room(alive(self.ray))
        most = room if self.workers is None else min(room, self.workers)
        starting = sum(member.job is None for member in self._members.values())
        for _ in range(min(most - len(self._members), self._jobs_left - starting)):
            actor = self._kind.options(
                num_cpus=self.needs.cpus,
                num_gpus=self.needs.gpus,
                memory=self.needs.memory,
                max_restarts=0,  # a cell is not bound to its worker: it is tried again on whichever is free
                scheduling_strategy="SPREAD",
            ).remote()
            self._members[actor.begin.remote(self.terms, os.getcwd(), self.needs.cpus)] = _Member(actor)

    def _finish(self, ref: Any) -> CellOutcome | None:
        """What came of the cell of a worker, which has its next one by then; None where it only began, or was lost."""
        member = self._members.pop(ref)
        rows: Any
        try:
            rows = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:  # not of the cell: what a cell raises is given back in words
            rows = _cause(error)
        except self.ray.exceptions.RayError as error:
            self._dismiss(member)
            return self._lost(member.job, _cause(error))
        job, member.job = member.job, None
        outcome = None if job is None else (job.keyed_cell, rows)
        if job is None:
            if rows is not None:
                raise InputError(str(rows))
            self._false_starts = 0
        self._occupy(member)
        return outcome

    def _lost(self, job: Job | None, why: str) -> CellOutcome | None:
        if job is None:
            self._false_starts += 1
            if self._false_starts > _FALSE_STARTS:
                mode = os.environ.get("RAY_AUTH_MODE")
                hint = f"; RAY_AUTH_MODE is {mode!r} here, and has to be that of every node" if mode else ""
                raise InputError(f"the workers of the cluster do not begin: {why}{hint}")
            return None
        keyed_cell = job.keyed_cell
        self._tries[keyed_cell] += 1
        if self._tries[keyed_cell] > RETRIES:
            return keyed_cell, f"its worker was lost {self._tries[keyed_cell]} times: {why}"
        self._queues[to_load(keyed_cell.cell)].appendleft(job)
        self.say(f"{keyed_cell.cell}: {why}; it is tried again")
        return None

    def _occupy(self, member: _Member) -> None:
        """Give a worker its next cell: of the model that it holds, else of the one with most cells for each that holds it."""
        if member.loads is None or not self._queues[member.loads]:
            holders = Counter(other_member.loads for other_member in self._members.values())
            pending = {loads: len(queue) / (1 + holders[loads]) for loads, queue in self._queues.items() if queue}
            if not pending:
                self._dismiss(member)
                return
            member.loads = max(pending, key=pending.__getitem__)
        member.job = self._queues[member.loads].popleft()
        self._members[member.actor.measure.remote(member.job)] = member

    def _dismiss(self, member: _Member) -> None:
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(member.actor, no_restart=True)


def _cause(error: Exception) -> str:
    """Why a worker was lost, from Ray's pages about it."""
    text = " ".join(str(error).split())
    cause = re.search(r"[Tt]he actor is dead because .*?(?=\. |$)", text) or re.search(r"\S*Error: .*", text)
    return f"{type(error).__name__}: {cause.group() if cause else text}"[:500]
