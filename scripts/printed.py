"""What the Python on a page prints, and the pictures that it saves: `python -m scripts.printed
[PAGE ...]` writes them.

The blocks of a page run in their order, in an empty folder, as one program. Below a block stands
what it prints, as a block of text. A picture that a block saves as NAME.png, and that the page
shows as `![...](FOLDER/NAME.png)`, is copied to the page, small enough for it. Without a page:
docs/getting-started.md (Gemma 3 270M; four minutes of one core) and docs/embedded.md.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
WIDEST = 900
"""Pixels of a picture: a page has room for about 700."""
PAGES = (DOCS / "getting-started.md", DOCS / "embedded.md")
BLOCK = re.compile(
    r"(?P<not_run><!-- not run: [^\n]+ -->\n)?```python\n(?P<code>.*?)```(?P<text>\n\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


def blocks(page: str) -> list[re.Match[str]]:
    """The blocks of Python that are run, each with the text below it that it prints (`printed`;
    None without one).
    """
    return [block for block in BLOCK.finditer(page) if block["not_run"] is None]


def run(page: Path, folder: Path) -> list[str]:
    """What each block prints, all run in that folder."""
    names: dict[str, object] = {"__name__": "page"}
    outputs = []
    with chdir(folder):
        for block in blocks(page.read_text(encoding="utf-8")):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block["code"], page.name, "exec"), names)
            outputs.append(output.getvalue())
    return outputs


def with_outputs(page: str, outputs: Sequence[str]) -> str:
    """The page, with each block's output below it; a block that prints nothing has none."""
    for block, output in reversed(list(zip(blocks(page), outputs, strict=True))):
        end = block.start("text") if block["text"] else block.end()
        page = page[:end] + (f"\n\n```text\n{output}```" if output else "") + page[block.end() :]
    return page


def pictures(page: Path) -> list[Path]:
    """Pictures beside the page, in a folder of its name."""
    return [
        page.parent / link
        for link in re.findall(
            rf"!\[[^\]]+\]\(({page.stem}/[\w-]+\.png)\)", page.read_text("utf-8")
        )
    ]


def main(pages: Sequence[Path]) -> None:
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            outputs = run(page.resolve(), Path(folder))
            page.write_text(with_outputs(page.read_text("utf-8"), outputs), encoding="utf-8")
            for picture in pictures(page):
                picture.parent.mkdir(exist_ok=True)
                with Image.open(Path(folder) / picture.name) as image:
                    image.thumbnail((WIDEST, 3 * WIDEST))
                    image.convert("P", palette=Image.Palette.ADAPTIVE).save(picture, optimize=True)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or PAGES)
