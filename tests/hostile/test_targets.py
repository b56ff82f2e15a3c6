"""A few cases against each target, always the same; `make stress` makes ten thousand, each time others."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.attempts import Attempt, LawBroken, Reached, attempt, watched
from tests.hostile.spoiling import PICKLE, write_files
from tests.hostile.targets import TARGETS, Ground, Target, attack

pytestmark = pytest.mark.slow

CASES = 16


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_cases(ground: Ground, target: Target) -> None:
    attack(target, ground, CASES)


def loaded(ground: Ground, below: Path, changes: Mapping[str, bytes | str]) -> Attempt:
    """What is said of the checkpoint with these files changed."""
    write_files(below / "model", {**ground.checkpoint, **changes})
    return attempt(["bounds", "--prompt", "ab", "--model", "./model", "--variant", "local"], below)


@pytest.mark.parametrize("kind", ["a pipe", "a link to /dev/zero"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_a_checkpoint_in_which_reading_would_not_end(ground: Ground, tmp_path: Path, name: str, kind: str) -> None:
    found = loaded(ground, tmp_path, {name: kind})
    assert found.code == 2
    assert f"found {name}, a pipe or a device" in found.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 10**9}, "weights"),
        ({"num_hidden_layers": 10**9}, "expected at most 10000 as num_hidden_layers"),
        ({"num_hidden_layers": 10**4}, "expected a weight for each of 10000 layers"),
        ({"num_labels": 10**9}, "expected at most 10000 as num_labels"),
        ({"eos_token_id": -1, "pad_token_id": -1}, None),
        ({"vocab_size": 10**12}, "tokenizer"),
        ({"intermediate_size": 10**10}, "expected 240000002360 weights"),
        ({"head_dim": 10**12}, "weights"),
        ({"max_position_embeddings": 10**12}, None),
    ],
)
def test_a_configuration_of_a_giant_asks_for_no_memory(
    ground: Ground, tmp_path: Path, changes: dict[str, int], said: str | None
) -> None:
    config = json.loads(ground.checkpoint["config.json"]) | changes
    found = loaded(ground, tmp_path, {"config.json": json.dumps(config).encode()})
    assert found.code == (0 if said is None else 2)
    assert (said or "") in found.err


_TENFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
_BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a|aa|a+)+b"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [_TENFOLD] * 10}},
            "that makes a text at most 100 times longer",
        ),
        ({"decoder": {"type": "Sequence", "decoders": [_TENFOLD] * 10}}, "that makes a text at most 100 times longer"),
        ({"added_tokens": [{"id": 70, "content": "<new>", "special": True}]}, "expected"),
    ],
)
def test_a_tokenizer_that_is_an_attack(ground: Ground, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    tokenizer = json.loads(ground.checkpoint["tokenizer.json"]) | changes
    found = loaded(ground, tmp_path, {"tokenizer.json": json.dumps(tokenizer).encode()})
    assert found.code == 2
    assert said in found.err


def _with_tensors(weights: bytes, entries: dict[str, Any], more: bytes = b"") -> bytes:
    """A safetensors file with these entries in its header too, and these bytes behind its own."""
    size = struct.unpack("<Q", weights[:8])[0]
    header = json.dumps(json.loads(weights[8 : 8 + size]) | entries).encode()
    return struct.pack("<Q", len(header)) + header + weights[8 + size :] + more


@pytest.mark.parametrize("count", [10_000, 300_000])
def test_a_checkpoint_of_empty_tensors(ground: Ground, tmp_path: Path, count: int) -> None:
    empty = {f"x{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(count)}
    found = loaded(
        ground, tmp_path, {"model.safetensors": _with_tensors(ground.checkpoint["model.safetensors"], empty)}
    )
    assert found.code == 2
    assert ("expected at most 100000 tensors" if count > 100_000 else "found 10000 more") in found.err


def test_a_tensor_in_two_files(ground: Ground, tmp_path: Path) -> None:
    weights = ground.checkpoint["model.safetensors"]
    size = struct.unpack("<Q", weights[:8])[0]
    names = [name for name in json.loads(weights[8 : 8 + size]) if name != "__metadata__"]
    index = json.dumps({"weight_map": dict.fromkeys(names, "model-1.safetensors") | {names[0]: "model-2.safetensors"}})
    files: dict[str, bytes | str] = {
        "model-1.safetensors": weights,
        "model-2.safetensors": weights,
        "model.safetensors.index.json": index.encode(),
    }
    write_files(
        tmp_path / "model",
        {name: text for name, text in ground.checkpoint.items() if name != "model.safetensors"} | files,
    )
    found = attempt(["bounds", "--prompt", "ab", "--model", "./model", "--variant", "local"], tmp_path)
    assert found.code == 2
    assert "expected each tensor in one file" in found.err


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 'a' * 10**9 }}", "expected a chat template that writes a text about as long"),
        ("{% if x %}" * 9000 + "{% endif %}" * 9000, "expected a chat template that can be read"),
        ("{{ messages[0]['content'] }}{{ ['a', 'b']|random }}", "one that draws at random"),
    ],
)
def test_a_chat_template_that_is_an_attack(ground: Ground, tmp_path: Path, template: str, said: str) -> None:
    write_files(tmp_path / "model", {**ground.checkpoint, "chat_template.jinja": template.encode()})
    found = attempt(["evaluate", "--task", "copy-last", "--lengths", "2", "--model", "./model", "--chat"], tmp_path)
    assert found.code == 2
    assert said in found.err


def test_a_tokenizer_that_panics_fails_its_cells_and_not_the_sweep(ground: Ground, tmp_path: Path) -> None:
    tokenizer = json.loads(ground.checkpoint["tokenizer.json"]) | {"pre_tokenizer": _BACKTRACKS}
    write_files(tmp_path / "bad", {**ground.checkpoint, "tokenizer.json": json.dumps(tokenizer).encode()})
    write_files(tmp_path / "good", dict(ground.checkpoint))
    sweep = "models: [./bad, ./good]\ntasks: [copy-last]\nlengths: [40]\nmeasurements: [evaluate]\ndevice: cpu\n"
    (tmp_path / "sweep.yaml").write_text(sweep)
    found = attempt(["sweep", "run", "sweep.yaml", "--out", "results"], tmp_path, within=300)
    assert found.code in (0, 1)
    assert len(list((tmp_path / "results" / "cells").glob("*.parquet"))) >= 1


@pytest.mark.parametrize("kind", ["a pipe", "a link to /dev/zero"])
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("x.txt", ["bounds", "--prompts", "x.txt"]),
        ("x.jsonl", ["bounds", "--prompts", "x.jsonl"]),
        ("x", ["bounds", "--ids", "x"]),
        ("x.txt", ["sweep", "corpus", "--texts", "x.txt"]),
        ("x.parquet", ["sweep", "corpus", "--texts", "x.parquet"]),
        ("x.yaml", ["sweep", "run", "x.yaml", "--out", "results"]),
    ],
)
def test_a_file_whose_reading_would_not_end(
    ground: Ground, tmp_path: Path, file: str, words: list[str], kind: str
) -> None:
    write_files(tmp_path / "files", {file: kind})
    (tmp_path / file).symlink_to(tmp_path / "files" / file)
    found = attempt(words, tmp_path)
    assert found.code == 2
    assert "expected a regular file" in found.err


# --- the law itself sees what breaks it


def test_the_law_sees_a_program_a_connection_and_a_file_elsewhere(tmp_path: Path) -> None:
    import pickle
    import socket
    import subprocess

    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    for work in (
        lambda: os.system("true"),
        lambda: subprocess.run(["true"], check=False),
        lambda: pickle.loads(PICKLE),
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda: outside.write_text("x"),
        lambda: (inside / ".." / "outside").mkdir(),
    ):
        with pytest.raises(LawBroken), watched(inside):
            work()
        assert not outside.exists()
    with watched(inside):
        (inside / "x").write_text("x")
    with pytest.raises(LawBroken), watched(inside), suppress(BaseException):  # as a library might
        os.system("true")


@pytest.mark.parametrize("said", ["a\x1b[31m\n", "Traceback (most recent call last):\n", "a\x07\n", "\u202e\n"])
def test_the_law_sees_what_drives_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str) -> None:
    monkeypatch.setattr("ostools.cli.app", lambda **options: print(said))
    with pytest.raises(AssertionError):
        attempt([], tmp_path)


def test_a_call_that_reached_its_work_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reached(**options: object) -> None:
        raise Reached

    monkeypatch.setattr("ostools.cli.app", reached)
    assert attempt([], tmp_path).reached
