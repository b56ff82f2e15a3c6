"""`make versions`: the same numbers with the oldest and the newest libraries that pyproject.toml allows.

Two environments of their own are made: in one stands each library that has a lower bound at that bound, in the other at its
newest allowed version. What a report measures of the embedded model is then measured in both, and in the environment that runs
this, and every number is compared with this environment's: within `WITHIN` of the largest in its column.

Cost: two environments of some 2 GB each, and minutes to install and to measure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
WITHIN = 1e-5
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps."
COMMANDS: dict[str, tuple[str, ...]] = {
    "sensitivity": ("sensitivity", "--prompt", PROMPT),
    "path-sum": (
        "path-sum",
        "--prompt",
        PROMPT,
        "--variant",
        "local",
        "--variant",
        "edge",
        "--variant",
        "second-moment",
    ),
    "attention": ("attention", "--prompt", PROMPT),
    "spectra": ("spectra", "--prompt", PROMPT),
    "contributions": ("contributions", "--prompt", PROMPT),
    "collapse": ("collapse", "--task", "figure-5a", "--lengths", "1:32", "--dtype", "float32"),
    "behaviour": ("behaviour", "--task", "count-ones", "--lengths", "2:6"),
}
"""What the sections of a report measure, each as a table."""

MEASURE = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environments, measure in each, and print every number that is too far off."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.versions", description="The same numbers with other libraries."
    )
    parser.add_argument("--only", choices=("lowest", "newest"), default=None, help="one of the two; else both")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        here = measured(Path(sys.executable), Path(folder) / "here")
        far = []
        for which in ("lowest", "newest") if asked.only is None else (asked.only,):
            python = made(Path(folder) / which, list(requirements(which)))
            found = list(differences(here, measured(python, Path(folder) / f"{which}-tables")))
            far += [f"{which}: {words}" for words in found]
            print(f"{which}: {len(COMMANDS)} tables, {len(found)} columns beyond {WITHIN:g}", flush=True)
    print("\n".join(far))
    return 1 if far else 0


def requirements(which: str) -> Iterator[str]:
    """The package's own requirements: with a lower bound at that bound ("lowest"), or as they are ("newest")."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in project["dependencies"]:
        wanted = Requirement(text)
        lower = [part.version for part in wanted.specifier if part.operator == ">="]
        yield f"{wanted.name}=={lower[0]}" if which == "lowest" and lower else text


def made(folder: Path, wanted: Sequence[str]) -> Path:
    """A new environment with these libraries and with this package; its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    subprocess.run([*install, *wanted, "hatchling>=1.27", "editables"], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    return python


def measured(python: Path, folder: Path) -> dict[str, Any]:
    """The tables of all commands by this Python, in processes of one thread."""
    import pandas as pd

    folder.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for name, command in COMMANDS.items():
        asked = [*command, "--out", str(folder / f"{name}.csv")]
        subprocess.run([str(python), "-c", MEASURE, *asked], env=environment, check=True, stdout=subprocess.DEVNULL)
    return {name: pd.read_csv(folder / f"{name}.csv") for name in COMMANDS}


def differences(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """Of each column that differs: its table, its name, and by how much."""
    import numpy as np
    import pandas as pd

    for name, table in here.items():
        other = there[name]
        if list(table.columns) != list(other.columns) or len(table) != len(other):
            yield f"{name}: another shape or other columns"
            continue
        for column in table.columns:
            one, two = table[column], other[column]
            if not pd.api.types.is_float_dtype(one) or not pd.api.types.is_float_dtype(two):
                if not one.equals(two):
                    yield f"{name}, {column}: other values"
                continue
            a, b = one.to_numpy(), two.to_numpy()
            size = np.nanmax(np.abs(a), initial=0.0)
            if (np.isnan(a) != np.isnan(b)).any() or np.nanmax(np.abs(a - b), initial=0.0) > WITHIN * size:
                yield f"{name}, {column}: {np.nanmax(np.abs(a - b), initial=0.0):.3g}, where the largest is {size:.3g}"


if __name__ == "__main__":
    sys.exit(main())
