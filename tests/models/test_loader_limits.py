"""A checkpoint that would hold the loader or fill the memory is refused in one line before the work begins."""

from __future__ import annotations

import ast
import base64
import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from ostools.models.files import shards
from tests.checkpoints import edit_config, make_model, tiny_model, write_checkpoint

_CALLS = re.compile(r"(^|\.)tokenizer(\.decode|\.apply_chat_template)?$")
_BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a|aa|a+)+b"}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "gemma")


def _refuses(match: str, directory: Path) -> None:
    begin = time.process_time()
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value)
    assert time.process_time() - begin < 30  # a few at most: no slow machine is a hang


def _edit_tokenizer(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _add_tensors(file: Path, count: int) -> None:
    """So many tensors without a number, which take no room."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header |= {f"x{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(count)}
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    file.write_bytes(struct.pack("<Q", len(packed)) + packed + content[8 + size :])


# --- tensors


@pytest.mark.parametrize(
    ("count", "match"),
    [
        (900, "found 900 more"),
        (2000, "expected at most 1000 tensors in .*model.safetensors, found 2020"),
    ],
)
def test_more_tensors_than_any_model_has(gemma: Path, count: int, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_TENSORS", 1000)
    _add_tensors(gemma / "model.safetensors", count)
    _refuses(match, gemma)


# --- settings


@pytest.mark.parametrize(
    ("family", "settings", "match"),
    [
        ("gemma", {"num_labels": 10**9}, "expected at most 10000 as num_labels in .*config.json, found 1000000000"),
        ("mpt", {"max_seq_len": 10**8}, "expected tables of positions of at most 268435456 numbers in .*, found 4"),
        ("gptj", {"n_positions": 10**9}, "expected tables of positions"),
    ],
)
def test_a_setting_that_asks_for_a_giant(tmp_path: Path, family: str, settings: dict[str, Any], match: str) -> None:
    edit_config(write_checkpoint(tmp_path, family), **settings)
    _refuses(match, tmp_path)


# --- tokenizers


def _tenfold(rules: int) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * rules


def test_rules_that_multiply_a_text(gemma: Path) -> None:
    part, kind = "normalizer", "normalizers"
    _edit_tokenizer(gemma, lambda content: content.update({part: {"type": "Sequence", kind: _tenfold(10)}}))
    _refuses(f"expected a {part} in .*tokenizer.json that makes a text at most 100 times longer, found .* 1e", gemma)


def test_a_table_that_writes_a_long_text_for_a_letter(gemma: Path) -> None:
    """SentencePiece's: a trie of one letter, as a double array, and the text that stands for it."""
    letter, root = ord("a"), 256
    units = [0] * 512
    units[0], units[root ^ letter], units[root ^ letter ^ 1] = root << 10, 1 << 10 | 1 << 8 | letter, 1 << 31
    table = struct.pack("<I", 4 * len(units)) + struct.pack("<512I", *units) + b"b" * 100_000 + b"\0"
    rule = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    _edit_tokenizer(gemma, lambda content: content.update(normalizer=rule))
    _refuses("expected a normalizer in .* at most 100 times longer, found .* 1e[+]05", gemma)


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = write_checkpoint(tmp_path_factory.mktemp("panicking"), "gemma")
    _edit_tokenizer(directory, lambda content: content.update(pre_tokenizer=_BACKTRACKS))
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


# --- weights without numbers


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
