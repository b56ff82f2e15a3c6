"""No code of a model, a template or a sweep file runs, and what would is refused in one line; the
token for the model hub is in no refusal.
"""

import json
import os
import pickle
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.hostile.attempts import attempt, watched


class Marker:
    """What a pickle does that is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


PICKLE = pickle.dumps(Marker())
CODE = "{{ cycler.__init__.__globals__.os.system('true') }}"


def test_the_watch_sees_a_program_and_a_pickle() -> None:
    for work in (lambda: os.system("true"), lambda: pickle.loads(PICKLE)):
        with watched() as events, pytest.raises(PermissionError):
            work()
        assert len(events) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"model.safetensors": None, "pytorch_model.bin": PICKLE},
        {"model.safetensors": PICKLE},
        {"config.json": {"auto_map": {"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"}}},
        {"tokenizer_config.json": {"chat_template": CODE}},
    ],
    ids=["pickled weights", "a pickle by another name", "remote code", "a template"],
)
def test_no_code_of_a_checkpoint_runs(
    tmp_path: Path, changes: dict[str, bytes | dict[str, object] | None]
) -> None:
    directory = write_checkpoint(tmp_path / "tiny", "gemma")
    (directory / "m.py").write_text("import os\nos.system('true')\n")
    for name, change in changes.items():
        file = directory / name
        if isinstance(change, dict):
            file.write_text(json.dumps(json.loads(file.read_text()) | change))
        elif change is None:
            file.unlink()
        else:
            file.write_bytes(change)
    words = ["bounds", "--prompt", "ab", "--chat", "--model", "./tiny", "--variants", "local"]
    call = attempt(words, tmp_path)
    is_template = "tokenizer_config.json" in changes  # it runs in a sandbox, which has no system
    assert (call.code, call.events) == (0 if is_template else 2, [])


def test_no_code_of_a_sweep_file_runs(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("tasks: !!python/object/apply:os.system [true]\n")
    call = attempt(["sweep", "run", "sweep.yaml", "--out", "x"], tmp_path)
    assert (call.code, call.events) == (2, [])


SECRET = "hf_ThisMustBeSeenNowhere"


@pytest.mark.slow
def test_no_refusal_of_the_hub_holds_its_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*given: object, **options: object) -> None:
        raise OSError(f"401 for https://user:{SECRET}@hub with Authorization: Bearer {SECRET}")

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    found = attempt(["sensitivity", "--prompt", "a", "--model", "google/gemma-7b"], tmp_path)
    assert found.code == 2
    assert SECRET not in found.out + found.err
