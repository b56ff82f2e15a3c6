"""The script of docs/findings/long-contexts.md, on the embedded model and short windows."""

from pathlib import Path

import numpy as np
import pytest

import ostools as ost
from ostools.theory.profiles import ends_over_texts, u_shape
from scripts import long_contexts as script


@pytest.mark.slow
def test_the_pages_say_a_row_a_window_the_interval_over_windows_and_the_collapse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "LENGTHS", {"embedded": 32, "embedded-short": 32})
    for name, value in (("PARTS", 3), ("BINS", 6), ("STEP", 4)):
        monkeypatch.setattr(script, name, value)
    for name, path in (("STORE", "store"), ("PAGE", "page.md"), ("PICTURE", "page.png")):
        monkeypatch.setattr(script, name, tmp_path / path)
    tables: dict[str, str] = {}
    monkeypatch.setattr(script, "write_tables", lambda page=None, **written: tables.update(written))
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"the answer to line {number} is 1 0 1 1 0; " for number in range(60)),
        encoding="utf-8",
    )
    script.main([str(text), "--page-only"])
    assert not tables  # nothing is stored: both pages stay as they are
    script.main([str(text), "--models", "embedded", "--here"])
    script.main([str(text), "--page-only"])
    windows = [part for _, part in script.measured_windows("embedded")]
    logs = np.stack([script.between(part) for part in windows])
    assert logs.shape == (3, 30)
    contrasts = [[shape.start.value, shape.end.value] for shape in map(u_shape, logs)]
    over = ends_over_texts(np.array(contrasts))
    assert tables["windows"].count("of part") == 3
    row = f"all 3, over windows | {script.words(over.start)} | {script.words(over.end)} | {over.verdict} |"
    assert row in tables["windows"]
    assert "| 32 | 3 |" in tables["long"]
    assert script.PICTURE.read_bytes().startswith(b"\x89PNG")
    pairs = ost.collapse(
        ost.load_model("embedded"), "figure-5a", lengths=[4, 8, 12], dtypes=["bfloat16"]
    )
    assert pairs.findings()[0] in tables["collapse"]
    assert tables["collapse"].startswith("**embedded**, every 4 digits up to 12 digits")
    assert "| 3 |" in tables["long_collapse"]
