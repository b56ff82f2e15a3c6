"""The same command gives the same bytes; other threads and CPU kernels give numbers as near as the
provenance says.

Each way is a fresh process, which measures everything in both dtypes: a process takes longer to
begin than to measure.
"""

import itertools
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
    "two threads, plain kernels": {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default"},
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
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tables stand, by the way and the dtype that they were measured in."""
    from tests.checkpoints import write_checkpoint

    home = tmp_path_factory.mktemp("reproducible")
    model = ("--model", str(write_checkpoint(home / "tiny", "gemma2", n_layers=3)))
    for way, variables in WAYS.items():
        asked = []
        for dtype, name in itertools.product(DTYPES, COMMANDS):
            out = home / way / dtype / f"{name}.json"
            out.parent.mkdir(parents=True, exist_ok=True)
            options = ("--load-dtype", dtype, "--out", str(out))
            asked.append([*COMMANDS[name], *model, *options])
        environment = {k: v for k, v in os.environ.items() if k != "MKL_NUM_THREADS"} | variables
        command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(asked)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return home


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_gives_the_same_bytes_and_another_way_agrees_as_the_provenance_says(
    home: Path, dtype: str, name: str
) -> None:
    tables = [json.loads((home / way / dtype / f"{name}.json").read_text()) for way in WAYS]
    assert all(table["provenance"].pop("time") for table in tables)
    once, again, other = tables
    assert again == once
    told = other["provenance"]["arithmetic"]
    assert (told["kernels"], told["threads"]) == ("DEFAULT", 2)
    assert told["agrees_within"] == AGREES_WITHIN
    within = AGREES_WITHIN["float32" if name in IN_FLOAT32 else dtype]
    rows: Any = [pd.DataFrame(table["rows"]) for table in (once, other)]
    here, there = (table.drop(columns=[*ROUNDING], errors="ignore") for table in rows)
    for column in here:
        size = here[column].abs().max() if pd.api.types.is_float_dtype(here[column]) else 0.0
        pd.testing.assert_series_equal(here[column], there[column], rtol=0, atol=within * size)
