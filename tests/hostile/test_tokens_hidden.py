"""The token for the model hub is in no output, no file, no provenance and no error, whatever is
asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from huggingface_hub import errors

from tests.checkpoints import write_checkpoint
from tests.hostile.attempts import attempt

pytestmark = pytest.mark.slow

SECRET = "hf_ThisMustBeSeenNowhere"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, SECRET)


def test_nothing_that_is_written_holds_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny", "gemma")
    sweep = "models: ./tiny\ntasks: copy-last\nlengths: [3]\nmeasurements: bounds\ndevice: cpu\n"
    (tmp_path / "sweep.yaml").write_text(sweep)
    prompt = ["bounds", "--prompt", "a b", "--model", "tiny"]
    calls = [
        ["doctor"],
        ["doctor", "--json"],
        ["list", "models"],
        [*prompt, "--json"],
        *([*prompt, "--out", f"x.{ending}"] for ending in ("parquet", "csv", "json", "html")),
        ["sweep", "run", "sweep.yaml", "--out", "results"],
        ["sweep", "results", "results", "--json"],
        ["sweep", "results", "results", "--out", "table.parquet"],
        ["sensitivity", "--prompt", "a", "--model", "./nowhere"],
        ["sensitivity", "--prompt", "a", "--model", "no-one/nothing"],
    ]
    for call in calls:
        said = attempt(call, tmp_path)
        assert SECRET not in said.out + said.err, call
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix == ".parquet"]) >= 3
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":  # its pages are packed
            table = pd.read_parquet(path)
            assert SECRET not in table.to_csv() + str(table.attrs), path


@pytest.mark.parametrize("kind", [errors.GatedRepoError, OSError])
def test_no_refusal_of_the_hub_holds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Any
) -> None:
    def refused(*given: object, **options: object) -> None:
        said = f"401 for https://user:{SECRET}@hub with Authorization: Bearer {SECRET}"
        try:
            found = kind(said)
        except TypeError:  # the hub's errors are of a response
            import httpx

            found = kind(
                said, response=httpx.Response(401, request=httpx.Request("GET", "https://hub"))
            )
        raise found

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    found = attempt(["sensitivity", "--prompt", "a", "--model", "google/gemma-7b"], tmp_path)
    assert found.code == 2
    assert SECRET not in found.out + found.err
