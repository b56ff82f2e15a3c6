"""The connection of this process to a Ray cluster: one that is there, or one of its own that ends behind it."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError, in_words, short_repr

AUTO = "auto"
_SECONDS = 5.0  # how long a cluster has to answer; Ray itself would wait for ever
_OBJECTS = 128 << 20  # bytes of shared memory of a cluster of our own: results are tables of kilobytes


def alive(ray: Any) -> list[dict[str, float | int]]:
    """What each node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def checked_address(address: str) -> str:
    """ "auto" or host:port. Raises `InputError`."""
    if not isinstance(address, str):
        raise InputError(f"Ray address: expected auto, or HOST:PORT, found {short_repr(address)}")
    port = address.rpartition(":")[2]
    if address != AUTO and not (
        re.fullmatch(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}", address) and 0 < int(port) < 1 << 16
    ):
        raise InputError(
            f"Ray address {address!r}: expected auto, or HOST:PORT as `ray start --head` says it, such as 10.0.0.1:6379; "
            "ray:// is for programs outside of the cluster: run on a node of it"
        )
    return address


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connected to the cluster, and disconnected again; a connection that was there stays.

    `address` None: the connection that there is, or a cluster on this machine, which ends with the block.
    """
    if ray.is_initialized():
        if address is not None:
            raise InputError(
                f"Ray address {address!r}: this process is connected to a Ray cluster already: give no address "
                "to use that one, or call ray.shutdown() first"
            )
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ostools-ray-", ignore_cleanup_errors=True) as scratch, _quiet(ray):
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
    token, umask = Path.home() / ".ray" / "auth_token", os.umask(0o077)
    is_main = threading.current_thread() is threading.main_thread()
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if address is None and token.is_file():  # of an earlier cluster: whoever reads it runs code as this user
            token.chmod(0o600)
        ray.init(**options)
    except Exception as error:  # whatever Ray raises: another version, no shared memory, paths too long for sockets
        where = "on this machine" if address in (None, AUTO) else f"at {address!r}"
        start = "; `ray start --head` starts one, HOST:PORT names another" if address == AUTO else ""
        raise InputError(
            f"expected a Ray cluster {where}, found none that can be used: {in_words(error)[:300]}{start}"
        ) from error
    finally:
        os.umask(umask)
        if is_main:  # Ray takes the signal, to exit with 15; who runs the sweep keeps it
            signal.signal(signal.SIGTERM, at_sigterm)


def _answering(address: str) -> str:
    """The address, once something there speaks HTTP/2, as Ray does. Raises `InputError` within seconds."""
    address = checked_address(os.environ.get("RAY_ADDRESS") or AUTO) if address == AUTO else address
    if address == AUTO:
        return address  # Ray looks for the processes of a cluster on this machine, and says so where it finds none
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS") in (None, "", "0"):
                empty_settings = bytes(3) + b"\x04" + bytes(5)
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings)
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
def _quiet(ray: Any) -> Iterator[None]:
    """Ray prints nothing, not even of a lost worker, and sends no usage statistics; and what it sets in the environment is
    gone behind it: for a cluster of our own it turns authentication on, and a process that asks for a token can use no cluster
    that has none."""

    def settings() -> dict[str, str]:
        return {name: os.environ[name] for name in os.environ if name.startswith("RAY_") or name == "PYTHONBREAKPOINT"}

    before, internal = settings(), ray._private.worker
    internal._worker_logs_enabled, logs_enabled = False, internal._worker_logs_enabled
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    try:
        yield
    finally:
        internal._worker_logs_enabled = logs_enabled
        for name in settings():
            del os.environ[name]
        os.environ.update({"RAY_AUTH_MODE": "disabled"} | before)
        ray._raylet.Config.initialize("")  # it would keep what is not set
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        if "RAY_AUTH_MODE" not in before:
            del os.environ["RAY_AUTH_MODE"]
