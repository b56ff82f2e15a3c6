"""The explorer's application: what it answers is what `ost` gives, what it copies gives the same,
and strangers are refused.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import pytest
from starlette.testclient import TestClient
from tokenizers import normalizers
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.explorer.app import Runs, Stopped, answer, application
from ostools.explorer.views import COTANGENTS, VIEWS, ViewRequest
from ostools.hooks import HookError
from ostools.models import load_model
from ostools.reporting.style.theme import display_token
from tests.cli.asking import assert_refused

PROMPT = "The 11"
HERE = "http://127.0.0.1:8765"
HOSTILE = "</script><img src=x onerror=alert(1)> {{7*7}} ' \" \\ $(touch x) \u202e é"


@pytest.fixture(scope="module")
def runs(embedded: TransformerBridge) -> Iterator[Runs]:
    made = Runs(embedded)
    yield made
    made.close()


@pytest.fixture
def page(runs: Runs) -> TestClient:
    return TestClient(application(runs, ""), base_url=HERE)


async def still_waits() -> bool:
    return False


def ask(page: TestClient, view: str, prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    response = page.post("/run", json={"view": view, "prompt": prompt, **more})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_numbers_come_without_the_chart_where_it_is_not_asked_for(page: TestClient) -> None:
    whole, quick = (
        ask(page, "sketch-frozen", layer=1),
        ask(page, "sketch-frozen", layer=1, chart=False),
    )
    assert quick == {**whole, "charts": []}
    (note,) = ask(page, "frozen")["charts"][0]["notes"][:1]
    assert note.startswith("Arithmetic: the norms of all tokens together may be off by up to")
    assert ask(page, "frozen", before=1, layer=1, chart=False) == quick
    assert ask(page, "frozen", before=0, layer=1, chart=False) == ask(
        page, "attention", chart=False
    )
    assert ask(page, "frozen", before=2) == ask(page, "frozen", before=0, logit="1") == {}
    names = ("full", "sketch-full", "attention", "bounds", "hops", "influence-by-distance")
    kinds = [ask(page, name, chart=False)["kind"] for name in names]
    assert kinds[:4] == ["measured", "estimated", "attention weights", "certified bound"]
    assert kinds[4:] == ["estimated", "estimated"]


def test_a_hostile_prompt_is_text(page: TestClient) -> None:
    shown = ask(page, "frozen", HOSTILE)
    (chart,) = shown["charts"]
    assert not {"<", ">", "&"} & set(chart["chart"])
    assert all(one["token"].isprintable() for one in shown["tokens"])
    known: dict[str, Any] = {}
    exec(next(line for line in shown["code"].splitlines() if line.startswith("prompt = ")), known)
    assert known["prompt"] == HOSTILE


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8765"},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_another_host_or_origin_is_refused(page: TestClient, headers: dict[str, str]) -> None:
    assert page.get("/", headers=headers).status_code == 403
    assert (
        page.post("/run", json={"view": "full", "prompt": PROMPT}, headers=headers).status_code
        == 403
    )


def test_every_answer_has_the_policy_and_the_page_no_inline_script(page: TestClient) -> None:
    for path in (
        "/",
        "/start",
        "/explorer.js",
        "/nothing",
        "/../pyproject.toml",
        "/%2e%2e/pyproject.toml",
    ):
        found = page.get(path)
        assert "default-src 'none'; script-src 'self';" in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"
        assert (found.status_code == 404) == ("nothing" in path or "pyproject" in path)
    text = page.get("/").text
    assert text.count("<script") == text.count("<script src=")
    assert "http" not in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"view": "ful", "prompt": PROMPT}, "did you mean 'full'"),
        ({"view": "full", "prompt": ""}, "type a text"),
        ({"view": "full", "prompt": "x" * 30_000}, "shorten it"),
        ({"view": "full", "prompt": PROMPT, "layer": 5}, "from 0 to 4, found 5"),
        ({"view": "full", "prompt": PROMPT, "layer": True}, "from 0 to 4, found True"),
        ({"view": "full", "prompt": PROMPT, "logit": ["1"]}, "expected a next token"),
        ({"view": "attention", "prompt": PROMPT, "head": 4}, "from -1 to 3, found 4"),
        ({"view": "collapse", "prompt": PROMPT, "longest": 10_000}, "from 8 to 512"),
        ({"view": "full", "prompt": "1 " * 9_000}, "context"),
        ({"view": "full", "prompt": "half \ud83d"}, "of Unicode text"),
        ([1], "JSON object"),
    ],
)
def test_a_wrong_request_is_refused_in_words(page: TestClient, asked: Any, words: str) -> None:
    headers = {"content-type": "application/json"}
    found = page.post("/run", content=json.dumps(asked), headers=headers)
    assert (found.status_code, words in found.json()["error"]) == (400, True)


def test_a_form_of_another_page_and_what_hooks_refuse(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = page.post("/run", content=json.dumps({"view": "full", "prompt": PROMPT}))
    assert (response.status_code, "application/json" in response.json()["error"]) == (400, True)

    def refused(*given: object) -> None:
        raise HookError("expected a model without edits")

    monkeypatch.setattr(ViewRequest, "run", refused)
    found = page.post("/run", json={"view": "full", "prompt": "unmeasured"})
    assert (found.status_code, found.json()) == (400, {"error": "expected a model without edits"})


def test_a_run_ends_when_its_request_is_gone_and_the_next_is_served(
    embedded: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, told, real_run = threading.Event(), [], ViewRequest.run

    def endless(request: ViewRequest, model: Any, progress: Any) -> Any:
        if request.prompt != "endless":
            return real_run(request, model, progress)
        while True:
            begun.set()
            progress(len(told), 100)
            told.append(request.prompt)

    monkeypatch.setattr(ViewRequest, "run", endless)

    async def gone() -> bool:
        return begun.is_set()

    async def both() -> Any:
        made = Runs(embedded)
        with pytest.raises(Stopped):
            await made.answer_to(ViewRequest("frozen", "endless"), gone)
        sketch = ViewRequest("sketch-frozen", PROMPT)
        shown = await made.answer_to(sketch, still_waits, draws=False)
        made.close()
        return shown

    found = asyncio.run(both())
    assert told
    sketch: dict[str, Any] = {
        "linearisations": ("frozen",),
        "method": "sketch",
        "cotangents": COTANGENTS,
    }
    norms = ost.sensitivity(embedded, PROMPT, **sketch).frame["frobenius_norm"]
    assert [token["value"] for token in found["tokens"]] == norms.tolist()


def test_it_serves_shows_itself_and_stops(embedded: TransformerBridge) -> None:
    import urllib.error
    import urllib.request

    explorer = ost.explore(embedded, PROMPT)
    with urllib.request.urlopen(f"{explorer.url}start", timeout=30) as got:
        assert json.load(got)["prompt"] == PROMPT
    assert f'src="{explorer.url}"' in explorer._repr_html_()
    port = int(explorer.url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(ost.InputError, match="cannot listen on"):
        ost.explore(embedded, port=port)
    explorer.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{explorer.url}start", timeout=5)


def test_without_its_packages_it_says_what_to_install(
    run, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert_refused(run("explore", "--model", directory), "oversquashing-tools[explore]")


# --- the copied code gives what the page shows

COPIED = "The 11 of 11"
CASES: list[Any] = [
    ("attention", {"layer": 1, "head": 2}),
    *(
        pytest.param(view, values, marks=pytest.mark.slow)
        for view, values in (
            *((name, {}) for name in VIEWS if name not in ("frozen", "full", "collapse")),
            ("frozen", {"layer": 2}),
            ("full", {"logit": "1"}),
            ("collapse", {"longest": 8}),
        )
    ),
]


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
    shown = ask(page, view, COPIED, **values)
    scope: dict[str, Any] = {}
    exec(shown["code"], scope)
    request = ViewRequest.of({"view": view, "prompt": COPIED, **values}, embedded)
    assert json.loads(json.dumps(answer(request, scope["result"]))) == shown
    assert all(json.loads(chart["chart"]) for chart in shown["charts"])


def test_active_edits_are_named_on_the_page_and_in_its_code() -> None:
    """The lines load the model without them, so that they give other numbers."""
    model = load_model("embedded", device="cpu")
    page = TestClient(application(Runs(model), ""), base_url=HERE)
    without = ask(page, "attention")
    # Of a notebook that runs on; within a block of ours the page would wait for its end.
    handle = model.blocks[1].register_forward_hook(lambda *it: it[2] * 2)
    under = ask(page, "attention")
    (edit,) = ost.hooks.active_edits(model)
    handle.remove()
    assert under["tokens"] != without["tokens"] == ask(page, "attention")["tokens"]
    assert under["words"] == f"{without['words']}, under active edits"
    (chart,), (chart_without,) = under["charts"], without["charts"]
    assert chart["notes"] == [f"Active edits: {edit}.", *chart_without["notes"]]
    comment = f"# Measured under edits, which these lines do not make: {edit}\n"
    assert under["code"].replace(comment, "") == without["code"] != under["code"]


def test_a_result_is_held_for_the_tokenizer_that_it_is_of() -> None:
    model = load_model("embedded", device="cpu")
    page = TestClient(application(Runs(model), ""), base_url=HERE)
    for normalizer in (None, normalizers.Lowercase()):
        cast(Any, model.tokenizer).backend_tokenizer.normalizer = normalizer
        shown = [row["token"] for row in ask(page, "attention", "THE 11", chart=False)["tokens"]]
        assert shown == [*map(display_token, ost.attention(model, "THE 11").tokens)]


def test_the_strip_has_the_weights_of_the_chosen_layer_and_head(
    page: TestClient, embedded: TransformerBridge
) -> None:
    last = ost.attention(embedded, COPIED).last
    for layer, head in ((3, 1), (-1, 1), (2, -1), (-1, -1)):
        of_layers = last if layer < 0 else last[layer : layer + 1]
        weights = (of_layers if head < 0 else of_layers[:, head : head + 1]).double().mean((0, 1))
        shown = [
            entry["value"]
            for entry in ask(page, "attention", COPIED, layer=layer, head=head, chart=False)[
                "tokens"
            ]
        ]
        assert shown == pytest.approx(weights.tolist(), rel=1e-6)


@pytest.mark.slow
def test_a_result_is_held_for_the_model_that_it_is_of() -> None:
    """A notebook changes weights, and puts hooks on the model, while the page is open."""
    model = load_model("embedded", device="cpu")
    runs = Runs(model)
    page = TestClient(application(runs, ""), base_url=HERE)

    def shown() -> list[float]:
        measured = ost.sensitivity(model, PROMPT, method="sketch", cotangents=COTANGENTS)
        norms = measured.frame.query("linearisation == 'full'")["frobenius_norm"].tolist()
        for _ in range(2):
            tokens = ask(page, "sketch-full", chart=False)["tokens"]
            assert [token["value"] for token in tokens] == norms
        return norms

    states = [shown()]
    original: Any = model.original_model
    original.model.layers[0].self_attn.o_proj.weight.mul_(3)
    states.append(shown())
    for factor in (2.0, 3.0):
        handle = model.blocks[1].register_forward_hook(lambda *it, by=factor: it[2] * by)
        states.append(shown())
        handle.remove()
    assert shown() == states[1]
    assert len({tuple(state) for state in states}) == len(states) == len(runs._recent)
    runs.close()
