"""The lists on docs/command-line.md and docs/tutorials/index.md: `python -m scripts.listings`,
after a command or a tutorial.

The site says every option of every command below the list, from the program itself
(docs/_site/command_line.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ostools.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
COMMAND_LINE, TUTORIALS = (
    ROOT / "docs" / "command-line.md",
    ROOT / "docs" / "tutorials" / "index.md",
)


def commands() -> str:
    """A row a command, or several that do the same: its name, and what it does."""
    names: dict[str, list[str]] = {}
    for command in COMMANDS.values():
        names.setdefault(command.summary, []).append(f"`{command.name}`")
    rows = [f"| {', '.join(same)} | {_escaped(summary)} |" for summary, same in names.items()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def tutorials() -> str:
    """Every notebook by its title."""
    return "\n".join(
        f"- [{_title(path)}](../../tutorials/{path.name})"
        for path in sorted((ROOT / "tutorials").glob("*.ipynb"))
    )


def page(path: Path, listing: str) -> str:
    """The page with that list between its marks."""
    start, end = "<!-- list: python -m scripts.listings -->", "<!-- end of list -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    return f"{before}{start}\n\n{listing}\n\n{end}{rest.partition(end)[2]}"


PAGES = {COMMAND_LINE: commands, TUTORIALS: tutorials}


def _title(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return next(
        line.removeprefix("# ").strip()
        for cell in cells
        for line in cell["source"]
        if line.startswith("# ")
    )


def _escaped(text: str) -> str:
    """Plain text as Markdown that reads the same in a table."""
    return re.sub(r"([\\*_|<\[\]])", r"\\\1", text)


if __name__ == "__main__":
    for path, listing in PAGES.items():
        path.write_text(page(path, listing()), encoding="utf-8")
