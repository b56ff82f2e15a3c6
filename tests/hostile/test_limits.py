"""Limits that a user's system sets: what they make impossible is told in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sets import quick

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to this limit")

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 30,) * 2)
"""
COMMAND = LIMITED + "sys.argv[1:2] = []\nfrom ostools.cli import main\nmain()\n"
DOORS = (
    LIMITED
    + """
import altair as alt
from ostools.ground.errors import InputError
from ostools.reporting.style import notebook
from ostools.reporting.page import page
import pandas as pd
chart = notebook.offline(alt.Chart(pd.DataFrame({"x": [1]})).mark_point())
for draw in (
    page.library, lambda: page.chart_page(chart, "x"), lambda: notebook.chart_bundle(chart, "x"),
    *(lambda ending=ending: chart.save(f"x.{ending}") for ending in ("png", "svg", "pdf", "html")),
):
    try:
        draw()
    except InputError as error:
        assert "68 GiB of addresses" in str(error)
    else:
        raise AssertionError(draw)
"""
)


def limited(code: str, gib: int, *words: str, below: Path) -> subprocess.CompletedProcess[str]:
    """Python under `ulimit -v`."""
    command = [sys.executable, "-c", code, str(gib), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=below)


@pytest.mark.parametrize("gib", quick([16, 60], 16))
def test_a_chart_is_refused_before_anything_is_measured(tmp_path: Path, gib: int) -> None:
    done = limited(COMMAND, gib, "bounds", "--prompt", "ab", "--out", "x.png", below=tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("ostools: charts and pages: expected 68 GiB of addresses to reserve, found ")
    assert "ulimit -v unlimited" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_no_door_to_the_charts_ends_the_process(tmp_path: Path) -> None:
    done = limited(DOORS, 16, below=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_with_room_enough_a_chart_is_drawn_and_a_table_needs_none(tmp_path: Path) -> None:
    command = ["bounds", "--prompt", "ab", "--variant", "local", "--out"]
    for gib, name in ((16, "x.parquet"), (128, "x.png")):
        done = limited(COMMAND, gib, *command, name, below=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / name).stat().st_size > 1000
