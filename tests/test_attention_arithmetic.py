"""The script of docs/findings/attention-arithmetic.md, on the embedded model: its figures against
transformers' own passes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import ostools as ost
from ostools.measure.answers.prefilled import prefilled_prompts
from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from scripts import attention_arithmetic as script

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
    }
    values |= {"STORE": tmp_path / "store", "PAGE": tmp_path / "page.md"}
    values["CELLS"] = {
        "noise": (("embedded",), script.noise),
        "hidden": (("embedded",), script.hidden),
    }
    for name, value in values.items():
        monkeypatch.setattr(script, name, value)
    marks = "".join(
        f"<!-- {name}: start -->\n<!-- {name}: end -->\n" for name in ("noise", "hidden")
    )
    script.PAGE.write_text("Above.\n" + marks + "Below.\n", encoding="utf-8")
    return script  # pyright: ignore[reportReturnType]


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
