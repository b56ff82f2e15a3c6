"""What this site does while mkdocs builds it: notebooks from `tutorials/`, the command line from
the program, mathematics.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import command_line
import mathematics
import measurements
import notebooks
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_OUT_OF_SITE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:ostools|hooks|mitigations|examples|tutorials)/[^)]*\)"
)


def on_config(config: Any) -> Any:
    """Every notebook has its place under "Tutorials", without being named twice."""
    (tutorials,) = (entry["Tutorials"] for entry in config.nav if "Tutorials" in entry)
    tutorials += [notebooks.page(notebook) for notebook in notebooks.notebooks()]
    return config


@event_priority(100)  # Before mkdocs-jupyter looks for notebooks.
def on_files(files: Files, *, config: Any) -> Files:
    """The files that lie outside of docs/: one copy of each, where readers of the repository look."""
    for notebook in notebooks.notebooks():
        # By its folder: mkdocs-jupyter wraps such a file, and loses the source of a generated one.
        root = str(notebooks.FOLDER.parent)
        files.append(
            File(notebooks.page(notebook), root, config.site_dir, config.use_directory_urls)
        )
    files.append(File.generated(config, "changelog.md", abs_src_path=str(CHANGELOG)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **found: Any) -> str:
    """What pages leave to be filled in: every command, every measurement. Links to files outside of
    the site become words. The changelog's links begin at the root."""
    if page.file.src_uri == "changelog.md":
        return markdown.replace("](docs/", "](")
    if page.file.src_uri == "tutorials/index.md":
        return markdown.replace("](../../tutorials/", "](")
    markdown = _OUT_OF_SITE.sub(r"\1", markdown)
    if page.file.src_uri == "command-line.md":
        return markdown.replace(command_line.MARKER, command_line.reference())
    if measurements.MARKER in markdown:
        return markdown.replace(
            measurements.MARKER, measurements.reference(Path(page.file.src_uri).stem)
        )
    return markdown


def on_page_content(html: str, *, page: Any, **found: Any) -> str:
    """Every page's mathematics, as MathML; notebooks' pages as pages of this site."""
    if not page.file.src_uri.endswith(".ipynb"):
        return mathematics.typeset(html)
    return mathematics.typeset_notebook(notebooks.as_page(html))
