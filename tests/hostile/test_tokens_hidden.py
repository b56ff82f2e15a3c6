"""The token for the model hub is in no refusal."""

from pathlib import Path

import pytest

from tests.hostile.attempts import attempt

pytestmark = pytest.mark.slow

SECRET = "hf_ThisMustBeSeenNowhere"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, SECRET)


def test_no_refusal_of_the_hub_holds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*given: object, **options: object) -> None:
        raise OSError(f"401 for https://user:{SECRET}@hub with Authorization: Bearer {SECRET}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    found = attempt(["sensitivity", "--prompt", "a", "--model", "google/gemma-7b"], tmp_path)
    assert found.code == 2
    assert SECRET not in found.out + found.err
