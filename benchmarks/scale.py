"""What runs on which machine, at the size that people use: forecasts, and on this machine
measurements beside them.

    python -m benchmarks.scale [DIR] [--shape gemma-7b]

Writes checkpoints of random weights into DIR (23 GB for all three, which stay there;
`ostools-scale` in the system's temporary directory if none is named), then runs every command in a
process of its own that may hold 24 GiB of memory, with the forecast that the command itself
announces. What is measured already is kept in DIR/scale.json; a row that was cut off is measured
again. Both tables go to docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.commands import Ran, ran
from benchmarks.shapes import SHAPES, write_shape
from ostools import tasks
from ostools.ground.errors import InsufficientMemoryError
from ostools.measure.jacobian.linearisation_run import memory_plan
from ostools.measure.memory import batch_bytes, blocks_bytes, in_full, logits_bytes
from ostools.measure.unloaded import LIBRARIES, LongestPrompt, Unloaded
from ostools.models.files.sources import locate
from ostools.models.shape import Shape

LIMIT = 24 << 30
MACHINES = (8, 24, 48, 80)
"""GB of memory."""
SCALE = ("gemma-3-270m", "gemma-2b", "gemma-7b")
PROMPT = "The capital of France is"
COMMANDS = {
    "collapse, figure-5a, 1:64, bfloat16": (
        "collapse --task figure-5a --lengths 1:64 --dtype bfloat16 --load-dtype bfloat16"
    ),
    "sensitivity, estimate": f"sensitivity --method estimate --load-dtype bfloat16 --prompt '{PROMPT}'",
    "evaluate, a greedy answer": "evaluate --task copy-last --lengths 4 --max-new-tokens 8 --load-dtype bfloat16",
}
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"

Work = Callable[[Shape, int], int]
"""Bytes that something takes of a shape, within so many beside its weights."""


@dataclass(frozen=True)
class Row:
    """One command on one shape, whose weights take so many bytes."""

    shape: str
    command: str
    weights: int
    ran: Ran


def works() -> dict[str, Work]:
    """What people ask for, in the order of the page."""
    form, answer = tasks.task("figure-5a", tasks.CollapseTask), LongestPrompt(200, answer=8)
    pos = Unloaded(locate(None, None), torch.bfloat16, "cpu").longest(form, range(1, 513)).tokens

    def sensitivity(pos: int, method: str) -> Work:
        return lambda shape, limit: (
            memory_plan(in_full(shape), pos, method=method, max_memory=limit).peak
        )

    return {
        "collapse, figure-5a, 1 to 512 digits": lambda shape, limit: logits_bytes(
            shape, pos, 512, 1
        ),
        "a greedy answer to 200 tokens": lambda shape, limit: batch_bytes(
            shape, 1, answer, new_tokens=64
        ),
        "`local`, 200 tokens": lambda shape, limit: blocks_bytes(shape, 200, ["local"]),
        "sensitivity estimated, 200 tokens": sensitivity(200, "estimate"),
        "sensitivity exact, 200 tokens": sensitivity(200, "exact"),
        "sensitivity estimated, 8,192 tokens": sensitivity(8192, "estimate"),
    }


def forecasts() -> str:
    """As Markdown: the memory that each work takes beside the weights in bfloat16, on the smallest
    machine that holds both.
    """
    names = [f"{name}, {2 * _shape(name).parameters / 1e9:.1f} GB" for name in SCALE]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(SCALE)}"]
    for name, work in works().items():
        lines.append(
            f"| {name} | {' | '.join(_smallest(_shape(shape), work) for shape in SCALE)} |"
        )
    return "\n".join(lines)


def _shape(name: str) -> Shape:
    return Shape.of_config(SHAPES[name], torch.bfloat16, "cpu")


def _smallest(shape: Shape, work: Work) -> str:
    for machine in MACHINES:
        left = int(machine * 1e9) - LIBRARIES - 2 * shape.parameters
        if left <= 0:
            continue
        try:
            found = work(shape, left)
        except InsufficientMemoryError:
            continue
        if found <= left:
            return f"{found / 1e9:.1f}: **{machine} GB**"
    return "more than 80 GB"


def measured(name: str, command: str, directory: Path) -> Row:
    """In a process of its own."""
    weights = sum(shard.stat().st_size for shard in directory.glob("*.safetensors"))
    return Row(name, command, weights, ran(f"{COMMANDS[command]} --model {directory}", LIMIT))


def measurements(rows: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| shape | command | weights, GB | peak, GB | forecast, GB | time, s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        found = row.ran
        sizes = [f"{size / 1e9:.2f}" for size in (row.weights, found.peak, found.forecast_bytes)]
        times = [f"{found.seconds:.0f}"]
        refused = [sizes[0], f"refused: {found.refused}", "", ""]
        lines.append(
            f"| {' | '.join([row.shape, row.command, *(refused if found.refused else sizes + times)])} |"
        )
    where = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return "\n".join([*lines, "", f"{where}; the process may hold {LIMIT >> 30} GiB."])


def write_page(page: Path = PAGE, **tables: str) -> None:
    """Each table between its marks; the rest of the page stays as it is."""
    text = page.read_text(encoding="utf-8")
    for name, made in tables.items():
        start, end = f"<!-- {name}: start -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{made}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what runs at the size that people use.")
    parser.add_argument(
        "directory", nargs="?", type=Path, default=Path(tempfile.gettempdir()) / "ostools-scale"
    )
    parser.add_argument("--shape", choices=SCALE, action="append")
    asked = parser.parse_args()
    write_page(forecast=forecasts())
    kept = asked.directory / "scale.json"
    rows = (
        [Row(**{**row, "ran": Ran(**row["ran"])}) for row in json.loads(kept.read_text())]
        if kept.exists()
        else []
    )
    for name in asked.shape or SCALE:
        directory = write_shape(name, asked.directory / name)
        for command in COMMANDS:
            if any((row.shape, row.command) == (name, command) for row in rows):
                continue
            rows.append(measured(name, command, directory))
            kept.write_text(json.dumps([asdict(row) for row in rows], indent=1))
            print(measurements(rows[-1:]).splitlines()[2], flush=True)
    ordered = sorted(
        rows, key=lambda row: (SCALE.index(row.shape), list(COMMANDS).index(row.command))
    )
    write_page(measured=measurements(ordered))


if __name__ == "__main__":
    main()
