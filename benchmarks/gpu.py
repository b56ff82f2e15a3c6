"""What the largest measurements take on a GPU, as shares of the product rate that the same GPU reaches in the same run.

    python -m benchmarks.gpu --out gpu.md
    python -m benchmarks.gpu --device cpu --shape tiny --tokens 12 --longest 8 --out table.csv

A checkpoint of random weights in bfloat16, of gemma-7b's shape unless told otherwise, is written where `--directory` says (17
GB; one that is there is used again), then: the exact and the estimated profile of one prompt, and collapse at 1 to
`--longest` items. It has not been run on a GPU yet: no figures of one are committed.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from benchmarks.shapes import SHAPES, write_shape
from ostools.models import Prompt
from ostools.models.load import resolve_device
from ostools.models.shape import Shape
from ostools.results import Provenance, write_atomically

ENDINGS = (".md", ".csv")


@dataclass(frozen=True)
class Row:
    """One measurement. `share`: of the product rate in its own arithmetic that its operations reached; `peak`: GiB on the GPU,
    the weights among them; None where nothing is counted, and on a CPU."""

    what: str
    seconds: float
    share: float | None
    peak: float | None
    remark: str = ""


@dataclass(frozen=True)
class Bench:
    """A model on a device, and the operations a second that products of large float32 matrices reach there."""

    model: TransformerBridge
    device: torch.device
    single: float

    @classmethod
    def of(cls, model: TransformerBridge, device: torch.device) -> Bench:
        return cls(model, device, _rate(device))

    def rows(self, tokens: int, longest: int) -> list[Row]:
        """Every measurement once, after a short one that is not counted."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(10, int(self.model.cfg.d_vocab), (tokens,), generator=generator)
        prompt = Prompt.from_ids(self.model, ids.tolist())
        ost.sensitivity(
            self.model, Prompt.from_ids(self.model, ids[:2].tolist()), linearisations=("full",), method="estimate"
        )

        def profile(**asked: Any) -> ost.Sensitivity:
            return ost.sensitivity(self.model, prompt, linearisations=("full",), **asked)

        shape = Shape.of(self.model)
        # A row meets every matrix of a block once at every token, in the last block at the last one: a product and a sum each.
        # All else that is computed counts in the time alone.
        blocks = (shape.n_layers - 1) * tokens + 1
        operations = 2.0 * blocks * shape.block_parameters * shape.d_model
        exact = f"exact profile, {tokens} tokens"
        found = [self._row(exact, lambda: profile(method="exact"), operations, self.single)]
        found.append(self._row(f"estimated profile, {tokens} tokens", lambda: profile(method="estimate")))
        lengths = range(1, longest + 1)
        found.append(
            self._row(
                f"collapse, 1 to {longest} items",
                lambda: ost.collapse(self.model, "figure-5a", lengths=lengths, dtypes=("bfloat16",)),
            )
        )
        return found

    def _row(
        self, what: str, run: Callable[[], Any], operations: float | None = None, rate: float | None = None
    ) -> Row:
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start  # results are on the CPU: the device has finished
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30 if is_cuda else None
        share = None if operations is None or rate is None else operations / seconds / rate
        return Row(what, seconds, share, peak, _remark(result))


def _remark(result: Any) -> str:
    """What the run says of itself: passes of an estimate."""
    runs = result.provenance.parameters.get("runs", {})
    said = runs.get("full", {})
    return f"{said['passes']} passes" if "passes" in said else ""


def _rate(device: torch.device, rounds: int = 5) -> float:
    """Operations a second of a product of square float32 matrices: the best of a few."""
    size = 8192 if device.type == "cuda" else 1024
    matrix = torch.rand(size, size, device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds = []
    for _ in range(rounds + 1):  # the first one waits for the library to choose its kernel
        wait()
        start = time.perf_counter()
        _ = matrix @ matrix
        wait()
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)


def heading(bench: Bench, shape: str) -> list[tuple[str, str]]:
    """Where, when and with what the rows were measured."""
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu"
    provenance = Provenance.without_model()
    return [
        ("device", name),
        ("date", datetime.now(UTC).date().isoformat()),
        ("model", f"random weights in bfloat16, shape of {shape}"),
        ("float32 products, 10^12 operations a second", f"{bench.single / 1e12:.3g}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
    ]


def markdown(said: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    lines = [f"{name}: {value}  " for name, value in said]
    lines += [
        "",
        "| measurement | seconds | share of the product rate | peak GiB on the GPU | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.what, f"{row.seconds:.3g}", _cell(row.share), _cell(row.peak), row.remark)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def write(path: Path, said: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Path:
    """The table, as Markdown or CSV (where every line has the heading too), by the ending of `path`."""

    def put(part: Path) -> object:
        if path.suffix == ".md":
            return part.write_text(markdown(said, rows), encoding="utf-8")
        with part.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow([*(field.name for field in fields(Row)), *(name for name, _ in said)])
            lines.writerows([*astuple(row), *(value for _, value in said)] for row in rows)
        return None

    return write_atomically(path, put)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="gemma-7b", choices=list(SHAPES))
    parser.add_argument("--directory", type=Path, help="where the checkpoint is, or is written; else a temporary one")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True, help="the table, .md or .csv")
    asked = parser.parse_args(arguments)
    if asked.out.suffix not in ENDINGS:
        parser.error(f"--out {asked.out}: expected an ending of {' or '.join(ENDINGS)}")
    try:
        said, rows = _measured(asked)
        print(markdown(said, rows))
        write(asked.out, said, rows)
    except ost.InputError as error:
        parser.error(str(error))


def _measured(asked: argparse.Namespace) -> tuple[list[tuple[str, str]], list[Row]]:
    device = resolve_device(asked.device)
    with tempfile.TemporaryDirectory(prefix="ostools-") as folder:
        directory = write_shape(asked.shape, asked.directory or Path(folder) / asked.shape)
        bench = Bench.of(ost.load_model(directory, dtype="bfloat16", device=str(device)), device)
        return heading(bench, asked.shape), bench.rows(asked.tokens, asked.longest)


if __name__ == "__main__":
    main()
