"""`make mutants`: small errors, planted one at a time; which of them does no test see?

Cosmic Ray plants them: another operator or comparison, another number, `and` for `or`, a condition
turned round, a loop that does not run. Annotations are left alone, and so are decorators. Each
mutant stands in a copy of the working tree, and forks run the tests that call the function, the
quickest first, until one fails (`scripts/mutant_bench.py`).

What was tried is kept in `results.jsonl` of `--out`, so that the same command goes on where it
stopped. A mutant is tried again when its file has changed, and a survivor when any test has.
`tests/mutants.md` says of each survivor why no test can see it, or which law was added.

Cost: the quick tests of the rooms once, to see what each calls; then a second or less for most
mutants, and every test that calls the function for a survivor.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.house import imports, modules
from scripts.mutant_bench import SURVIVED, Bench, digest, preload

ROOT = Path(__file__).parents[1]
_FORECASTS = ("measure/memory.py",)
TABLE = ROOT / "tests" / "mutants.md"
ROOMS: dict[str, tuple[str, ...]] = {
    "ostools/theory": ("tests/theory", "tests/measure"),
    "ostools/measure": ("tests/measure", "tests/oracle", "tests/compositions"),
    "ostools/tasks": ("tests/tasks", "tests/mitigations"),
    "ostools/sweep": ("tests/sweep",),
    "ostools/hooks": ("tests/hooks", "tests/compositions"),
    "ostools/mitigations": ("tests/mitigations",),
}
"""Where errors are planted, and the folders whose tests have to see them."""

LEFT_OUT = ("Decorator", "Variable", "NoOp")
"""Operators of Cosmic Ray by a part of their name: a cache that is gone changes no number, and
variables need to be named.
"""


NO_PROGRAM = "no program"
"""The outcome of what is no Python: it counts nowhere."""


@dataclass(frozen=True)
class Mutant:
    """One planted error: the operator's so-manieth place in a file, whose hash is `source`."""

    path: str
    operator: str
    occurrence: int
    line: int
    source: str

    @property
    def key(self) -> str:
        """Another one where the file is another."""
        return f"{self.path}:{self.operator}:{self.occurrence}:{self.source}"

    def planted(self, text: str) -> str:
        """The file's text with the error in it."""
        mutating, plugins = _cosmic_ray("mutating"), _cosmic_ray("plugins")
        return mutating.mutate_code(text, plugins.get_operator(self.operator)(), self.occurrence)

    def is_program(self) -> bool:
        """Cosmic Ray takes the star before arguments that have to be named for a product."""
        try:
            ast.parse(self.planted((ROOT / self.path).read_text("utf-8")))
        except SyntaxError:
            return False
        return True

    def lines(self) -> tuple[str, str]:
        """The first line that differs, before and after."""
        text = (ROOT / self.path).read_text("utf-8")
        before, after = text.splitlines(), self.planted(text).splitlines()
        at = next(
            at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other
        )
        return before[at].strip(), after[at].strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try a sample, or all; print how many were caught, and every survivor that the table does not
    know.
    """
    asked = _parser().parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    mutants = [
        mutant for room in asked.rooms for path in files_of(room) for mutant in mutants_of(path)
    ]
    if asked.sample is not None:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    record = asked.out / "results.jsonl"
    tests = digest(ROOT, sorted((ROOT / "tests").rglob("*.py")))
    known = outcomes(record, tests)
    left = [mutant for mutant in mutants if mutant.key not in known]
    print(f"{len(mutants)} mutants, {len(left)} of them to try", flush=True)

    def tell(mutant: Mutant, outcome: str) -> None:
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": mutant.key, "outcome": outcome, "tests": tests}) + "\n")
        print(f"{outcome:>12}  {mutant.path}:{mutant.line}  {mutant.lines()[1]}", flush=True)

    programs = list[Mutant]()
    for mutant in left:
        if mutant.is_program():
            programs.append(mutant)
        else:
            tell(mutant, NO_PROGRAM)
    if programs:
        preload()
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            bench = Bench(copied_tree(Path(folder)), asked.out / "called.jsonl")
            bench.collected(
                sorted({folder for room in asked.rooms for folder in ROOMS[room]}), programs, tell
            )
            known = outcomes(record, tests)
            for mutant in programs:
                if mutant.key not in known:
                    tell(mutant, bench.alone(mutant, tests_of(mutant.path)))
    return _report(mutants, outcomes(record, tests))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants", description="Plant errors; see which no test sees."
    )
    parser.add_argument(
        "--rooms",
        nargs="+",
        choices=ROOMS,
        default=list(ROOMS),
        metavar="ROOM",
        help=", ".join(ROOMS),
    )
    parser.add_argument(
        "--sample", type=int, default=None, help="so many mutants, drawn at random; all by default"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "artefacts" / "mutants",
        help="where the outcomes are kept",
    )
    return parser


def files_of(room: str) -> list[str]:
    """The Python files of a room, from the root on; without what only forecasts memory: a size and
    no number.
    """
    found = (
        path for path in (ROOT / room).rglob("*.py") if not path.as_posix().endswith(_FORECASTS)
    )
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _cosmic_ray(part: str) -> Any:
    """A module of Cosmic Ray, which only `make mutants` installs."""
    return importlib.import_module(f"cosmic_ray.{part}")


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every error that can be planted in a file."""
    trees, plugins = _cosmic_ray("ast"), _cosmic_ray("plugins")
    text = (ROOT / path).read_text("utf-8")
    source, annotated = hashlib.sha256(text.encode()).hexdigest()[:12], annotated_places(text)
    nodes = list(trees.ast_nodes(trees.get_ast(text)))
    for name in plugins.operator_names():
        if any(part in name for part in LEFT_OUT):
            continue
        operator = plugins.get_operator(name)()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if not any(first <= start < last for first, last in annotated):
                yield Mutant(path, name, occurrence, start[0], source)


