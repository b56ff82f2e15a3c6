"""The script of docs/findings/tokens.md, on the embedded model and short texts."""

from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from scripts import tokens as script


@pytest.mark.slow
def test_the_page_says_what_is_stored_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = script.Plan(texts=3, tokens=24, queries=2, cotangents=2, long=1)
    for name, value in (("PLANS", {"embedded": plan}), ("STATES", 24), ("LENGTHS", (2, 4))):
        monkeypatch.setattr(script, name, value)
    for name, path in (("STORE", "store"), ("PAGE", "page.md")):
        monkeypatch.setattr(script, name, tmp_path / path)
    script.main(["--page-only"])
    assert "embedded" not in script.PAGE.read_text(encoding="utf-8")
    script.main([])
    page = script.PAGE.read_text(encoding="utf-8")
    result = script.distances("embedded")
    assert result is not None
    assert set(result.frame["source"]) == {"text", "shuffled", "untrained"}
    laws: Any = result.laws
    (row,) = laws[(laws["source"] == "text") & (laws["from_distance"] == 0)].to_dict("records")
    assert "| embedded | text | 3 | " in page
    assert script.rate(row) in page
    squashing = script.squashing("embedded")
    assert squashing is not None
    assert len(squashing) == int(ost.load_model("embedded").cfg.n_layers)
    for cells in script.growth_rows(script.stored("embedded", "rounding")):
        assert " | ".join(cells) in page
    for what in ("distance", "states", "rounding"):
        assert (tmp_path / f"tokens-{what}.png").read_bytes().startswith(b"\x89PNG")
