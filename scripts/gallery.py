"""The pictures of docs/gallery.md: `python -m scripts.gallery [PICTURE ...]` runs the page's code
and draws them.

The page is the one place where the code stands. Its first block comes before all others. Each other
block makes the picture below it. What it assigns may be used in later blocks, so blocks that assign
always run. Each PNG has the code that made it and the class of the result in its text (`Made`). A
test holds both against the page. It takes the three real models of `make real-large`, a quarter of
an hour of one core, and 5 GB.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

PAGE = Path(__file__).parents[1] / "docs" / "gallery.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n!\[[^\]]+\]\(gallery/([\w-]+)\.png\))?", re.DOTALL)
SCALE = 1.2
"""Pixels of the picture per pixel of the chart: its letters are sharp, and all pictures together
stay light.
"""
WIDEST = 1000
"""Pixels of the widest picture: the page has room for about 700."""


@dataclass(frozen=True)
class Made:
    """What a picture says of itself: the code of the page that made it, and the class of the result
    that it draws.
    """

    code: str
    result: str


def blocks(page: str) -> list[tuple[str, str | None]]:
    """The code of the page in its order, each with the name of its picture; None where the block
    has none.
    """
    return [(code, name or None) for code, name in BLOCK.findall(page)]


def picture_path(name: str) -> Path:
    return PAGE.with_suffix("") / f"{name}.png"


def made_by(picture: Path) -> Made:
    """What that picture says of itself."""
    with Image.open(picture) as image:
        said: Any = image.info
        return Made(**{key: said[key] for key in Made.__annotations__})


def drawn(code: str, names: dict[str, Any]) -> tuple[Any, Made]:
    """Run a block that ends in `<result>.plot()`: its chart, and what is to be said of the picture.

    Raises `SystemExit` where it ends in something else.
    """
    tree = ast.parse(code)
    match tree.body:
        case [
            *before,
            ast.Expr(
                value=ast.Call(func=ast.Attribute(value=made, attr="plot"), args=[], keywords=[])
            ),
        ]:
            exec(compile(ast.Module(before, []), PAGE.name, "exec"), names)
            result = eval(compile(ast.Expression(made), PAGE.name, "eval"), names)
            return result.plot(), Made(code, type(result).__name__)
    raise SystemExit(f"{PAGE.name}: expected a block that ends in `.plot()`, found {code!r}")


def save(chart: Any, made: Made, path: Path) -> None:
    """The chart as a small PNG with what is said of it."""
    with Image.open(BytesIO(_picture(chart.picture()))) as image:
        said = PngInfo()
        for key, value in asdict(made).items():
            said.add_itxt(key, value)
        path.parent.mkdir(exist_ok=True)
        image.save(path, format="PNG", pnginfo=said, compress_level=9)


def _picture(spec: dict[str, Any]) -> bytes:
    """The chart of a specification as PNG, at most so wide."""
    from ostools.reporting.style.notebook import picture_of, picture_size

    drawn = picture_of(spec, SCALE)
    width, _ = picture_size(drawn)
    return drawn if width <= WIDEST else picture_of(spec, SCALE * WIDEST / width)


def pictures(page: str, wanted: Sequence[str]) -> Iterator[tuple[str, Any, Made]]:
    """Run the page: of each picture that is wanted its name, its chart and what is said of it."""
    names: dict[str, Any] = {}
    for code, name in blocks(page):
        if name is None:
            exec(compile(code, PAGE.name, "exec"), names)
        elif not wanted or name in wanted:
            yield (name, *drawn(code, names))
        elif assigns(code):
            exec(compile(code, PAGE.name, "exec"), names)


def assigns(code: str) -> bool:
    """Whether a block gives names that later ones may use."""
    return any(not isinstance(one, ast.Expr) for one in ast.parse(code).body)


def main(wanted: Sequence[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    known = [name for _, name in blocks(page) if name]
    if unknown := set(wanted) - set(known):
        raise SystemExit(
            f"expected pictures out of {', '.join(known)}, found {', '.join(sorted(unknown))}"
        )
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        started = time.process_time()
        for name, chart, made in pictures(page, wanted):
            ran = time.process_time()
            save(chart, made, picture_path(name))
            size = picture_path(name).stat().st_size
            print(f"{name}: {made.result}, {ran - started:.1f} s, {size:,} bytes", flush=True)
            started = time.process_time()
    if not wanted:
        for stray in set(picture_path("x").parent.glob("*.png")) - {
            picture_path(name) for name in known
        }:
            stray.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
