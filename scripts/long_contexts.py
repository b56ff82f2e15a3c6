"""docs/findings/long-contexts.md: sensitivity and collapse of two real models over thousands of
tokens.

    python -m scripts.long_contexts TEXT [--models gemma-3-270m] [--what collapse] [--page-only]

TEXT is a file of plain text, such as tinyshakespeare. It is cut into equal parts, the texts of a
sweep, and one window is drawn of each. Every window is a cell, stored in artefacts/long-contexts as
it is measured: a run that was cut off goes on where it stopped. Collapse needs no
text: a pair of prompts every `STEP` digits, up to the same number of tokens. Each model runs in a
process of its own, whose peak of memory is noted. The pages, docs/scale.md too, say what is
measured so far; a part of which nothing is stored here stays as it is. Some two hours on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import ostools as ost
from benchmarks.scale import write_page as write_tables
from ostools.reporting.forms import curve, log_rows
from ostools.reporting.style import axes, draw
from ostools.reporting.style.notebook import picture_of
from ostools.results import write_atomically
from ostools.sweep.reading import AskedCell, read
from ostools.theory.profiles import TestedValue, ends_over_texts, u_shape
from ostools.theory.statistics.intervals import FEWEST

LENGTHS = {"smollm2-135m-instruct": 2048, "gemma-3-270m": 4096}
"""Tokens of a window."""
PARTS = 5
ORDER = (2, 4, 3, 0, 1)
"""Of the parts; the sketch of the k-th has seed k."""
STEP = 32
"""Digits between two lengths of a collapse."""
QUESTION = 16
"""More tokens than the prompt of `figure-5a` has beside its digits."""
WHAT = ("sensitivity", "collapse")
ROOT = Path(__file__).parents[1]
STORE = ROOT / "artefacts" / "long-contexts"
PAGE = ROOT / "docs" / "findings" / "long-contexts.md"
PICTURE = PAGE.with_suffix(".png")
BINS = 48
"""Of position, in the picture."""


def parts(text: str) -> list[str]:
    """The text in `PARTS` pieces of equal length."""
    size = len(text) // PARTS
    return [text[number * size : (number + 1) * size] for number in range(PARTS)]


def note(target: Path, value: float) -> None:
    write_atomically(target, lambda part: part.write_text(json.dumps(value)))


def peak() -> int:
    """The most bytes that this process held so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def measure_sensitivity(name: str, text: Path) -> None:
    """Measure the windows of one model that are not stored yet, in this process; note its peak
    after every window.
    """
    folder = STORE / name / "sensitivity"
    folder.parent.mkdir(parents=True, exist_ok=True)

    def note_peak(done: int, total: int) -> None:
        print(f"{name}: {done} of {total}, peak {peak() / 1e9:.2f} GB", flush=True)
        note(folder.with_name("sensitivity-peak.json"), peak())

    pieces = parts(text.read_text(encoding="utf-8"))
    order = [number for number in ORDER if number < len(pieces)]
    sweep = ost.sweep.sweep_of(
        {
            "models": name,
            "texts": [{"id": number, "text": pieces[number]} for number in order],
            "lengths": LENGTHS[name],
            "measurements": {"name": "sensitivity", "linearisations": "full", "method": "sketch"},
        }
    )
    for failed in ost.sweep.run(sweep, folder, progress=note_peak).failed:
        raise SystemExit(failed)


def measure_collapse(name: str, text: Path) -> None:
    """Measure one model's pairs of digits in bfloat16, in this process; note its seconds on a core
    and its peak.
    """
    folder = STORE / name
    folder.mkdir(parents=True, exist_ok=True)
    model, start = ost.load_model(name, dtype="float32"), time.process_time()
    lengths = range(STEP, LENGTHS[name] - QUESTION, STEP)
    result = ost.collapse(model, "figure-5a", lengths=lengths, dtypes=["bfloat16"])
    note(folder / "collapse-seconds.json", time.process_time() - start)
    note(folder / "collapse-peak.json", peak())
    result.save(folder / "collapse.parquet")


def measured_windows(name: str) -> Iterator[tuple[AskedCell, pd.DataFrame]]:
    """Cells of one model's sensitivity that are measured, each with its rows; not all need be
    there.
    """
    folder = STORE / name / "sensitivity"
    if not folder.is_dir():
        return
    reading = read(folder)
    cells = [cell for cell in reading.cells if cell.state == "measured"]
    rows: Any = reading.rows("sensitivity")
    windows = [part for _, part in rows.groupby("text", sort=False)] if len(cells) else []
    for cell, part in zip(cells, windows, strict=True):
        yield cell, part.sort_values("position")


def source_of(cell: AskedCell) -> Mapping[str, Any]:
    """The provenance of a measured cell."""
    assert cell.source is not None
    return cell.source


def between(part: pd.DataFrame) -> np.ndarray:
    """log10 of the norms, without the first and the last token."""
    return np.log10(part["frobenius_norm"].to_numpy(dtype=float))[1:-1]


def words(tested: TestedValue) -> str:
    return f"{tested.value:+.2f} [{tested.low:+.2f}, {tested.high:+.2f}]"


