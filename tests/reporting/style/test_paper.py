"""A chart for a paper: its width, its fonts, its colours."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ostools.ground.errors import InputError
from ostools.ground.names import LINEARISATIONS
from ostools.measure.bounds.variants import VARIANTS
from ostools.reporting.page.page import TEMPLATES
from ostools.reporting.style import theme
from tests.reporting.every import EVERY
from tests.reporting.made import made_sensitivity

DEAR = ("Study", "WindowStudy")
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


def test_a_title_is_left_out_where_it_is_not_asked_for() -> None:
    assert "title" in RESULT.plot().to_dict()
    assert "title" not in RESULT.plot(title=False).to_dict()


# What kinds of colour-blind eyes see of a colour (Machado, Oliveira and Fernandes 2009, severity
# 1.0), in linear RGB.
BLIND = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TOGETHER = (
    ("full", "frozen"),
    ("float32", "bfloat16", "float64"),
    ("right", "wrong"),
    ("helps", "hurts"),
    ("copy-first", "copy-last"),
    ("vectors", "weights"),
)
"""Names that stand in one chart and are told apart by their colour alone, or first of all."""
APART = 10.0
"""Least distance in CIELAB (1976) of two such colours; 2.3 is just seen side by side."""


(DARK_GROUND,) = set(re.findall(r"--ground: (#\w{6})", (TEMPLATES / "style.css").read_text())) - {
    theme.LIGHT_GROUND
}


def linear(colour: str) -> np.ndarray:
    encoded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def lab(colour: str, eye: str | None) -> np.ndarray:
    seen = linear(colour) if eye is None else np.clip(np.array(BLIND[eye]) @ linear(colour), 0, 1)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.072175],
            [0.0193339, 0.119192, 0.9503041],
        ]
    )
    ratio = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    root = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("eye", [None, *BLIND])
def test_colours_of_one_chart_are_told_apart_by_every_eye(eye: str | None) -> None:
    for names in TOGETHER:
        for first, second in combinations([lab(theme.colour(name), eye) for name in names], 2):
            assert np.linalg.norm(first - second) >= APART, names


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
