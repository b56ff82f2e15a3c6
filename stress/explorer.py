"""Five minutes of typing into `ostools explore`: what its process holds grows by less than 1%.

Every case is a keystroke as the page sends it, over the network: a first look, then a measurement
with its chart, of a text that grows and is wiped; in every view. Every
third keystroke is followed by another before its answer has come: that request
is dropped, and its run must end.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psutil

from stress.memory import judged

CASES = 300
"""One a second for five minutes, where the machine keeps up."""
_WORDS = ["The", "farmer", "walked", "to", "11", "12", "0", "of", "and", "<b>", "é", "river"]
_LONGEST = 12  # words; then the field is wiped
_COMMAND = (sys.executable, "-c", "from ostools.cli import main; main()", "explore", "--json")
_VIEWS: tuple[dict[str, Any], ...] = (
    {"view": "frozen"},
    {"view": "full", "layer": 1},
    {"view": "attention", "layer": 1, "head": 1},
    {"view": "attribution"},
    {"view": "sketch-full"},
    {"view": "collapse", "longest": 8},
)


def run(cases: int, seed: int) -> int:
    """How many answers were errors, and one more where the process grew too much."""
    chosen, held, errors, words = random.Random(seed), [], [], []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, env=environment, text=True) as explorer:
        try:
            process = psutil.Process(explorer.pid)
            port = next(
                int(found[1])
                for line in explorer.stdout or ()
                if (found := re.search(r'"url": "http://[^"]*:(\d+)', line))
            )
            for case in range(cases):
                words = [] if len(words) >= _LONGEST else words
                words.append(chosen.choice(_WORDS))
                typed = {"prompt": " ".join(words), "sure": True}
                asked = {**typed, **chosen.choice(_VIEWS)}
                for more in ({"before": 0, "chart": False}, {}):
                    errors += _wrong(port, {**asked, **more}, dropped=case % 3 == 2)
                held.append(process.memory_info().rss)
        finally:
            explorer.terminate()
    return judged(held, errors)


def _wrong(port: int, asked: Mapping[str, Any], *, dropped: bool) -> Iterator[str]:
    """What the answer says is wrong; nothing of one that nobody waits for."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        connection.request("POST", "/run", json.dumps(asked), {"Content-Type": "application/json"})
        if not dropped:
            answer = connection.getresponse()
            found = json.loads(answer.read())
            if answer.status != 200 or "error" in found:
                yield f"the explorer answered {answer.status}, {found} to {asked}"
