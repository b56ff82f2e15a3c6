"""What an installed package needs is what its metadata says."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp

from ostools.models.files.gguf_cache import PACKAGED_MODELS

ROOT = Path(__file__).parents[1]
PACKAGES = {"hooks", "mitigations", "ostools"}
BY_NAME = r'import_module\(\s*"([\w.]+)"'


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """pip installs what the metadata names: a package that comes only because another one needs it may be gone tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        each for extra in ("ray", "hosted", "explore", "gguf") for each in project["optional-dependencies"][extra]
    ]
    declared = {_normal(re.split(r"[<>=\[]", each)[0]) for each in project["dependencies"] + extras}
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    texts = (file.read_text("utf-8") for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    by_name = {name for text in texts for name in re.findall(BY_NAME, text)}
    imported = {name.partition(".")[0] for name in graph.modules | by_name} - PACKAGES - sys.stdlib_module_names
    distributions = packages_distributions()
    needed = {_normal(name) for package in imported for name in distributions[package][:1]}
    assert needed == declared


def test_every_piece_of_a_packaged_model_is_pinned_with_its_hash_where_its_command_says() -> None:
    files = {"make real": "requirements-real.txt", "make real-large": "requirements-real-large.txt"}
    for model in PACKAGED_MODELS.values():
        text = (ROOT / files[model.make]).read_text(encoding="utf-8")
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE))
        assert {_normal(package) for package, _ in model.parts} <= set(pinned)
        assert {f"=={pinned[_normal(package)]}" for package, _ in model.parts} <= {model.install[-7:]}
    assert "qwen" not in (ROOT / "requirements-real.txt").read_text("utf-8").lower()
    assert len(PACKAGED_MODELS["qwen2.5-coder-1.5b-instruct"].parts) == 22
