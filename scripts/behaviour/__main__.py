"""docs/findings/behaviour.md: what Qwen2.5-Coder-1.5B answers to the paper's questions, and whether
its errors are collapse.

    python -m scripts.behaviour [--model qwen2.5-coder-1.5b-instruct] [--states DIRECTORY]
    [--minutes 75] [--page-only]

Each cell (a task at some lengths, perhaps under a mitigation) is stored in artefacts/behaviour as
it is measured, in the order of `CELLS`, and is not measured again; after so many minutes of CPU no
cell is begun. The y of the prompts' last tokens are stored in the directory of the states, 6 kB a
prompt and position. The tables of the page are written between their marks, and the words around
them are left alone. Qwen takes 4 GB in bfloat16; on one core some 80 minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ostools as ost
from benchmarks.scale import write_page
from scripts.behaviour import cells, collapse, figure, page
from scripts.embedded import grouped

MODEL = "qwen2.5-coder-1.5b-instruct"


def write() -> None:
    """All tables, and the figure."""
    made = {
        "copies": page.copies_table(),
        "singles": page.singles_table(),
        "drawn": page.drawn_table(),
        "favourites": page.favourites_table(),
        "reasoned": page.reasoned_table(),
        "mitigations": page.mitigations_table(),
        **collapse.tables(),
    }
    write_page(page.PAGE, **{name: "\n".join(grouped(lines)) for name, lines in made.items()})
    figure.draw_figure(page.PAGE.with_suffix(".png"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--states", type=Path, default=Path(tempfile.gettempdir()) / "ostools-behaviour"
    )
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    if not options.page_only:
        cells.measure(
            ost.load_model(options.model, dtype="bfloat16", device="cpu"),
            options.states,
            options.minutes,
        )
    write()


if __name__ == "__main__":
    main()
