"""What this site does while mkdocs builds it: notebooks from `tutorials/`, the command line from the program, mathematics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import mathematics
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


@event_priority(100)  # Before mkdocs-jupyter looks for notebooks.
def on_files(files: Files, *, config: Any) -> Files:
    """The tutorials and the changelog lie outside of docs/: one copy of each, where readers of the repository look."""
    for notebook in sorted((ROOT / "tutorials").glob("*.ipynb")):
        files.append(File.generated(config, f"tutorials/{notebook.name}", abs_src_path=str(notebook)))
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **found: Any) -> str:
    """The page of the command line, with every command."""
    return markdown.replace(command_line.MARKER, command_line.reference()) if "command-line" in page.url else markdown


def on_page_content(html: str, **found: Any) -> str:
    """Every page's mathematics, as MathML."""
    return mathematics.typeset(html)
