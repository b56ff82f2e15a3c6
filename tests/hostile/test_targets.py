"""A few cases against each target, always the same; `make stress` makes ten thousand, each time others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
    return attempt(["path-sum", "--prompt", "ab", "--model", "./model", "--variant", "local"], below)


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
        ({"num_hidden_layers": 10**9}, "expected a weight for each of 1000000000 layers"),
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