def annotated_places(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """From where to where annotations stand, in lines and columns: they are for readers and
    checkers of types.
    """
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in found
        if node
    ]


@cache
def reach() -> dict[str, dict[str, int]]:
    """Of each test file the modules that it reaches, each with the number of imports on the way."""
    edges = imports("ostools", "tests")
    return {
        str(path): _distances(name, edges)
        for name, path in modules("tests").items()
        if path.name.startswith("test_")
    }


def _distances(start: str, edges: Any) -> dict[str, int]:
    """Breadth first; the module of a package stands for what is above it too, since that is
    imported first.
    """
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        above = {here.rsplit(".", depth)[0] for depth in range(1, here.count(".") + 1)}
        for module in (edges.get(here, set()) | above) & set(edges):
            if module not in found:
                found[module] = found[here] + 1
                queue.append(module)
    return found


def tests_of(path: str) -> list[str]:
    """The test files that can see an error in this file: first the one of its name, then the
    nearest.
    """
    module = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    (folders,) = (folders for room, folders in ROOMS.items() if path.startswith(f"{room}/"))
    able = [
        (Path(test).stem != f"test_{module.rpartition('.')[2]}", seen[module], test)
        for test, seen in reach().items()
        if module in seen and any(test.startswith(f"{folder}/") for folder in folders)
    ]
    return [test for *_, test in sorted(able)]


def copied_tree(folder: Path) -> Path:
    """The working tree, without what git ignores; what tests look for beside it stands beside the
    copy.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    tree = folder / "tree"
    for name in listed.stdout.decode().split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def outcomes(record: Path, tests: str) -> dict[str, str]:
    """What was found, by the mutants' keys; of survivors what these tests found."""
    if not record.is_file():
        return {}
    lines = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    return {
        line["key"]: line["outcome"]
        for line in lines
        if line["outcome"] != SURVIVED or line["tests"] == tests
    }


def triaged(table: Path = TABLE) -> dict[tuple[str, str, str], str]:
    """The table of survivors: (file, line before, line after) -> why no test can see it, or the law
    that now does.
    """
    if not table.is_file():
        return {}
    rows = [line for line in table.read_text("utf-8").splitlines() if line.startswith("| `")]
    cells = [
        [cell.strip().replace(r"\|", "|") for cell in row.strip("| ").split(" | ")] for row in rows
    ]
    return {
        (path.strip("`"), was.strip("`"), became.strip("`")): why
        for path, was, became, why in cells
    }


def _report(mutants: Sequence[Mutant], known: dict[str, str]) -> int:
    """The share that was caught in each room, of those that can be; then every survivor without a
    row in the table.
    """
    table, open_ones, equivalent = triaged(), [], Counter[str]()
    tried, caught = Counter[str](), Counter[str]()
    for mutant in mutants:
        (room,) = (room for room in ROOMS if mutant.path.startswith(f"{room}/"))
        if known[mutant.key] == NO_PROGRAM:
            continue
        tried[room] += 1
        if known[mutant.key] != SURVIVED:
            caught[room] += 1
        elif why := table.get((mutant.path, *mutant.lines())):
            equivalent[room] += why.startswith("equivalent")
        else:
            open_ones.append(mutant)
    for room, total in tried.items():
        able = total - equivalent[room]
        share = 100 * caught[room] / able if able else 100.0
        print(
            f"{room}: {caught[room]} of {able} caught ({share:.0f}%), {equivalent[room]} equivalent"
        )
    for mutant in open_ones:
        was, became = mutant.lines()
        print(f"survived: {mutant.path}:{mutant.line} ({mutant.operator})\n  - {was}\n  + {became}")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
