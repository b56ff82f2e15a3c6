"""The script of docs/findings/long-contexts.md, on the embedded model and short windows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ostools.theory.profiles import end_contrasts, ends_over_texts
from scripts import long_contexts as script


@pytest.mark.slow
def test_the_page_says_a_row_a_window_and_the_interval_over_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "LENGTHS", {"embedded": 32, "embedded-short": 32})
    monkeypatch.setattr(script, "PARTS", 3)
    monkeypatch.setattr(script, "BINS", 6)
    monkeypatch.setattr(
        sys.modules["ostools.runs.corpus.corpus"], "TOKENS_PER_CELL", 32
    )  # a window a cell, as long ones have
    for name, path in (("STORE", "store"), ("PAGE", "page.md"), ("PICTURE", "page.png")):
        monkeypatch.setattr(script, name, tmp_path / path)
    told: dict[str, str] = {}
    monkeypatch.setattr(script, "write_tables", told.update)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the answer to line {number} is 1 0 1 1 0; " for number in range(60)), encoding="utf-8")
    script.measure_here("embedded", text)
    script.main([str(text), "--page-only"])
    windows = [part for _, part in script.measured_windows("embedded")]
    logs = np.stack([script.between(part) for part in windows])
    assert logs.shape == (3, 30)
    over = ends_over_texts(end_contrasts(logs))
    page = script.PAGE.read_text(encoding="utf-8")
    assert page.count("of part") == 3
    assert f"all 3, over windows | {script.words(over.start)} | {script.words(over.end)} | {over.verdict} |" in page
    assert "| 32 | 3 |" in told["long"]
    assert script.PICTURE.read_bytes().startswith(b"\x89PNG")
