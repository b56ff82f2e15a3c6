"""The tutorials, which lie outside of docs/ where readers of the repository look: their pages."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tutorials"
_LOADER = re.compile(
    r'<script src="">\s*</script>|<script[^>]*>(?:(?!</script>).)*(?:mermaid|MathJax)(?:(?!</script>).)*</script>',
    re.DOTALL,
)
_TO_NOTEBOOK = re.compile(r'href="([\w-]+)\.ipynb(#[^"]*)?"')
_UNDESCRIBED = re.compile(
    r'<h[1-4][^>]*>(?P<heading>(?:(?!</h).)*?)<a class="anchor-link"|alt="No description has been provided for this image"'
)


def notebooks() -> list[Path]:
    """In the order of their numbers."""
    return sorted(FOLDER.glob("*.ipynb"))


def page(notebook: Path) -> str:
    """Where the site has it."""
    return f"tutorials/{notebook.name}"


def as_page(html: str) -> str:
    """The notebook's page: its links to other notebooks lead to their pages, and nothing is loaded
    from elsewhere.

    The scripts for diagrams and formulas are left out: they come from content delivery networks.
    Pictures, which a notebook stores without a word, are said to be charts of their section.
    """
    section = ""

    def described(found: re.Match[str]) -> str:
        nonlocal section
        if found["heading"] is None:
            return f'alt="A chart of the section: {section}"'
        section = re.sub(r"<[^>]+>|\"", "", found["heading"]).strip()
        return found.group()

    return _UNDESCRIBED.sub(described, _TO_NOTEBOOK.sub(r'href="\1.html\2"', _LOADER.sub("", html)))
