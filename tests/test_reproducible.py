"""The same command gives the same bytes; other threads and CPU kernels give numbers as near as the
provenance says.

Each way is a fresh process, which measures everything in both dtypes: a process takes longer to
begin than to measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from ostools.results import AGREES_WITHIN

PROMPT = "the one of the ten, the inn and the other one"
COMMANDS: dict[str, tuple[str, ...]] = {
    "sensitivity": (
        "sensitivity",
        "--prompt",
        PROMPT,
        "--linearisations",
        "frozen",
        "--layers",
        "all",
    ),
    "estimate": ("sensitivity", "--prompt", PROMPT, "--method", "estimate"),
    "bounds": ("bounds", "--prompt", PROMPT, "--variants=local,windowed(1),theorem-5.1"),
    "attribution": ("sensitivity", "attribution", "--prompt", PROMPT),
    "attention": ("attention", "--prompt", PROMPT),
    "collapse": ("collapse", "--task", "figure-5a", "--lengths", "1:6", "--dtypes", "float32"),
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
"""Whatever the weights were loaded in: the pair is asked for in float32, and transformers takes
every softmax in float32.
"""
ROUNDING = ("noise", "pair_noise")
"""Columns of collapse that ARE what rounding does: in another order it does something else."""


DTYPES = ("float32", "float64")
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


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], dict[str, Any]]:
    """The table of a name, measured in that way and dtype: rows and provenance, without the time."""
    from tests.checkpoints import write_checkpoint

    home = tmp_path_factory.mktemp("reproducible")
    model = ("--model", str(write_checkpoint(home / "tiny", "gemma2", n_layers=3)))
    for way, variables in WAYS.items():
        asked = []
        for dtype in DTYPES:
            (home / way / dtype).mkdir(parents=True)
            out = {name: ("--out", f"{home}/{way}/{dtype}/{name}.json") for name in COMMANDS}
            asked += [
                [*line, *model, "--load-dtype", dtype, *out[name]]
                for name, line in COMMANDS.items()
            ]
        environment = {
            name: value for name, value in os.environ.items() if name != "MKL_NUM_THREADS"
        } | variables
        command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(asked)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def table(way: str, dtype: str, name: str) -> dict[str, Any]:
        found = json.loads((home / way / dtype / f"{name}.json").read_text("utf-8"))
        assert found["provenance"].pop("time")
        return found

    return table


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_gives_the_same_bytes_and_other_threads_and_kernels_agree_as_the_provenance_says(
    measured: Callable[[str, str, str], dict[str, Any]], dtype: str, name: str
) -> None:
    once = measured("once", dtype, name)
    assert measured("again", dtype, name) == once
    within = AGREES_WITHIN["float32" if name in IN_FLOAT32 else dtype]
    here: Any = pd.DataFrame(once["rows"])
    for way in ("two threads", "default"):
        found = measured(way, dtype, name)
        told = found["provenance"]["arithmetic"]
        assert way != "default" or told["kernels"] == "DEFAULT"
        assert told["threads"] == int(WAYS[way]["OMP_NUM_THREADS"])
        assert told["agrees_within"] == AGREES_WITHIN
        there: Any = pd.DataFrame(found["rows"])
        assert list(here.columns) == list(there.columns)
        for column in here.columns.difference(ROUNDING):
            mine, others = here[column], there[column]
            if not pd.api.types.is_float_dtype(mine) or mine.isna().all():
                assert mine.equals(others), (way, column)
                continue
            assert (mine.isna() == others.isna()).all(), (way, column)
            assert (mine - others).abs().max() <= within * mine.abs().max(), (way, column)
