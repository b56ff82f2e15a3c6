"""A few cases against each target, always the same; `make stress` makes ten thousand, each time
others.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hostile.attempts import Attempt, LawBroken, attempt, watched
from tests.hostile.spoiling import PICKLE, write_files
from tests.hostile.targets import TARGETS, Ground, Target, attack

pytestmark = pytest.mark.slow

CASES = 16


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_cases(ground: Ground, target: Target) -> None:
    attack(target, ground, CASES)


def loaded(ground: Ground, below: Path, changes: Mapping[str, bytes | str]) -> Attempt:
    """The call on the checkpoint with these files changed."""
    write_files(below / "model", {**ground.checkpoint, **changes})
    return attempt(["bounds", "--prompt", "ab", "--model", "./model", "--variants", "local"], below)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 10**9}, "weights"),
        ({"num_hidden_layers": 10**4}, "expected a weight for each of 10000 layers"),
        ({"vocab_size": 10**12}, "tokenizer"),
        ({"eos_token_id": -1, "max_position_embeddings": 10**12}, None),
    ],
)
def test_a_configuration_of_a_giant_asks_for_no_memory(
    ground: Ground, tmp_path: Path, changes: dict[str, int], said: str | None
) -> None:
    config = json.loads(ground.checkpoint["config.json"]) | changes
    found = loaded(ground, tmp_path, {"config.json": json.dumps(config).encode()})
    assert found.code == (0 if said is None else 2)
    assert (said or "") in found.err


@pytest.mark.parametrize(
    ("file", "words", "kind"),
    [
        ("x.txt", "bounds --prompts x.txt", "a pipe"),
        ("x.jsonl", "bounds --prompts x.jsonl", "a link to /dev/zero"),
        ("x.parquet", "sweep corpus --texts x.parquet --lengths 8", "a link to /dev/zero"),
        ("x.yaml", "sweep run x.yaml --out results", "a pipe"),
    ],
)
def test_a_file_whose_reading_would_not_end(
    ground: Ground, tmp_path: Path, file: str, words: str, kind: str
) -> None:
    write_files(tmp_path / "files", {file: kind})
    (tmp_path / file).symlink_to(tmp_path / "files" / file)
    found = attempt(words.split(), tmp_path)
    assert found.code == 2
    assert "expected a regular file" in found.err


def test_a_prompt_that_a_mitigation_multiplies_is_not_made_for_a_forecast(
    ground: Ground, tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(ground.directory / "tiny")
    sweep = "models: [./tiny]\ntasks: [copy-last]\nlengths: [3]\nmeasurements: [evaluate]\ndevice: cpu\n"
    (tmp_path / "sweep.yaml").write_text(f"{sweep}mitigations: ['repeat-prompt:times=5000000']\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = attempt(["sweep", "run", "sweep.yaml", "--out", "results", "--dry-run"], tmp_path)
    assert found.code == 0
    assert "unknown" in found.out
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # of KiB


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
    with (
        pytest.raises(LawBroken, match="no answer within 1 s"),
        watched(inside, within=1),
        suppress(BaseException),
    ):
        time.sleep(5)


@pytest.mark.parametrize(
    "said", ["a\x1b[31m\n", "Traceback (most recent call last):\n", "\u202e\n"]
)
def test_the_law_sees_what_drives_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    monkeypatch.setattr("ostools.cli.app", lambda **options: print(said))
    with pytest.raises(AssertionError):
        attempt([], tmp_path)
