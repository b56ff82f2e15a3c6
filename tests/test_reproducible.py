"""The same command gives the same bytes; other threads and CPU kernels give numbers as near as the provenance says.

Each way is a fresh process, which measures everything in both dtypes: a process takes longer to begin than to measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.results import AGREES_WITHIN

PROMPT = "the one of the ten, the inn and the other one"
COMMANDS: dict[str, tuple[str, ...]] = {
    "sensitivity": ("sensitivity", "--prompt", PROMPT, "--linearisation", "frozen", "--layers", "all"),
    "estimate": ("sensitivity", "--prompt", PROMPT, "--method", "estimate"),
    "bounds": ("bounds", "--prompt", PROMPT, "--variant=local", "--variant=windowed(1)", "--variant=theorem-5.1"),
    "attribution": ("sensitivity", "attribution", "--prompt", PROMPT),
    "attention": ("attention", "--prompt", PROMPT),
    "spectra": ("bounds", "spectra", "--prompt", PROMPT),
    "collapse": ("collapse", "--task", "figure-5a", "--lengths", "1:6", "--dtype", "float32"),
}
"""What is measured; by the name of its table."""

WAYS: dict[str, dict[str, str]] = {
    "once": {"OMP_NUM_THREADS": "1"},
    "again": {"OMP_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "default": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
}
"""Without variables torch takes the best kernels of the processor, AVX512 where there are some."""
IN_FLOAT32 = ("collapse", "attention")
"""Whatever the weights were loaded in: the pair is asked for in float32, and transformers takes every softmax in float32."""
ROUNDING = ("noise", "pair_noise")
"""Columns of collapse that ARE what rounding does: in another order it does something else."""


IN_ONE_PROCESS = """
import json, sys
from ostools import cli
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["ostools", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
"""


DTYPES = ("float32", "float64")
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each way's tables: in it one of each dtype."""
    from tests.checkpoints import write_checkpoint

    home = tmp_path_factory.mktemp("reproducible")
    checkpoint = write_checkpoint(home / "tiny", "gemma2", n_layers=3)
    found = {}
    for way, variables in WAYS.items():
        found[way] = home / way
        for dtype in DTYPES:
            (found[way] / dtype).mkdir(parents=True)
        asked = [
            [
                *arguments,
                "--model",
                str(checkpoint),
                "--load-dtype",
                dtype,
                "--out",
                f"{home}/{way}/{dtype}/{name}.json",
            ]
            for dtype in DTYPES
            for name, arguments in COMMANDS.items()
        ]
        environment = {name: value for name, value in os.environ.items() if name != "MKL_NUM_THREADS"} | variables
        done = subprocess.run(
            [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(asked)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return found


def without_time(path: Path) -> Any:
    found = json.loads(path.read_text("utf-8"))
    assert found["provenance"].pop("time")
    return found


@pytest.mark.slow
@every_dtype
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_gives_the_same_bytes(measured: dict[str, Path], dtype: str, name: str) -> None:
    once, again = (measured[way] / dtype for way in ("once", "again"))
    assert without_time(once / f"{name}.json") == without_time(again / f"{name}.json")


@pytest.mark.slow
@every_dtype
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("once", "again")])
def test_other_threads_and_kernels_agree_as_the_provenance_says(
    measured: dict[str, Path], dtype: str, name: str, way: str
) -> None:
    one, other = (without_time(measured[which] / dtype / f"{name}.json") for which in ("once", way))
    told = other["provenance"]["arithmetic"]
    assert way != "default" or told["kernels"] == "DEFAULT"
    assert told["threads"] == int(WAYS[way]["OMP_NUM_THREADS"])
    assert told["agrees_within"] == AGREES_WITHIN
    within = AGREES_WITHIN["float32" if name in IN_FLOAT32 else dtype]
    tables: list[Any] = [pd.DataFrame(found["rows"]) for found in (one, other)]
    here, there = tables
    assert list(here.columns) == list(there.columns)
    for column in here.columns.difference(ROUNDING):
        mine, other_way = here[column], there[column]
        if not pd.api.types.is_float_dtype(mine) or mine.isna().all():
            assert mine.equals(other_way), column
            continue
        assert (mine.isna() == other_way.isna()).all(), column
        assert (mine - other_way).abs().max() <= within * mine.abs().max(), column
