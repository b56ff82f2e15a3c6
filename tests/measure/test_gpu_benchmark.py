"""The benchmark for GPUs runs where there is none, on a tiny model: it says so, and leaves out what only a GPU has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks import gpu

TINY = ["--device", "cpu", "--shape", "tiny", "--tokens", "6", "--longest", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", gpu.ENDINGS)
def test_the_table_has_every_measurement(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"table{ending}"
    gpu.main([*TINY, "--out", str(out)])
    said = capsys.readouterr().out
    assert "device: cpu" in said
    if ending == ".md":
        assert out.read_text(encoding="utf-8").strip() == said.strip()
        return
    table: Any = pd.read_csv(out)
    assert list(table["what"]) == ["exact profile, 6 tokens", "estimated profile, 6 tokens", "collapse, 1 to 4 items"]
    assert (table["seconds"] > 0).all()
    assert table["share"].notna().tolist() == [True, False, False]
    assert table["peak"].isna().all()  # no figure of a GPU without one
    assert set(table["device"]) == {"cpu"}
    assert table["date"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    assert table["versions"].str.contains(f"torch {torch.__version__}", regex=False).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "table.xlsx"], "expected an ending of .md or .csv"),
        (["--device", "gpu", "--out", "table.md"], "unknown device 'gpu'"),
        (["--tokens", "99999", "--out", "table.md"], "expected at most"),
    ],
)
def test_what_is_wrong_ends_in_a_line_without_a_table(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        gpu.main([*TINY, *arguments])
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
