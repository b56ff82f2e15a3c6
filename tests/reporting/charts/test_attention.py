"""Attention drawn: heat maps by stated rules, and circuitsvis on a page that nothing gets out of."""

import json
from typing import Any

import pandas as pd
import pytest
import torch

from ostools.measure.attention.attention import SIDE, Attention, bins_of, max_pool
from ostools.reporting.charts.attention import (
    COLUMNS,
    HEADS,
    attention_findings,
    attention_frame,
    interactive_view,
)
from ostools.results import Provenance
from tests.reporting.made import HOSTILE, tokens_of

MADE = Provenance(
    {"name": "made", "dtype": "float32"}, {"mitigation": "none", "status": "none"}, None, {}
)


def made(
    tokens: list[str],
    layers: int = 2,
    heads: int = 3,
    seed: int = 0,
    last: Any = None,
    provenance: Provenance = MADE,
) -> Attention:
    """Random causal patterns over these tokens; `last`: another last row."""
    count = len(tokens)
    scores = torch.randn(layers, heads, count, count, generator=torch.Generator().manual_seed(seed))
    pattern = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf")).softmax(-1)
    if last is not None:
        pattern[:, :, -1] = last
    bins = bins_of(count, SIDE)
    places = pd.MultiIndex.from_product(
        [range(layers), range(heads), range(count)], names=["layer", "head", "position"]
    )
    rows = (
        pd.DataFrame(index=places).reset_index().assign(token_id=0, token=tokens * (layers * heads))
    )
    frame = rows.assign(
        origin=pd.array([None] * len(rows), dtype="str"), weight=pattern[:, :, -1].flatten().numpy()
    )
    return Attention(frame, provenance, max_pool(max_pool(pattern, bins), bins, dim=-2), bins)


def test_findings_name_the_sharpest_head_and_a_sink() -> None:
    last = torch.full((2, 3, 10), 0.01)
    last[..., 0] = 0.91
    last[1, 2] = 0.0
    last[1, 2, 7] = 1.0
    sink = " ".join(attention_findings(made(tokens_of(10, ["<bos>"]), last=last)))
    assert "layer 1, head 2: 100% on token 7 “t7”" in sink
    none = " ".join(attention_findings(made(tokens_of(10), last=torch.full((2, 3, 10), 0.1))))
    assert "10.0% of its attention on the first token and 10.0% on itself" in none
    assert "10.0 tokens in the median" in none


def test_the_heat_map_holds_the_greatest_weight_of_each_bin() -> None:
    for count, layers in ((20, 2), (400, 1)):
        attention = made(tokens_of(count), layers=layers, heads=layers)
        frame = attention_frame(attention)
        assert len(frame) == layers**2 * len(bins_of(count, COLUMNS))
        for row in frame.to_dict(orient="records"):
            layer, head = map(int, row["head"].split("."))
            part = attention.last[layer, head, row["start"] : row["end"]]
            assert row["weight"] == pytest.approx(float(part.max()))


# --- the view


def handed_over(source: str, element: str = "heads") -> dict[str, Any]:
    """The properties that circuitsvis is called with, as its JavaScript reads them."""
    call = source.rindex(f'CircuitsVis.render(\n      "{element}"')
    start = source.index("{", call)
    return json.JSONDecoder().raw_decode(source[start:])[0]


def source_of(attention: Attention) -> str:
    view = interactive_view(attention, "heads").view
    assert view is not None
    return view.script.source


def test_hostile_tokens_cannot_leave_the_script() -> None:
    tokens = [
        *HOSTILE,
        'CircuitsVis.render(\n      "circuits-vis-0"',
        "</script><script>alert(1)</script>",
    ]
    source = source_of(made(list(tokens)))
    assert (
        len(handed_over(source_of(made(tokens_of(5), layers=10, heads=8)))["attentionHeadNames"])
        == HEADS
    )
    data = source[source.rindex("CircuitsVis.AttentionHeads") :]
    assert "</script" not in source.lower()
    assert "<" not in data
    handed = handed_over(source)
    assert len(handed["tokens"]) == len(tokens)
    assert any("</script>" in token for token in handed["tokens"])
