"""The token for the model hub is in no output, no file, no provenance and no error, whatever is
asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors

from tests.hostile.attempts import attempt

pytestmark = pytest.mark.slow

SECRET = "hf_ThisMustBeSeenNowhere"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, SECRET)


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
