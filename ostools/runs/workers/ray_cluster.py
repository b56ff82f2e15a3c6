"""Measures the cells of a sweep on a Ray cluster: one that is there, or one on this machine that ends with the run.

Numbers are those of one process: in float32 on CPUs, with one CPU a worker, to the bit. Cost: seconds until the workers have
begun, milliseconds a cell; one process is the cheaper choice for a sweep of a minute.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, in_words
from ostools.models.load import resolve_device
from ostools.runs.workers.executor import CellOutcome, Executor, Job, Terms
from ostools.runs.workers.ray_workers import Crew, Needs, alive

AUTO = "auto"
_SECONDS = 5.0
"""How long a cluster has to answer; Ray itself would wait for ever."""
_OBJECTS = 128 << 20
"""Bytes of shared memory of a cluster of our own: results are tables of kilobytes."""


class RayCluster(Executor):
    """The workers of a Ray cluster. Each has a model of its own, and measures one cell at a time.

    Args:
        address: such as "10.0.0.1:6379", as `ray start --head` prints it; "auto": the cluster that this machine belongs to.
            None: the one that this process is connected to; without such a one, a cluster on this machine is started, and
            ended again.
        workers: how many at most; None: as many as there is room for.
        cpus: how many CPUs a worker asks for, and how many threads it computes with. It also asks for a GPU if the device is
            cuda (with `device_map: auto`, for all GPUs of a node), and otherwise for the memory that its largest cell is
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
        self.ray = _ray()
        self.address = None if address is None else _checked_form(address)
        self.workers, self.cpus, self.say = workers, cpus, say

    def device(self, device: str) -> str:
        """cuda where the cluster, which need not be where this process runs, has GPUs; else cpu."""
        if device not in (AUTO, "cpu", "cuda"):
            raise InputError(
                f"device {device!r}: expected auto, cpu or cuda on a Ray cluster, which gives each worker a GPU of its own"
            )
        if self.address is None and not self.ray.is_initialized():
            return str(resolve_device(device))
        with self._connected():
            gpus = sum(node.get("GPU", 0) for node in alive(self.ray))
        if device == "cuda" and gpus < 1:
            raise InputError("device 'cuda': expected a Ray cluster with GPUs, found none; use device 'auto' or 'cpu'")
        return device if device != AUTO else "cuda" if gpus >= 1 else "cpu"

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        if not jobs:
            return
        with self._connected():
            needs = Needs(self.cpus, self._gpus(terms), self.workers)
            fitting, too_large = self._fitting(jobs, needs)
            yield from too_large
            crew = Crew(self.ray, fitting, terms, needs, self.say)
            try:
                yield from crew.measure()
            finally:
                crew.dismiss_all()

    def _gpus(self, terms: Terms) -> int:
        """Of a worker: one; all that a node has, where a model's weights may lie on several."""
        if terms.device != "cuda":
            return 0
        return 1 if terms.device_map != "auto" else max(int(node.get("GPU", 0)) for node in alive(self.ray))

    def _fitting(self, jobs: Sequence[Job], needs: Needs) -> tuple[list[Job], list[CellOutcome]]:
        """The jobs that some node has the memory for, and the others as failures. Raises `InputError` where no worker fits."""
        nodes = [node for node in alive(self.ray) if needs.room([node], 0)]
        gpus = f" and {needs.gpus} GPU{'s' * (needs.gpus > 1)}" if needs.gpus else ""
        needs_words = f"{needs.cpus} CPU{'s' * (needs.cpus > 1)}{gpus}"
        if not nodes:
            node_words = "; ".join(
                f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in alive(self.ray)
            )
            raise InputError(f"expected a node with {needs_words} for a worker, found nodes with {node_words}")
        most = needs.room(nodes, 0)
        if self.address is None and needs.workers is not None and needs.workers > most:
            raise InputError(
                f"{needs.workers} workers of {needs_words}: expected at most {most} on this machine; give fewer, or the "
                f"address of "
                "a cluster"
            )
        largest = max(node.get("memory", 0) for node in nodes)
        fitting: list[Job] = []
        too_large: list[CellOutcome] = []
        for job in jobs:
            if needs.resources(job.forecast.memory)["memory"] <= largest:
                fitting.append(job)
                continue
            words = (
                f"forecast to take {job.forecast.memory / 2**30:.2f} GiB of memory, and no node of the cluster has "
                f"more than {largest / 2**30:.2f} GiB for workers"
            )
            too_large.append((job.keyed_cell, words))
        return fitting, too_large

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Connected to the cluster, and disconnected again; a connection that was there stays."""
        if self.ray.is_initialized():
            if self.address is not None:
                raise InputError(
                    f"Ray address {self.address!r}: this process is connected to a Ray cluster already: give no address "
                    "to use that one, or call ray.shutdown() first"
                )
            yield
            return
        with (
            tempfile.TemporaryDirectory(prefix="ostools-ray-", ignore_cleanup_errors=True) as scratch,
            _muted(self.ray),
            _own_environment(self.ray),
        ):
            try:
                self._connect(scratch)
                yield
            finally:
                self.ray.shutdown()

    def _connect(self, scratch: str) -> None:
        options = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        try:
            with _own_sigterm():
                if self.address is None:
                    with _own_files():
                        self.ray.init(
                            "local", include_dashboard=False, object_store_memory=_OBJECTS, _temp_dir=scratch, **options
                        )
                else:
                    self.ray.init(_answering(self.address), **options)
        except InputError:
            raise
        except Exception as error:  # whatever Ray raises: another version, no shared memory, paths too long for sockets
            if self.address == AUTO and isinstance(error, ConnectionError):
                raise InputError(
                    "Ray address 'auto': expected a Ray cluster on this machine, found none: `ray start --head` starts one, "
                    "HOST:PORT names another"
                ) from error
            where = "on this machine" if self.address is None else f"at {self.address!r}"
            raise InputError(
                f"expected a Ray cluster {where}, found none that can be used: {in_words(error)[:300]}"
            ) from error


def _checked_form(address: str) -> str:
    """ "auto" or host:port. Raises `InputError`."""
    form = "expected auto, or HOST:PORT as `ray start --head` says it, such as 10.0.0.1:6379"
    if address.startswith("ray://"):
        raise InputError(
            f"Ray address {address!r}: {form}; ray:// is for programs outside of the cluster: run on a node of it"
        )
    _, host, port = address.rpartition(":")
    if address != AUTO and not (
        re.fullmatch(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}", address) and 0 < int(port) < 1 << 16
    ):
        raise InputError(f"Ray address {address!r}: {form}{'' if host else '; a port is missing'}")
    return address


def _answering(address: str) -> str:
    """The address, once something there speaks HTTP/2, as Ray does. Raises `InputError` within seconds."""
    address = _checked_form(os.environ.get("RAY_ADDRESS") or AUTO) if address == AUTO else address
    if address == AUTO:
        return address  # Ray looks for the processes of a cluster on this machine, and says so where it finds none
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS") in (None, "", "0"):
                connection.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
                )  # and empty SETTINGS
                connection.settimeout(_SECONDS)
                if connection.recv(9)[3:4] != b"\x04":
                    raise InputError(f"Ray address {address!r}: expected a Ray cluster there, found something else")
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"Ray address {address!r}: expected a Ray cluster there, found none ({in_words(error)[:300]}): start one with "
            "`ray start --head`"
        ) from error
    return address


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """`ray.init` takes the signal, to exit with 15; who runs the sweep keeps it, and gets one that came meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, came = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit:
        came = True
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def _muted(ray: Any) -> Iterator[None]:
    """Ray prints nothing: even with log_to_driver=False it tells stdout of a lost worker."""
    internal = ray._private.worker
    internal._worker_logs_enabled, was_enabled = False, internal._worker_logs_enabled
    try:
        yield
    finally:
        internal._worker_logs_enabled = was_enabled


@contextmanager
def _own_files() -> Iterator[None]:
    """Files that Ray makes are for this user alone, its token among them: whoever has that runs code as this user."""
    token = Path.home() / ".ray" / "auth_token"
    before = os.umask(0o077)
    try:
        if token.is_file():  # of an earlier cluster
            token.chmod(0o600)
        yield
    finally:
        os.umask(before)


@contextmanager
def _own_environment(ray: Any) -> Iterator[None]:
    """Ray sends no usage statistics, and what it sets is gone behind it: for a cluster of our own it turns authentication on,
    and a process that asks for a token can use no cluster that has none."""

    def settings() -> dict[str, str]:
        return {name: os.environ[name] for name in os.environ if name.startswith("RAY_") or name == "PYTHONBREAKPOINT"}

    before = settings()
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    try:
        yield
    finally:
        for name in settings():
            del os.environ[name]
        os.environ.update({"RAY_AUTH_MODE": "disabled"} | before)
        ray._raylet.Config.initialize("")  # it would keep what is not set
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        if "RAY_AUTH_MODE" not in before:
            del os.environ["RAY_AUTH_MODE"]


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise InputError("expected Ray, found none: pip install 'oversquashing-tools[ray]'") from None
    return ray
