"""A chart for a paper: its width, its fonts, its colours."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ostools.ground.arguments import LINEARISATIONS
from ostools.ground.errors import InputError
from ostools.measure.bounds.variants import VARIANTS
from ostools.reporting.page.page import TEMPLATES
from ostools.reporting.style import theme
from tests.reporting.every import EVERY
from tests.reporting.made import made_sensitivity

DEAR = ("Study",)
"""Laid out in ten seconds, or measured in seconds."""
SVG = "http://www.w3.org/2000/svg"
SMALLEST = 1.9
"""By so much at most a picture is scaled down to a paper's width."""
WRONG_SIZES = (0, -3, 1.5, float("nan"), True)
RESULT = made_sensitivity({"full": [3.0, 1.0, 2.0], "frozen": [2.0, 1.0, 3.0]}, ["漢", "<b>", "é"])


def width_of(svg: str) -> float:
    return float(ElementTree.fromstring(svg).attrib["width"])


def fonts_of(pdf: bytes) -> tuple[int, int]:
    """How many fonts it uses, and how many it holds."""
    return len(re.findall(rb"/Type /FontDescriptor", pdf)), len(
        re.findall(rb"/FontFile[23]? \d+ 0 R", pdf)
    )


@pytest.mark.parametrize(
    ("size", "width"), [("column", 3.3), pytest.param(5, 5.0, marks=pytest.mark.slow)]
)
def test_a_size_is_the_width_in_every_file(
    size: str | float | int, width: float, tmp_path: Path
) -> None:
    for ending in ("svg", "png", "pdf"):
        RESULT.save(tmp_path / f"x.{ending}", size=size, title=False)
    assert width_of((tmp_path / "x.svg").read_text()) == pytest.approx(96 * width, abs=1)
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width == pytest.approx(300 * width, abs=3)
        assert picture.info["dpi"][0] == pytest.approx(300, abs=1)
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", (tmp_path / "x.pdf").read_bytes())
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * width, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EVERY if name not in DEAR])
def test_every_chart_has_the_width_of_a_column_and_letters_that_can_be_read(
    name: str, tmp_path: Path
) -> None:
    EVERY[name]().save(tmp_path / "x.svg", size="column")
    svg = (tmp_path / "x.svg").read_text()
    assert width_of(svg) == pytest.approx(96 * 3.3, abs=1)
    _, _, across, _ = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    assert across <= SMALLEST * width_of(svg)


def test_the_text_of_a_picture_is_text_and_a_pdf_holds_its_fonts(tmp_path: Path) -> None:
    for ending in ("svg", "pdf"):
        RESULT.save(tmp_path / f"x.{ending}")
        RESULT.plot(title=False).save(str(tmp_path / f"plot.{ending}"))
    for name in ("x.svg", "plot.svg"):
        text = (tmp_path / name).read_text()
        said = {
            "".join(part.itertext()) for part in ElementTree.fromstring(text).iter(f"{{{SVG}}}text")
        }
        assert said >= {"é 2", "measured: full"}
        addresses = re.findall(r"https?://[^\"' )]+", text)
        assert all(address.startswith("http://www.w3.org/") for address in addresses), addresses
        assert "url(" not in text.replace("url(#", "")
    for name in ("x.pdf", "plot.pdf"):
        used, held = fonts_of((tmp_path / name).read_bytes())
        assert used == held > 0


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("x.png", "colum", r"unknown size 'colum': did you mean 'column'"),
        *(
            ("x.png", size, "expected 'column', 'page', 'slide' or a width in inches from 2 on")
            for size in WRONG_SIZES
        ),
        *(
            (name, "column", r"expected a name ending in \.png \.svg \.pdf")
            for name in ("x.parquet", "x.html")
        ),
    ],
)
def test_a_size_that_is_none_is_refused_and_a_table_has_none(
    name: str, size: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        RESULT.save(tmp_path / name, size=size)
    assert not list(tmp_path.iterdir())


(DARK_GROUND,) = set(re.findall(r"--ground: (#\w{6})", (TEMPLATES / "style.css").read_text())) - {
    theme.LIGHT_GROUND
}


def linear(colour: str) -> np.ndarray:
    encoded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def test_every_colour_is_seen_on_paper_and_in_the_dark_and_a_profile_s_names_differ() -> None:
    """WCAG 1.4.11: graphics need a contrast of 3:1."""
    for name, colour in theme.COLOURS.items():
        for ground in (theme.LIGHT_GROUND, DARK_GROUND):
            dark, light = sorted(
                float(linear(shown) @ (0.2126, 0.7152, 0.0722)) for shown in (colour, ground)
            )
            assert (light + 0.05) / (dark + 0.05) >= 3, (name, ground)
    names = [*LINEARISATIONS, *VARIANTS]
    assert len({theme.COLOURS[name] for name in names}) == len(names)
