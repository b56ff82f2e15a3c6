"""The scripts of pages of docs/findings, on the embedded model and short texts: the figures of
attention-arithmetic.md against transformers' own passes; long-contexts.md; tokens.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import ostools as ost
from ostools.measure.answers.prefilled import prefilled_prompts
from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from ostools.theory.profiles import ends_over_texts, u_shape
from scripts import attention_arithmetic, long_contexts, tokens

pytestmark = pytest.mark.slow
ONES = (4, 9)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type:
    """The script, of one small model and few lengths, whose page has nothing but the marks."""
    values: dict[str, Any] = {
        "MODELS": ("embedded",),
        "SMALL": ("embedded",),
        "ONES": ONES,
        "LENGTHS": range(1, 13),
        "STORE": tmp_path / "store",
        "PAGE": tmp_path / "page.md",
        "CELLS": {
            "noise": (("embedded",), attention_arithmetic.noise),
            "hidden": (("embedded",), attention_arithmetic.hidden),
        },
    }
    for name, value in values.items():
        monkeypatch.setattr(attention_arithmetic, name, value)
    marks = "".join(
        f"<!-- {name}: start -->\n<!-- {name}: end -->\n" for name in ("noise", "hidden")
    )
    attention_arithmetic.PAGE.write_text("Above.\n" + marks + "Below.\n", encoding="utf-8")
    return attention_arithmetic  # pyright: ignore[reportReturnType]


def test_the_page_says_what_transformers_alone_gives(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.main(["--models", "embedded"])
    cells, text = small.stored("embedded", "noise"), small.PAGE.read_text(encoding="utf-8")
    assert text.startswith("Above.\n")
    assert text.endswith("Below.\n")
    assert [cell["ones"] for cell in cells] == list(ONES)
    plain, seen = (
        AutoModelForCausalLM.from_pretrained(
            EMBEDDED_DIRECTORIES["embedded"], attn_implementation="eager"
        ),
        [],
    )
    softmax = torch.nn.functional.softmax

    def watched(scores: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(float(scores[scores > -1e30].abs().max()))
        return softmax(scores, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "softmax", watched)
    for weight in plain.parameters():
        weight.data = weight.data.bfloat16().float()
    model = ost.load_model("embedded")
    for cell, prompt in zip(
        cells, prefilled_prompts(model, ost.tasks.task("count-ones"), ONES, [0]), strict=True
    ):
        seen.clear()
        with torch.no_grad():
            y = plain.model(torch.tensor([prompt.ids])).last_hidden_state[0, -1]
        assert cell["norm"] == pytest.approx(float(y.norm()), rel=1e-5)
        assert cell["scores"] == pytest.approx(seen, rel=1e-5)
        assert cell["own"]["bfloat16-eager"]["noise"] == pytest.approx(
            cell["plain"]["eager"]["noise"], rel=1e-3
        )
        assert cell["routes_apart"] < 1e-5 * cell["norm"] < cell["own"]["bfloat16"]["noise"]
        assert f" | {cell['ones']} | {cell['norm']:.0f} | " in text
    assert text.count("not hidden at any of the 12 lengths tried") == 2


def test_the_pages_say_a_row_a_window_the_interval_over_windows_and_the_collapse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_contexts, "LENGTHS", {"embedded": 32, "embedded-short": 32})
    for name, value in (("PARTS", 3), ("BINS", 6), ("STEP", 4)):
        monkeypatch.setattr(long_contexts, name, value)
    for name, path in (("STORE", "store"), ("PAGE", "page.md"), ("PICTURE", "page.png")):
        monkeypatch.setattr(long_contexts, name, tmp_path / path)
    tables: dict[str, str] = {}
    monkeypatch.setattr(
        long_contexts, "write_tables", lambda page=None, **written: tables.update(written)
    )
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"the answer to line {number} is 1 0 1 1 0; " for number in range(60)),
        encoding="utf-8",
    )
    long_contexts.main([str(text), "--page-only"])
    assert not tables  # nothing is stored: both pages stay as they are
    long_contexts.main([str(text), "--models", "embedded", "--here"])
    long_contexts.main([str(text), "--page-only"])
    windows = [part for _, part in long_contexts.measured_windows("embedded")]
    logs = np.stack([long_contexts.between(part) for part in windows])
    assert logs.shape == (3, 30)
    contrasts = [[shape.start.value, shape.end.value] for shape in map(u_shape, logs)]
    over = ends_over_texts(np.array(contrasts))
    assert tables["windows"].count("of part") == 3
    ends = " | ".join(map(long_contexts.words, (over.start, over.end)))
    assert f"all 3, over windows | {ends} | {over.verdict} |" in tables["windows"]
    assert "| 32 | 3 |" in tables["long"]
    assert long_contexts.PICTURE.read_bytes().startswith(b"\x89PNG")
    pairs = ost.collapse(
        ost.load_model("embedded"), "figure-5a", lengths=[4, 8, 12], dtypes=["bfloat16"]
    )
    assert pairs.findings()[0] in tables["collapse"]
    assert tables["collapse"].startswith("**embedded**, every 4 digits up to 12 digits")
    assert "| 3 |" in tables["long_collapse"]


def test_the_page_says_what_is_stored_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = tokens.Plan(texts=3, tokens=24, queries=2, cotangents=2, long=1)
    for name, value in (("PLANS", {"embedded": plan}), ("STATES", 24), ("LENGTHS", (2, 4))):
        monkeypatch.setattr(tokens, name, value)
    for name, path in (("STORE", "store"), ("PAGE", "page.md")):
        monkeypatch.setattr(tokens, name, tmp_path / path)
    tokens.main(["--page-only"])
    assert "embedded" not in tokens.PAGE.read_text(encoding="utf-8")
    tokens.main([])
    page = tokens.PAGE.read_text(encoding="utf-8")
    result = tokens.distances("embedded")
    assert result is not None
    assert set(result.frame["source"]) == {"text", "shuffled", "untrained"}
    laws: Any = result.laws
    (row,) = laws[(laws["source"] == "text") & (laws["from_distance"] == 0)].to_dict("records")
    assert "| embedded | text | 3 | " in page
    assert tokens.rate(row) in page
    squashing = tokens.squashing("embedded")
    assert squashing is not None
    assert len(squashing) == int(ost.load_model("embedded").cfg.n_layers)
    for cells in tokens.growth_rows(tokens.stored("embedded", "rounding")):
        assert " | ".join(cells) in page
    for what in ("distance", "states", "rounding"):
        assert (tmp_path / f"tokens-{what}.png").read_bytes().startswith(b"\x89PNG")
