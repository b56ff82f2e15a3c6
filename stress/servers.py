"""Servers that drip, send without an end, or send what is no answer, behind proxies of the
environment that they do not pass.

A case draws what a server sends, in which pieces, with which pauses, and the names under which the
environment names a proxy. The law: an answer or a refusal in one line, in time; the proxy sees
nothing; the key stands in no refusal and in no file.
"""

from __future__ import annotations

import json
import os
import random
import socket
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from ostools.ground.errors import InputError
from ostools.measure.hosted.endpoint import ask_endpoint
from tests.measure.hosted.server import completion
from tests.measure.hosted.test_endpoint import ASKED, MARKER, PROXIES, raw_server, send_nothing

CASES = 250
_TIMEOUT, _AT_MOST = 0.5, 10.0
"""Seconds that an answer has, and that a case takes at most: it asks twice, and a slow machine is
no hang.
"""
_ANSWER = json.dumps(completion("1")).encode()
_STARTS = (
    *[b"HTTP/1.1 200 OK\r\n"] * 6, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 429 Busy\r\nRetry-After: 9999\r\n",
    b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\n", b"HTTP/1.1 401 no " + MARKER.encode() + b"\r\n", b"\0\xff", b"",
)  # fmt: skip
_FIELDS = (
    b"Content-Type: application/json\r\n", b"Content-Length: %d\r\n" % len(_ANSWER), b"Content-Length: 999999999999\r\n",
    b"Content-Encoding: gzip\r\n", b"Transfer-Encoding: chunked\r\n", b"X-More: x\r\n", b"X: " + b"x" * 70_000, b"no field\r\n",
)  # fmt: skip
_BODIES = (
    _ANSWER,
    b" ",
    b"[" * 100_000,
    b"\x1f\x8b",
    b"ffffff\r\n",
    MARKER.encode(),
    b"\xed\xa0\xbd",
    b"<html>",
)


def run(cases: int, seed: int) -> int:
    """How many cases broke the law."""
    chosen, failures = random.Random(seed), 0
    for case in range(cases):
        if broken := _broken(chosen):
            print(f"servers, case {case}: {broken}")
            failures += 1
    return failures


def _broken(chosen: random.Random) -> str:
    """What one case shows; empty where the law is kept."""
    pieces = [
        chosen.choice(_STARTS),
        *chosen.sample(_FIELDS, chosen.randint(0, 3)),
        b"\r\n",
        *chosen.sample(_BODIES, 2),
    ]
    times = [chosen.choice((1, 1, 1, 1, 2, 10_000)) for _ in pieces]
    pauses = [chosen.choice((0, 0, 0, 0.05)) for _ in pieces]
    names = chosen.sample(PROXIES[:6], chosen.randint(1, 6))

    def send(connection: socket.socket, request: bytes) -> None:
        for piece, count, pause in zip(pieces, times, pauses, strict=True):
            for _ in range(count):
                connection.sendall(piece)
                time.sleep(pause)

    said, begin = "", time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        raw_server(send_nothing) as (proxy, seen),
        raw_server(send) as (url, _),
    ):
        file = Path(folder) / "answers.jsonl"
        with patch.dict(os.environ, dict.fromkeys(names, proxy) | {"OPENAI_API_KEY": MARKER}):
            try:
                ask_endpoint(f"{url}/v1", "m", ASKED, file, timeout=_TIMEOUT, retries=0)
            except InputError as refusal:
                said = str(refusal)
            except Exception as error:
                return f"{type(error).__name__}: {error} of {pieces!r:.300}"
        stored = file.read_text() if file.exists() else ""
    problems = {
        f"it took {time.monotonic() - begin:.1f} s": time.monotonic() - begin > _AT_MOST,
        f"a proxy saw {seen!r:.100}": bool(seen),
        "the key was told": MARKER in said + stored,
        f"a refusal of several lines: {said[:200]!r}": "\n" in said,
    }
    return "; ".join(problem for problem, is_there in problems.items() if is_there)
