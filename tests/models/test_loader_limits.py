"""A tokenizer that ends in another language's panic, and weights without numbers, are an error in one line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from tests.checkpoints import make_model, tiny_model, write_checkpoint

_CALLS = re.compile(r"(^|\.)tokenizer(\.decode|\.apply_chat_template)?$")
_BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a|aa|a+)+b"}, "behavior": "Isolated", "invert": False}


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = write_checkpoint(tmp_path_factory.mktemp("panicking"), "gemma")
    file = directory / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": _BACKTRACKS}))
    return load_model(directory)


def test_a_pattern_that_backtracks_is_an_error_in_one_line(panicking: Any) -> None:
    for call in (
        lambda text: ost.encode(panicking, text),
        lambda text: ost.encode(panicking, text, chat=True),
        lambda text: ost.sensitivity(panicking, text),
    ):
        with pytest.raises(InputError, match=r"expected a tokenizer that can read .*aaa.*PanicException") as caught:
            call("a" * 60)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    model: Any = tiny_model("gemma", fresh=True)

    def stopped(*args: Any, **options: Any) -> Any:
        raise kind

    monkeypatch.setattr(type(model.tokenizer), "__call__", stopped)
    with pytest.raises(kind):
        ost.encode(model, "hello")


def test_nobody_else_calls_a_tokenizer() -> None:
    """Each such call is made in `models/tokenizer_calls.py`, where its errors are turned into ours."""
    root = Path(ost.__file__).parent
    callers = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _CALLS.search(ast.unparse(node.func))
    }
    assert callers == {"models/tokenizer_calls.py", "models/chat.py"}


def test_a_model_on_the_meta_device() -> None:
    theirs: Any = make_model("gemma")
    theirs.to("meta")
    match = "expected a model with weights, found one on torch's meta device"
    with pytest.raises(InputError, match=match):
        ost.adopt(theirs)
    model = tiny_model("gemma", fresh=True)
    for measure in (describe, lambda model: ost.sensitivity(model, "ab"), lambda model: ost.bounds(model, "ab")):
        model.to("meta")
        with pytest.raises(InputError, match=match):
            measure(model)
