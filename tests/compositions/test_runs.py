"""A sweep that nobody listed, cut off at any cells, once or more: resumed, it has the table of the uninterrupted one."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostools.runs import results, run, sweep_of
from tests.checkpoints import write_checkpoint
from tests.compositions.drawn import LOOKED_FOR

_HOME = TemporaryDirectory(prefix="ostools-compositions-", ignore_cleanup_errors=True)
EXAMPLES = 3 if settings().max_examples <= 20 else 4


@cache
def checkpoint(family: str) -> str:
    return str(write_checkpoint(Path(_HOME.name) / family, family))


def some(*choices: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(choices), min_size=1, max_size=2, unique_by=str)


sweeps = st.fixed_dictionaries(
    {
        "models": st.sampled_from(["gemma2", "gpt2", "neox", "bloom"]),
        "tasks": some("copy-last", "count-ones", "sum-ones"),
        "lengths": some(3, 4, 6),
        "dtypes": some("float32", "bfloat16"),
        "mitigations": some(
            "none",
            "separator:every=2",
            "attention-temperature:factor=1.5",
            "separator:every=2 + attention-temperature:rule=log-n",
        ),
        "measurements": some(
            "evaluate",
            {"name": "collapse", "dtypes": "bfloat16"},
            "sensitivity",
            {"name": "bounds", "variants": "local"},
        ),
    }
)


def table(directory: Path) -> Any:
    """All but the seconds that it took."""
    found: Any = results(directory)
    return found.drop(columns="seconds", errors="ignore")


@pytest.mark.slow
@settings(LOOKED_FOR, max_examples=EXAMPLES)
@given(asked=sweeps, stops=st.lists(st.integers(0, 4), min_size=1, max_size=2))
def test_an_interrupted_sweep_has_the_table_of_a_whole_one(asked: dict[str, Any], stops: list[int]) -> None:
    """Cut off after so many cells, each time anew; the cell under way is lost, and no other."""
    sweep = sweep_of(asked | {"models": checkpoint(asked["models"])})
    with TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        done = run(sweep, whole)
        for stop in stops:
            cells = iter(range(stop + 1))
            with suppress(KeyboardInterrupt):
                run(sweep, cut, interrupted=lambda cells=cells: next(cells, None) is None)
        left = run(sweep, cut)
        assert left.present + left.measured + len(left.failed) == done.measured + len(done.failed)
        pd.testing.assert_frame_equal(table(cut), table(whole), check_exact=True)
