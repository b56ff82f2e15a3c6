"""The workers of a Ray cluster, and which of them measures which cell: each holds one model and has one cell at a time.

A worker stays with the model that it holds while cells of it are left; then it goes where most cells are left. What a worker
asks of the cluster is fixed when it starts (the largest forecast among its model's cells), so it is replaced where that is not
enough, or so much that more workers would have room.

Ray's own retries are not used, nor its ActorPool. Workers keep models between cells, and Ray counts memory for running tasks
and living actors alone: tasks that found a model in a process's cache would hold memory that nobody counts. A restarted actor
waits, with its cell and without its model, until there is room for it again, and tells nobody; an ActorPool hires none for one
that died, and gives a cell to any actor, whatever model it holds. Here a lost cell goes back into the queue, is told, and is
measured by whichever worker is free.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ostools.ground.errors import InputError
from ostools.runs.asked.cells import code_version, to_load
from ostools.runs.measurements.record import Rows
from ostools.runs.stored.store import KeyedCell
from ostools.runs.workers.executor import CellOutcome, Job, Terms
from ostools.runs.workers.local import Bench

RETRIES = 2
"""How often a cell whose worker was lost is tried again. Then it is recorded as failed: it may be what ends its workers."""
_FALSE_STARTS = 10
"""How many workers in a row may be lost before they have begun."""
_PATIENCE = 60.0
"""Seconds to wait for a node to come where none that is left has room for a worker."""
_TICK = 1.0
Loads: TypeAlias = tuple[str, str]


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


class Queue:
    """The jobs that are left, by the model that they load; the largest first, as a long one should not be left to the end."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs: dict[Loads, deque[Job]] = {}
        for job in sorted(jobs, key=lambda job: job.forecast.memory, reverse=True):
            self._jobs.setdefault(to_load(job.keyed_cell.cell), deque()).append(job)
        self.memory = {loads: max(job.forecast.memory for job in group) for loads, group in self._jobs.items()}

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def has(self, loads: Loads) -> bool:
        return bool(self._jobs[loads])

    def take(self, loads: Loads) -> Job:
        return self._jobs[loads].popleft()

    def give_back(self, job: Job) -> None:
        self._jobs[to_load(job.keyed_cell.cell)].appendleft(job)

    def neediest(self, holders: Counter[Loads]) -> Loads | None:
        """The model with most cells, if one more worker than `holders` counts shares them; None: nothing is left."""
        pending_loads = [loads for loads in self._jobs if self.has(loads)]
        return max(pending_loads, key=lambda loads: len(self._jobs[loads]) / (1 + holders[loads]), default=None)


