"""Write the notebooks: run each tutorial's .py in a fresh kernel and store what it shows in the .ipynb beside it.

    .venv/bin/python tutorials/write.py            # all of them, some five minutes; the first needs Gemma (make real)
    .venv/bin/python tutorials/write.py 01 03      # those that begin so

The .py (jupytext, percent format) is what one edits and reviews; the .ipynb is what one reads. `tests/test_tutorials.py`
holds the two together.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TIMEOUT = 180
ENVIRONMENT = {
    "PYTHONWARNINGS": "ignore:IProgress not found",
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
}
"""For the kernel: tqdm warns where Jupyter has no widgets, which the tutorials do not use; the models are too small for two
threads, which on a busy machine wait for each other. A bar is for whoever waits, not for who reads."""
LARGEST = 20_000
"""Most characters of a chart's drawing that is stored beside its picture, so that a notebook stays below half a megabyte."""
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells_of(script: Path) -> Any:
    """The notebook of a script, without outputs; a cell's id is of its text, so that another's change leaves it alone."""
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = f"{digest}-{seen[digest]}"
        cell.metadata = nbformat.from_dict({})
    return notebook


def executed(script: Path) -> Any:
    """The notebook of a script with its outputs. Raises where a cell does, and where one writes to stderr."""
    notebook = cells_of(script)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"{script.name}: a cell wrote to stderr: {output['text'][:500]}")
            leave_out_large_drawings(output)
    return notebook


def leave_out_large_drawings(output: Any) -> None:
    """Keep the picture of a chart, and its Vega-Lite drawing where that is small."""
    data = output.get("data", {})
    for kind in [
        kind for kind in data if "vegalite" in kind and len(json.dumps(data[kind])) > LARGEST
    ]:
        del data[kind]
        output["metadata"].pop(kind, None)


def main(wanted: list[str]) -> None:
    os.environ.update(ENVIRONMENT)
    scripts = sorted(HERE.glob("[0-9][0-9]_*.py"))
    chosen = [
        script
        for script in scripts
        if not wanted or any(script.name.startswith(name) for name in wanted)
    ]
    if not chosen:
        sys.exit(
            f"no tutorial begins with {' or '.join(wanted)}: there are {', '.join(one.stem for one in scripts)}"
        )
    for script in chosen:
        start = time.perf_counter()
        target = script.with_suffix(".ipynb")
        nbformat.write(executed(script), target)
        print(
            f"{target.name}: {target.stat().st_size / 1000:.0f} kB, {time.perf_counter() - start:.0f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
