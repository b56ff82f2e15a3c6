"""The copied code gives what the page shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from starlette.testclient import TestClient
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.explorer.app import Runs, answer, application
from ostools.explorer.views import VIEWS, ViewRequest
from ostools.models import load_model

PROMPT = "The 11 of 11"
slow = pytest.mark.slow
CASES: list[Any] = [
    ("attention", {"layer": 1, "head": 2}),
    *(
        pytest.param(view, values, marks=slow)
        for view, values in (
            *((name, {}) for name in VIEWS if name not in ("frozen", "full", "collapse")),
            ("frozen", {"layer": 2}),
            ("full", {"logit": "1"}),
            ("collapse", {"longest": 8}),
        )
    ),
]


@pytest.fixture(scope="module")
def page(embedded: TransformerBridge) -> Iterator[TestClient]:
    runs = Runs(embedded)
    yield TestClient(application(runs, ""), base_url="http://127.0.0.1:8765")
    runs.close()


def ask(page: TestClient, view: str, **values: Any) -> dict[str, Any]:
    response = page.post("/run", json={"view": view, "prompt": PROMPT, **values})
    assert response.status_code == 200, response.text
    return response.json()


@cache
def loaded(name: str, **options: Any) -> TransformerBridge:
    """A model as the copied code loads it, once: none is shared with the page."""
    return load_model(name, **options)


@pytest.mark.parametrize(("view", "values"), CASES, ids=str)
def test_the_copied_code_gives_what_is_shown(
    page: TestClient,
    embedded: TransformerBridge,
    monkeypatch: pytest.MonkeyPatch,
    view: str,
    values: dict[str, Any],
) -> None:
    monkeypatch.setattr("ostools.load_model", loaded)
    shown = ask(page, view, **values)
    scope: dict[str, Any] = {}
    exec(shown["code"], scope)
    request = ViewRequest.of({"view": view, "prompt": PROMPT, **values}, embedded)
    assert json.loads(json.dumps(answer(request, scope["result"]))) == shown
    assert all(json.loads(chart["chart"]) for chart in shown["charts"])


def test_the_strip_has_the_weights_of_the_chosen_layer_and_head(
    page: TestClient, embedded: TransformerBridge
) -> None:
    last = ost.attention(embedded, PROMPT).last
    for layer, head in ((3, 1), (-1, 1), (2, -1), (-1, -1)):
        of_layers = last if layer < 0 else last[layer : layer + 1]
        weights = (of_layers if head < 0 else of_layers[:, head : head + 1]).double().mean((0, 1))
        shown = [
            entry["value"]
            for entry in ask(page, "attention", layer=layer, head=head, chart=False)["tokens"]
        ]
        assert shown == pytest.approx(weights.tolist(), rel=1e-6)
