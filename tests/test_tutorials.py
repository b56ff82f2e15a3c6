"""The tutorials: each runs, says what its stored outputs show, and is the same notebook as its
script.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbmake.nb_run import NotebookRun

from ostools.models.files.gguf_cache import in_cache
from ostools.models.files.sources import PACKAGED_MODELS, is_installed
from tutorials.write import ENVIRONMENT, METADATA, TIMEOUT, cells_of

FOLDER = Path(__file__).parents[1] / "tutorials"
SCRIPTS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
NOTEBOOKS = [script.with_suffix(".ipynb") for script in SCRIPTS]
BYTES = 650_000

every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

# A chart's drawing names its grammar by an address that nothing loads; the tutorials cite the
# paper.
NAMED = ("https://vega.github.io/schema/vega-lite/v5.json", "https://arxiv.org/abs/2406.04267")
DRAWS = re.compile(r"(\.plot\(\)|\noffline\(\w+\))$")
SHOWS = re.compile(r"(^|\n)(print\(|[^\n]*\.plot\(\))")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_there_are_four_each_a_script_and_a_notebook() -> None:
    assert [script.name[:2] for script in SCRIPTS] == [f"0{number}" for number in range(1, 5)]
    assert sorted(FOLDER.glob("*.ipynb")) == NOTEBOOKS


@every
@pytest.mark.slow
def test_it_runs_and_warns_of_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, packaged in PACKAGED_MODELS.items():
        missing = in_cache(packaged.sha256) is None and not is_installed(name)
        if (
            f'load_model("{name}")' in path.with_suffix(".py").read_text(encoding="utf-8")
            and missing
        ):
            pytest.skip(f"needs {name}: {packaged.install}, or make real")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(FOLDER)
    result = NotebookRun(path, default_timeout=TIMEOUT).execute()
    assert result.error is None, result.error and result.error.summary
    assert [output.text for output in outputs_of(result.nb) if output.get("name") == "stderr"] == []


@every
def test_notebook_and_script_are_the_same(path: Path) -> None:
    script, stored = cells_of(path.with_suffix(".py")), read(path)
    for notebook in (script, stored):
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert [(cell.id, cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.id, cell.cell_type, cell.source) for cell in script.cells
    ]
    assert dict(stored.metadata) == METADATA


@every
def test_what_is_stored_is_whole_and_nothing_that_should_not_be(path: Path) -> None:
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [cell.source for cell in cells if SHOWS.search(cell.source) and not cell.outputs] == []
    charts = [cell for cell in cells if DRAWS.search(cell.source)]
    assert charts
    assert all("image/png" in cell.outputs[-1].data for cell in charts)
    for output in outputs_of(read(path)):
        data = output.get("data", {})
        shown = [str(value) for kind, value in data.items() if kind != "image/png"]
        text = " ".join([*shown, str(output.get("text", ""))])
        for named in NAMED:
            text = text.replace(named, "")
        assert not re.search(r"https?://|<script|Traceback", text), text[:300]
        assert not re.search(r"(?<![\w.)])/(tmp|home|root|work|Users|private)/", text), text[:300]
    assert path.stat().st_size < BYTES
