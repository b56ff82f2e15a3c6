"""`make versions`: do the lowest and the newest versions that pyproject.toml allows give the same
numbers?

Two virtual environments stand in `--folder`. One has the lower bound of every range, the other what
pip chooses today. In each the embedded model is measured with the same arguments, and every table
is compared. Columns, texts, whole numbers and cells that hold several numbers are equal. Other
numbers agree to 1e-5 of the larger one. Times are left out. The command line has to print its help
and to draw a chart in both. pip takes its indexes from its own configuration.

The environments are kept: pip brings the newest one up to date at the next run. Exit code: 0 all
agree; 1 something differs, or cannot be installed or measured; 2 bad use, which a range without a
lower bound is too.

What the pinned packages need in their turn is the newest in both.

Cost: 2 GB of disk for each environment, and four minutes where both are in place.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
WITHIN = 1e-5
"""How far two numbers may be apart, as a fraction of the larger one."""
TIMES = ("seconds",)
"""Columns that no version promises."""
PROMPT = "the one of the ten, the inn and the other one"
LOWEST, NEWEST = "lowest", "newest"


def main(arguments: Sequence[str] | None = None) -> int:
    """Install both, measure in both, print what differs."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.versions", description="Lowest against newest versions."
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".versions", help="where both environments are kept"
    )
    parser.add_argument(
        "--measure", type=Path, default=None, help="only measure, here, and leave the tables there"
    )
    asked = parser.parse_args(arguments)
    if asked.measure is not None:
        save(asked.measure, measured())
        return 0
    if asked.folder.exists() and not asked.folder.is_dir():
        parser.error(f"expected a folder for the environments, found a file: {asked.folder}")
    ranges = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    try:
        wanted = {LOWEST: lowest(ranges), NEWEST: ranges}
    except ValueError as refused:
        parser.error(str(refused))
    found = {name: measured_in(asked.folder / name, each) for name, each in wanted.items()}
    differences = compare(found[LOWEST], found[NEWEST])
    print(*differences, f"{len(found[LOWEST])} tables, {len(differences)} differ", sep="\n")
    return 1 if differences else 0


def lowest(ranges: Sequence[str]) -> list[str]:
    """Each range as a pin of its lower bound: "torch>=2.13,<2.14" is "torch==2.13".

    Raises `ValueError` for a range that has none, since its lowest version is any that was ever
    published.
    """
    pins, open_ones = [], []
    for text in ranges:
        wanted = Requirement(text)
        floors = [each.version for each in wanted.specifier if each.operator == ">="]
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        if len(floors) == 1:
            pins.append(f"{wanted.name}{extras}=={floors[0]}")
        else:
            open_ones.append(text)
    if open_ones:
        raise ValueError(
            f"expected one lower bound (>=) in every range, found {', '.join(open_ones)}: write one there"
        )
    return pins


def measured_in(place: Path, wanted: Sequence[str]) -> dict[str, Any]:
    """The tables of an environment with the packages `wanted`, made where it is missing;
    `SystemExit` where a step fails.
    """
    python, tables = place / "bin" / "python", place / "tables"
    if not python.exists():
        _run("make an environment", sys.executable, "-m", "venv", str(place))
    quiet = ("-m", "pip", "install", "--disable-pip-version-check", "-q")
    print(f"{place.name}: installing", flush=True)
    _run("install", str(python), *quiet, "--upgrade", "--upgrade-strategy", "eager", *wanted)
    _run("install ostools", str(python), *quiet, "--no-deps", "--editable", str(ROOT))
    listed = _run(
        "list",
        str(python),
        "-m",
        "pip",
        "list",
        "--disable-pip-version-check",
        "--format",
        "freeze",
    )
    versions = {normal(line.partition("==")[0]): line for line in listed.split()}
    print(
        f"{place.name}:", *(versions[normal(Requirement(text).name)] for text in wanted), flush=True
    )
    for old in tables.glob("*.parquet"):
        old.unlink()
    _run("measure", str(python), "-m", "scripts.versions", "--measure", str(tables))
    command, chart = str(python.with_name("ostools")), str(place / "sensitivity.png")
    _run("print the help", command, "sensitivity", "--help")
    _run("draw a chart", command, "sensitivity", "--prompt", PROMPT, "--out", chart)
    return {path.stem: pd.read_parquet(path) for path in sorted(tables.glob("*.parquet"))}


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(what: str, *command: str) -> str:
    """What a command prints; where it fails, its last lines and exit code 1."""
    single = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=single, capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SystemExit(
            f"could not {what} with {command[0]} (exit code {done.returncode}):\n{told}"
        )
    return done.stdout


def measured() -> dict[str, Any]:
    """The tables of the embedded model, by name; in them what torch, scipy and scikit-learn
    compute.
    """
    import ostools as ost
    from ostools.measure.bounds.variants import VARIANTS

    model = ost.load_model()
    sensitivity = ost.sensitivity(model, PROMPT, layers="all")
    profile = ost.profile(ost.sensitivity(model, "; ".join([PROMPT] * 4)))
    return {
        "sensitivity": sensitivity.frame,
        "bounds": ost.bounds(model, PROMPT, variants=[*VARIANTS, "windowed(2)"]).frame,
        "profile": profile.frame,
        "profile-summary": profile.summary,
        "profile-shapes": profile.shapes,
        "collapse": ost.collapse(model, ost.tasks.figure_5a(), lengths=range(1, 65)).frame,
        "evaluate": ost.evaluate(model, "count-ones", lengths=range(1, 25)).frame,
        "decodable": ost.probe(
            model, "count-ones-bernoulli", lengths=range(2, 9), random_weights=False
        ).frame,
    }


def save(folder: Path, tables: Mapping[str, Any]) -> None:
    """One Parquet file a table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs of tables by name, a line a table: `one` with the lowest versions, `other` with
    the newest."""
    found = [f"{name}: found once" for name in sorted({*one} ^ {*other})]
    for name in sorted({*one} & {*other}):
        here, there = (
            tables[name].drop(columns=list(TIMES), errors="ignore") for tables in (one, other)
        )
        floats = here.select_dtypes("float").columns
        same: Any = pd.testing.assert_frame_equal
        try:
            pd.testing.assert_index_equal(here.columns, there.columns, obj=name)
            same(here[floats], there[floats], rtol=WITHIN, atol=0.0, obj=name)
            rest = (table.drop(columns=floats) for table in (here, there))
            same(*rest, check_dtype=False, rtol=0.0, atol=0.0, obj=name)
        except AssertionError as difference:
            found.append(" ".join(str(difference).split()))
    return found


if __name__ == "__main__":
    sys.exit(main())
