"""`python -m scripts.glossary`: docs/glossary.md, out of the terms that every report shows."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ostools.reporting.sections.about import GLOSSARY, Term

PAGE = Path(__file__).parents[1] / "docs" / "glossary.md"
HEAD = """# Glossary

Terms, as these pages, the reports and the charts use them. The paper is "Transformers need glasses!" (arXiv 2406.04267).
Where a word is ours and not the paper's, that is said. `python -m scripts.glossary` writes this page: every report shows
the same words.
"""


def page() -> str:
    """The whole page, as a list of definitions."""
    return "\n\n".join([HEAD.rstrip("\n"), *map(_defined, GLOSSARY)]) + "\n"


def _defined(term: Term) -> str:
    more = term.more.removesuffix(".md")
    words = (
        "Reading the numbers"
        if "#" not in more
        else "Theory " + more.partition("#section-")[2].replace("-", ".")
    )
    text = f"{term.explained} [{words}]({term.more})"
    text = textwrap.fill(
        text,
        140,
        initial_indent=":   ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"**{term.name}**\n{text}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
