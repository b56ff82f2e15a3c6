"""What an installed package needs is what its metadata says."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"hooks", "mitigations", "ostools"}


def _imported(file: Path) -> set[str]:
    """The packages that a file imports, at whatever place."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names += [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return {name.partition(".")[0] for name in names}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """pip installs what the metadata names: a package that comes only because another one needs it may be gone tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        each for extra in ("ray", "hosted", "explore", "gguf") for each in project["optional-dependencies"][extra]
    ]
    declared = {_normal(re.split(r"[<>=\[]", each)[0]) for each in project["dependencies"] + extras}
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    imported = set().union(*map(_imported, files)) - PACKAGES - sys.stdlib_module_names
    distributions = packages_distributions()
    needed = {_normal(name) for package in imported for name in distributions[package][:1]}
    assert needed == declared
