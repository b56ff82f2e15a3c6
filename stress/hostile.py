"""Hostile input: prompts, command lines, sweep files, checkpoints, result directories, answers and
requests.

The law is that of `tests/hostile/attempts.py`. To these come, for each file reader, a tenth as many
that atheris chooses by the code that they reach, where it is installed: `pip install -e
'.[stress]'`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from stress._covering import READERS
from tests.hostile.targets import TARGETS, Ground, Target, attack, prepared

CASES = 10_000
_BATCH = 50
"""Cases that hypothesis is given at a time; it ends a batch at its first failure, and makes that
one small.
"""
_COVERED = 0.1
"""The share of cases that atheris chooses for each reader; they cost a hundredth of a call of the
command line.
"""


def run(cases: int, seed: int) -> int:
    """How many batches broke the law. Each failure is a line with the target, the seed and the
    case.
    """
    import torch

    torch.set_num_threads(1)
    failures, done = 0, 0
    with prepared() as ground:
        for target in TARGETS:
            for index, size in enumerate(_batches(max(1, round(cases * target.share)))):
                failures += _batch(target, ground, size, seed + index)
                done += size
                print(f"{target.name}: {done} of {cases} cases", file=sys.stderr, flush=True)
    print(f"hostile: hypothesis chose {done} cases", flush=True)
    if importlib.util.find_spec("atheris") is None:
        print(
            "hostile: atheris is not installed, no case was chosen by coverage: pip install 'atheris==3.0.0'",
            flush=True,
        )
        return failures
    for reader in READERS:
        failures += _covering(reader, max(1, round(cases * _COVERED)), seed)
    return failures


def _batches(cases: int) -> Iterator[int]:
    while cases > 0:
        yield min(_BATCH, cases)
        cases -= _BATCH


def _batch(target: Target, ground: Ground, cases: int, seed: int) -> int:
    try:
        attack(target, ground, cases, seed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken law is no Exception
        last = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(
            f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}".split()
        )
        print(
            f"hostile: {target.name}, seed {seed}: {last.filename}:{last.lineno}: {words[:1500]}",
            flush=True,
        )
        return 1
    return 0


def _covering(reader: str, cases: int, seed: int) -> int:
    """atheris in a process of its own, as it never returns from its loop; 1 where it found
    something.
    """
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        command = [
            sys.executable,
            "-m",
            "stress._covering",
            reader,
            scratch,
            str(cases),
            str(seed % 2**31),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
        )
        print(f"hostile: atheris, {reader}: {cases} cases, exit code {done.returncode}", flush=True)
        if done.returncode:
            print("\n".join(done.stderr.splitlines()[-30:]), flush=True)
    return int(done.returncode != 0)