def sensitivity_table(names: Sequence[str]) -> str:
    """A row a window, and over the windows of a model where there are three."""
    columns = ["model", "tokens", "window from token", "first third − middle, decades"]
    columns += ["last third − middle, decades", "shape", "first token / median"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name in names:
        windows = list(measured_windows(name))
        for cell, part in windows:
            values, shape = part["frobenius_norm"].to_numpy(dtype=float), u_shape(between(part))
            row = [source_of(cell)["model"]["title"] or name, f"{len(part):,}"]
            row += [f"{int(part['start'].iloc[0]):,} of part {int(part['text'].iloc[0]) + 1}"]
            row += [words(shape.start), words(shape.end), shape.verdict]
            row.append(f"{values[0] / np.median(values):.1f}")
            lines.append(f"| {' | '.join(row)} |")
        if len(windows) >= FEWEST:
            shapes = [u_shape(between(part)) for _, part in windows]
            ends = ends_over_texts(np.array([[s.start.value, s.end.value] for s in shapes]))
            row = [
                name,
                "",
                f"all {len(windows)}, over windows",
                words(ends.start),
                words(ends.end),
            ]
            lines.append(f"| {' | '.join([*row, ends.verdict, ''])} |")
    return "\n".join(lines)


def collapse_sentences(names: Sequence[str]) -> str:
    """What the distances of each model say, in the result's own sentences."""
    paragraphs = []
    for name in names:
        result = ost.load_result(STORE / name / "collapse.parquet")
        frame = result.frame
        longest = f"{frame['length'].max():,} digits ({frame['tokens'].max():,} tokens)"
        paragraphs.append(
            f"**{name}**, every {STEP} digits up to {longest}. " + " ".join(result.findings())
        )
    return "\n\n".join(paragraphs)


def collapse_costs(names: Sequence[str]) -> str:
    """The table of docs/scale.md: seconds of the process on its cores, and its peak."""
    lines = [
        "| model | tokens | lengths | seconds of one core | peak, GB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in names:
        frame = ost.load_result(STORE / name / "collapse.parquet").frame
        seconds, held = (
            json.loads((STORE / name / f"collapse-{what}.json").read_text())
            for what in ("seconds", "peak")
        )
        row = [
            name,
            f"{frame['tokens'].max():,}",
            str(frame["length"].nunique()),
            f"{seconds:.0f}",
            f"{held / 1e9:.1f}",
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def costs(names: Sequence[str]) -> str:
    """The table of docs/scale.md: seconds of a window and the peak of the process."""
    lines = [
        "| model | tokens | windows | seconds a window | peak, GB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in names:
        cells = [cell for cell, _ in measured_windows(name)]
        if not cells:
            continue
        peak = json.loads((STORE / name / "sensitivity-peak.json").read_text(encoding="utf-8"))
        seconds = sorted(source_of(cell)["parameters"]["cell_seconds"] for cell in cells)
        taken = " to ".join(f"{value:.0f}" for value in dict.fromkeys((seconds[0], seconds[-1])))
        row = [source_of(cells[0])["model"]["title"] or name, f"{LENGTHS[name]:,}", str(len(cells))]
        lines.append(f"| {' | '.join([*row, taken, f'{peak / 1e9:.1f}'])} |")
    return "\n".join(lines)


def picture(names: Sequence[str]) -> Any:
    """A panel a model, a line a window: norms over the window's median, the geometric mean of each
    bin.
    """
    panels = []
    for name in names:
        tables, title = [], name
        for number, (cell, part) in enumerate(measured_windows(name), start=1):
            logs, title = between(part), source_of(cell)["model"]["title"] or name
            bins = np.array_split(logs - np.median(logs), BINS)
            place = [
                part_of.mean() for part_of in np.array_split(np.arange(1, len(logs) + 1), BINS)
            ]
            means = [10 ** float(values.mean()) for values in bins]
            tables.append(
                pd.DataFrame({"series": f"window {number}", "position": place, "value": means})
            )
        if not tables:
            continue
        rows, y = log_rows(
            pd.concat(tables, ignore_index=True), "norm of ∂y/∂v over the window's median"
        )
        x = axes.length_axis(rows["position"], "position in the text", "position", log=False)
        hue = draw.hue("series", list(dict.fromkeys(rows["series"])))
        panels.append(
            draw.panel(curve(rows, x, y, hue), 420, 240, f"{title}, {LENGTHS[name]:,} tokens")
        )
    notes = "Sketches of 8 cotangents; geometric mean of each bin; first and last token left out."
    return draw.figure(
        [panels], "Sensitivity of the last token over long real text", notes, spacing=40
    )


def write_pages() -> None:
    """Write the parts of both pages of which something is stored here, and the picture."""
    windows = [name for name in LENGTHS if any(True for _ in measured_windows(name))]
    pairs = [name for name in LENGTHS if (STORE / name / "collapse.parquet").is_file()]
    if windows:
        drawn = picture(windows).to_dict(validate=False)
        PICTURE.write_bytes(picture_of(drawn, 1.2))
        write_tables(PAGE, windows=sensitivity_table(windows))
        write_tables(long=costs(windows))
    if pairs:
        write_tables(PAGE, collapse=collapse_sentences(pairs))
        write_tables(long_collapse=collapse_costs(pairs))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--models", nargs="+", default=list(LENGTHS))
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT)
    parser.add_argument("--here", action="store_true", help="in this process, and without the page")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    measure = {"sensitivity": measure_sensitivity, "collapse": measure_collapse}
    for name, what in [] if options.page_only else itertools.product(options.models, options.what):
        if options.here:
            measure[what](name, options.text)
            continue
        command = [str(options.text), "--models", name, "--what", what, "--here"]
        subprocess.run([sys.executable, "-m", "scripts.long_contexts", *command], check=True)
    if not options.here:
        write_pages()


if __name__ == "__main__":
    main()