@dataclass(frozen=True)
class Needs:
    """What a worker asks of a node besides memory, and how many workers there may be (None: as many as there is room for)."""

    cpus: int
    gpus: int
    workers: int | None = None

    def room(self, nodes: Sequence[dict[str, float | int]], memory: int) -> int:
        """How many workers of `memory` bytes the nodes have room for, whoever else is there."""
        amounts = [(name, amount) for name, amount in self.resources(memory).items() if amount]
        return sum(min(int(node.get(name, 0) // amount) for name, amount in amounts) for node in nodes)

    def resources(self, memory: int) -> dict[str, int]:
        """In Ray's names. The memory forecast for a GPU is the GPU's own, of which Ray keeps no account."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": 0 if self.gpus else memory}


def alive(ray: Any) -> list[dict[str, float | int]]:
    """What each node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@dataclass(eq=False)
class _Member:
    """A worker, the memory that it asked for, the model that it holds or will, and its cell: None while it begins."""

    actor: Any
    memory: int
    loads: Loads
    job: Job | None = None


class Crew:
    """The workers of one run. `say` is told of every worker that is lost."""

    def __init__(self, ray: Any, jobs: Sequence[Job], terms: Terms, needs: Needs, say: Callable[[str], None]) -> None:
        self.ray, self.terms, self.needs, self.say = ray, terms, needs, say
        self._queue = Queue(jobs)
        self._under_way: dict[Any, _Member] = {}
        self._tries: Counter[KeyedCell] = Counter()
        self._false_starts = 0
        self._kind = ray.remote(Worker)

    def measure(self) -> Iterator[CellOutcome]:
        """Every job once. A worker's next cell is under way before its last one is stored: at most one result a worker."""
        progressed = time.monotonic()
        while self._queue or any(member.job for member in self._under_way.values()):
            self._hire()
            if self._under_way:
                progressed = time.monotonic()
            elif time.monotonic() - progressed > _PATIENCE:
                raise InputError(
                    f"expected a node with room for a worker, found none for {_PATIENCE:g} seconds: {len(self._queue)} "
                    "cells are left; the same command goes on with them"
                )
            for ref in self._ready():
                outcome = self._finish(ref)
                if outcome is not None:
                    yield outcome

    def dismiss_all(self) -> None:
        for member in self._under_way.values():
            self._dismiss(member)
        self._under_way.clear()

    def _ready(self) -> list[Any]:
        if not self._under_way:
            time.sleep(_TICK)
            return []
        return self.ray.wait(list(self._under_way), num_returns=1, timeout=_TICK)[0]

    def _hire(self) -> None:
        """Start workers while there is room and work for them."""
        nodes = alive(self.ray)
        while True:
            starting = sum(member.job is None for member in self._under_way.values())
            loads = self._neediest()
            if loads is None or starting >= len(self._queue) or len(self._under_way) == self.needs.workers:
                return
            memory = self._queue.memory[loads]
            # A worker of which n have room takes an n-th of the cluster.
            shares = [
                self.needs.room(nodes, worker_memory)
                for worker_memory in (memory, *(m.memory for m in self._under_way.values()))
            ]
            if 0 in shares or sum(1 / share for share in shares) > 1 + 1e-9:
                return
            self._start(memory, loads)

    def _neediest(self) -> Loads | None:
        return self._queue.neediest(Counter(member.loads for member in self._under_way.values()))

    def _start(self, memory: int, loads: Loads) -> None:
        resources = self.needs.resources(memory)
        actor = self._kind.options(
            num_cpus=resources["CPU"],
            num_gpus=resources["GPU"],
            memory=resources["memory"],
            max_restarts=0,  # a cell is not bound to its worker: it is tried again on whichever is free
            scheduling_strategy="SPREAD",
        ).remote()
        self._under_way[actor.begin.remote(self.terms, os.getcwd(), self.needs.cpus)] = _Member(actor, memory, loads)

    def _finish(self, ref: Any) -> CellOutcome | None:
        """What came of the cell of a worker, which has its next one by then; None where it only began, or was lost."""
        member = self._under_way.pop(ref)
        rows: Any
        try:
            rows = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:  # not of the cell: what a cell raises is given back in words
            rows = _in_words(error)
        except self.ray.exceptions.RayError as error:
            self._dismiss(member)
            return self._lost(member, _in_words(error))
        job, member.job = member.job, None
        outcome = None if job is None else (job.keyed_cell, rows)
        if job is None:
            if rows is not None:
                raise InputError(str(rows))
            self._false_starts = 0
        self._occupy(member)
        return outcome

    def _lost(self, member: _Member, why: str) -> CellOutcome | None:
        if member.job is None:
            self._false_starts += 1
            if self._false_starts > _FALSE_STARTS:
                mode = os.environ.get("RAY_AUTH_MODE")
                hint = f"; RAY_AUTH_MODE is {mode!r} here, and has to be that of every node" if mode else ""
                raise InputError(f"the workers of the cluster do not begin: {why}{hint}")
            return None
        keyed_cell = member.job.keyed_cell
        self._tries[keyed_cell] += 1
        if self._tries[keyed_cell] > RETRIES:
            return keyed_cell, f"its worker was lost {self._tries[keyed_cell]} times: {why}"
        self._queue.give_back(member.job)
        self.say(f"{keyed_cell.cell}: {why}; it is tried again")
        return None

    def _occupy(self, member: _Member) -> None:
        """Its next cell: of the model that it holds, if there is one."""
        if not self._queue.has(member.loads):
            loads = self._neediest()
            if loads is None or not self._suits(member, self._queue.memory[loads]):
                self._dismiss(member)  # where work is left, another one is hired
                return
            member.loads = loads
        member.job = self._queue.take(member.loads)
        self._under_way[member.actor.measure.remote(member.job)] = member

    def _suits(self, member: _Member, memory: int) -> bool:
        """Whether a worker asked for enough, and not for so much that more workers would have room without it."""
        nodes, most = alive(self.ray), self.needs.workers or 1 << 30
        mine, theirs = (min(self.needs.room(nodes, room_memory), most) for room_memory in (member.memory, memory))
        return member.memory >= memory and mine >= theirs

    def _dismiss(self, member: _Member) -> None:
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(member.actor, no_restart=True)


def _in_words(error: Exception) -> str:
    """Why a worker was lost, from Ray's pages about it."""
    text = " ".join(str(error).split())
    cause = re.search(r"[Tt]he actor is dead because .*?(?=\. |$)", text) or re.search(r"\S*Error: .*", text)
    return f"{type(error).__name__}: {cause.group() if cause else text}"[:500]
