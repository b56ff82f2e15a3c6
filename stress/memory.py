"""Five hundred measurements in one process: what it holds grows by less than 1%.

All four in turn, on other prompts each time, under mitigations too, so that whatever keeps a
prompt, a hook, a copy of a model or a table shows. The first of them fill the caches that are meant
to stay.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ostools.models.files.sources import locate
from ostools.sweep import sweep_of
from ostools.sweep.cells import checkpoint_hash, code_version, keyed
from ostools.sweep.executor import Bench, Terms
from ostools.sweep.sweep_file import cells_of
from tests.checkpoints import write_checkpoint

CASES = 500
GROWTH = 0.01
_SIZES: dict[str, Any] = {"n_layers": 1, "d_model": 16, "d_mlp": 32, "context": 512}
_ASKED = {
    "tasks": "copy-last:uniform=true",
    "lengths": 4,
    "mitigations": ["none", "separator:every=2", "sliding-window:window=8,sinks=1"],
    "measurements": [
        {"name": "evaluate", "max_new_tokens": 3},
        {"name": "collapse", "dtypes": "bfloat16"},
        "sensitivity",
        {"name": "bounds", "variants": ["local", "theorem-5.1"]},
    ],
}


def run(cases: int, seed: int) -> int:
    """How many measurements failed, and one more where the process grew too much."""
    chosen, process = random.Random(seed), psutil.Process()
    held: list[int] = []
    errors: list[str] = []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        name = str(write_checkpoint(Path(folder) / "tiny", "gemma", **_SIZES))
        bench = Bench(Terms("cpu", {name: checkpoint_hash(locate(name, None))}, code_version()))
        cells = cells_of(sweep_of({"models": name, **_ASKED}))
        for index in range(cases):
            place = {"lengths": (chosen.randint(3, 12),), "seed": chosen.randrange(2**31)}
            cell = replace(cells[index % len(cells)], **place)
            found = bench.measure(keyed(cell, bench.terms.checkpoints[name], "cpu"))
            errors += [found] if isinstance(found, str) else []
            del found
            gc.collect()
            held.append(process.memory_info().rss)
    return judged(held, errors)


def judged(held: Sequence[int], errors: Sequence[str]) -> int:
    """The number of errors, and one more where the bytes that a process held after each case grew
    from the tenth behind the first fifth to the last tenth: medians, since an allocator's own waves
    are no growth.
    """
    tenth, start = max(1, len(held) // 10), len(held) // 5
    before, after = (statistics.median(part) for part in (held[start:][:tenth], held[-tenth:]))
    print(*errors, f"  {after / before - 1:+.2%} from {before / 2**20:.1f} MiB", sep="\n")
    return len(errors) + (after >= before * (1 + GROWTH))
