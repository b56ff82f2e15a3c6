"""Ten minutes of typing into `ostools explore`: what its process holds grows by less than 1%.

Every case is a keystroke as the page sends it, over the network: a first look, then a measurement
with its chart, of a text that grows and is wiped; in every view, with a second side or a mitigation
now and then. Every third keystroke is followed by another before its answer has come: that request
is dropped, and its run must end.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from stress.memory import judged

CASES = 600
"""One a second for ten minutes, where the machine keeps up."""
_WORDS = ["The", "farmer", "walked", "to", "11", "12", "0", "of", "and", "<b>", "é", "river"]
_LONGEST = 12  # words; then the field is wiped
_COMMAND = (sys.executable, "-c", "from ostools.cli import main; main()", "explore", "--json")
_BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"beside": "prompt", "other": "The farmer walked home"},
    {"beside": "mitigation", "other": "sliding-window:window=4"},
)
_VIEWS: tuple[dict[str, Any], ...] = (
    {"view": "frozen"},
    {"view": "full", "layer": 1},
    {"view": "attention", "layer": 1, "head": 1},
    {"view": "attribution"},
    {"view": "sketch-full"},
    {"view": "collapse", "longest": 8},
)


def run(cases: int, seed: int) -> int:
    """1 where the process grew too much, or an answer was an error; the curve goes to stderr."""
    curve, errors = typed(cases, seed)
    return judged(curve, [f"the explorer answered: {error}" for error in errors], "keystrokes")


def typed(cases: int, seed: int) -> tuple[list[int], list[str]]:
    """The bytes that `ostools explore` holds after each keystroke, and what went wrong."""
    chosen, curve, errors, words = random.Random(seed), [], [], []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, env=environment, text=True) as explorer:
        try:
            process, port = psutil.Process(explorer.pid), _port(explorer)
            for case in range(cases):
                words = [] if len(words) >= _LONGEST else words
                words.append(chosen.choice(_WORDS))
                asked = {
                    "prompt": " ".join(words),
                    "sure": True,
                    **chosen.choice(_VIEWS),
                    **chosen.choice(_BESIDE),
                }
                for more in ({"before": 0, "chart": False}, {}):
                    errors += _sent(port, {**asked, **more}, dropped=case % 3 == 2)
                curve.append(process.memory_info().rss)
                if sys.stderr.isatty():
                    print(
                        f"\r  {case + 1} of {cases}: {curve[-1] / 2**20:.1f} MiB",
                        end="",
                        file=sys.stderr,
                    )
        finally:
            explorer.terminate()
    return curve, errors


def _port(explorer: subprocess.Popen[str]) -> int:
    """Of the address that the command prints."""
    said = ""
    for line in explorer.stdout or ():
        said += line
        if line.startswith("}"):
            break
    return int(json.loads(said)["url"].rsplit(":", 1)[1].strip("/"))


def _sent(port: int, asked: Mapping[str, Any], *, dropped: bool) -> list[str]:
    """What the answer says is wrong; nothing of one that nobody waits for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/run", json.dumps(asked), {"Content-Type": "application/json"})
        if dropped:
            return []
        answer = connection.getresponse()
        found = json.loads(answer.read())
        return (
            []
            if answer.status == 200 and "error" not in found
            else [f"{answer.status}, {found} to {asked}"]
        )
    finally:
        connection.close()
