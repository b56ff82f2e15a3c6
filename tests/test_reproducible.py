"""The same command gives the same bytes; other threads and CPU kernels give numbers as near as the provenance says.

Each way is a fresh process, which measures everything at once: a process takes longer to begin than to measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools.results import AGREES_WITHIN

PROMPT = "the one of the ten, the inn and the other one"
COMMANDS: dict[str, tuple[str, ...]] = {
    "sensitivity": ("sensitivity", PROMPT, "--linearisation", "full", "--linearisation", "frozen", "--layers", "all"),
    "estimate": ("sensitivity", PROMPT, "--method", "estimate"),
    "path-sum": ("path-sum", PROMPT, "--variant", "local", "--variant", "edge-full", "--variant", "second-moment"),
    "contributions": ("contributions", PROMPT),
    "attention": ("attention", PROMPT),
    "spectra": ("spectra", PROMPT),
    "collapse": ("collapse", "figure-5a", "--lengths", "1:6", "--dtype", "float32"),
}
"""What is measured; by the name of its table."""

WAYS: dict[str, dict[str, str]] = {
    "once": {"OMP_NUM_THREADS": "1"},
    "again": {"OMP_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "default": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx512"},
}
KERNELS = {"default": "DEFAULT", "avx2": "AVX2", "avx512": "AVX512"}

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


@pytest.fixture(scope="module", params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, dtype: str) -> dict[str, Path]:
    """The folder of each way's tables."""
    from tests.checkpoints import write_checkpoint

    home = tmp_path_factory.mktemp("reproducible")
    checkpoint = write_checkpoint(home / "tiny", "gemma2", n_layers=3)
    found = {}
    for way, variables in WAYS.items():
        found[way] = home / way
        found[way].mkdir()
        asked = [
            [*arguments, "--model", str(checkpoint), "--out", str(found[way] / f"{name}{ending}")]
            + (["--load-dtype", dtype] if name == "collapse" else ["--dtype", dtype])
            for name, arguments in COMMANDS.items()
            for ending in (".csv", ".json")
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
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_gives_the_same_bytes(measured: dict[str, Path], name: str) -> None:
    once, again = (measured[way] for way in ("once", "again"))
    assert (once / f"{name}.csv").read_bytes() == (again / f"{name}.csv").read_bytes()
    assert without_time(once / f"{name}.json") == without_time(again / f"{name}.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("once", "again")])
def test_other_threads_and_kernels_agree_as_the_provenance_says(
    measured: dict[str, Path], dtype: str, name: str, way: str
) -> None:
    told = without_time(measured[way] / f"{name}.json")["provenance"]["arithmetic"]
    if way in KERNELS and told["kernels"] != KERNELS[way]:
        pytest.skip(f"this processor has no {way}: torch took {told['kernels']}")
    assert told["threads"] == int(WAYS[way]["OMP_NUM_THREADS"])
    assert told["agrees_within"] == AGREES_WITHIN
    tables: list[Any] = [pd.read_csv(measured[which] / f"{name}.csv") for which in ("once", way)]
    one, other = tables
    assert list(one.columns) == list(other.columns)
    for column in one.columns:
        if not pd.api.types.is_float_dtype(one[column]):
            assert one[column].equals(other[column]), column
            continue
        here, there = one[column].to_numpy(), other[column].to_numpy()
        assert (np.isnan(here) == np.isnan(there)).all(), column
        assert np.nanmax(np.abs(here - there), initial=0.0) <= told["agrees_within"][dtype] * np.nanmax(np.abs(here)), (
            column
        )
