"""A chart for a paper: its width, its fonts, its colours."""

from __future__ import annotations

import re
import zlib
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
import vl_convert
from PIL import Image

from ostools.ground.errors import InputError
from ostools.reporting.look import axes, paper, theme
from ostools.reporting.look.notebook import drawn_svg
from ostools.reporting.look.outlines import SVG, outlined
from tests.reporting import every
from tests.reporting.every import EVERY
from tests.reporting.made import made_sensitivity

DEAR = ("Study", "WindowStudy")
"""Laid out in ten seconds, or measured in seconds."""
RESULT = made_sensitivity({"full": [3.0, 1.0, 2.0], "frozen": [2.0, 1.0, 3.0]}, ["漢", "<b>", "é"])


def width_of(svg: str) -> float:
    return float(ElementTree.fromstring(svg).attrib["width"])


def words_of(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter(f"{{{SVG}}}text")
    return [said for element in found if (said := " ".join(part for part in element.itertext())).strip()]


def fonts_of(pdf: bytes) -> tuple[int, int]:
    """How many fonts it uses, and how many it holds."""
    return len(re.findall(rb"/Type /FontDescriptor", pdf)), len(re.findall(rb"/FontFile[23]? \d+ 0 R", pdf))


@pytest.mark.parametrize(("size", "width"), [("column", 3.3), pytest.param(5, 5.0, marks=pytest.mark.slow)])
def test_a_size_is_the_width_in_every_file(size: str | float | int, width: float, tmp_path: Path) -> None:
    for ending in ("svg", "png", "pdf"):
        RESULT.save(tmp_path / f"x.{ending}", size=size, title=False)
    assert width_of((tmp_path / "x.svg").read_text()) == round(96 * width)
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width == pytest.approx(300 * width, abs=3)
        assert picture.info["dpi"][0] == pytest.approx(300, abs=1)
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", (tmp_path / "x.pdf").read_bytes())
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * width, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("size", list(paper.SIZES))
@pytest.mark.parametrize("name", [name for name in EVERY if name not in DEAR])
def test_every_chart_fits_and_says_all_its_words(name: str, size: str) -> None:
    """No label is cut and no word is lost."""
    drawn = drawn_svg(EVERY[name]().plot(size=size).to_dict())
    assert width_of(drawn) == round(96 * paper.SIZES[size])
    plain = " ".join(words_of(drawn_svg(every.spec(name))))
    said = " ".join(words_of(drawn))
    for word in re.findall(r"[^\W\d]{4,}", plain):
        assert word in said, word


def test_a_picture_asks_for_no_font_of_the_reader(tmp_path: Path) -> None:
    for ending in ("svg", "pdf"):
        RESULT.save(tmp_path / f"x.{ending}")
        RESULT.plot(title=False).save(str(tmp_path / f"plot.{ending}"))
    for name in ("x.svg", "plot.svg"):
        text = (tmp_path / name).read_text()
        root = ElementTree.fromstring(text)
        assert not list(root.iter(f"{{{SVG}}}text"))
        assert "font" not in text
        addresses = re.findall(r"https?://[^\"' )]+", text)
        assert all(address.startswith("http://www.w3.org/") for address in addresses), addresses
        assert "url(" not in text.replace("url(#", "")
        assert {element.get("aria-label") for element in root.iter(f"{{{SVG}}}path")} >= {"é 2", "measured: full"}
    for name in ("x.pdf", "plot.pdf"):
        used, held = fonts_of((tmp_path / name).read_bytes())
        assert used == held > 0


def test_outlines_draw_what_the_text_did() -> None:
    """Pixel by pixel but for the grey of the letters' edges, which a renderer hints for text alone."""
    svg = drawn_svg(RESULT.plot().to_dict())
    pictures = []
    for one in (svg, outlined(svg)):
        with Image.open(BytesIO(bytes(vl_convert.svg_to_png(one, scale=1)))) as image:
            pictures.append(np.asarray(image.convert("L"), dtype=float))
    assert pictures[0].shape == pictures[1].shape
    assert np.abs(pictures[0] - pictures[1]).max() < 60
    assert np.abs(pictures[0] - pictures[1]).mean() < 0.2


def test_a_text_in_lines_and_one_of_blanks_become_outlines_too() -> None:
    text = f'font-family="{theme.config()["font"]}" font-size="11"'
    svg = (
        f'<svg xmlns="{SVG}" width="90" height="90"><text {text} text-anchor="end"><tspan>one</tspan><tspan x="0" dy="9">two'
        f'</tspan></text><text {text} fill="#123456" transform="translate(4,5)">a</text><text {text}> </text></svg>'
    )
    first, second = ElementTree.fromstring(outlined(svg)).iter(f"{{{SVG}}}path")
    assert first.attrib["aria-label"] == "one two"
    assert second.attrib | {"d": ""} == {"aria-label": "a", "fill": "#123456", "transform": "translate(4,5)", "d": ""}


def test_a_character_without_an_outline_is_refused() -> None:
    svg = (
        f'<svg xmlns="{SVG}" width="90" height="90"><text font-family="none of this name" font-size="9">ab</text></svg>'
    )
    with pytest.raises(InputError, match=r"'a' has no outline in any font here: .* save it as \.png"):
        outlined(svg)


def test_a_size_that_is_none_is_refused_and_a_table_has_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown size 'colum': did you mean 'column'"):
        RESULT.plot(size="colum")
    for size in (0, -3, 1.5, float("nan"), True):
        with pytest.raises(InputError, match=r"expected 'column', 'page' or a width in inches from 2 on, found"):
            RESULT.plot(size=size)
    for path in ("x.parquet", "x.html"):
        with pytest.raises(
            InputError, match=r"size and title are of a picture: expected a name ending in \.png \.svg \.pdf"
        ):
            RESULT.save(tmp_path / path, size="column")
    assert not list(tmp_path.iterdir())


def test_words_that_leave_no_room_are_refused() -> None:
    data = RESULT.frame[["position", "operator_norm"]]
    wide = alt.Axis(labelExpr=f"'{'w' * 90}'", labelLimit=0)
    chart = axes.themed(axes.unfolded(axes.chart(data), data).mark_point().encode(y=alt.Y("position:Q", axis=wide)))
    with pytest.raises(
        InputError, match=r"does not fit into 3\.3 inches: its words are \d+ pixels wider; expected a larger"
    ):
        paper.sized(chart, "column")


def test_a_chart_without_its_title() -> None:
    assert "title" in RESULT.plot().to_dict()
    assert "title" not in RESULT.plot(title=False).to_dict()


# What kinds of colour-blind eyes see of a colour (Machado, Oliveira and Fernandes 2009, severity 1.0), in linear RGB.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TOGETHER = (
    ("full", "frozen"),
    ("float32", "bfloat16", "float64"),
    ("right", "wrong"),
    ("helps", "hurts"),
    ("copy-first", "copy-last"),
    ("BOS present", "BOS absent"),
    ("opening", "sequence", "question"),
    ("vectors", "weights"),
)
"""Names that stand in one chart and are told apart by their colour alone, or first of all."""
APART = 10.0
"""Least distance in CIELAB (1976) of two such colours; 2.3 is just seen side by side."""


def lab(colour: str, eye: str | None) -> np.ndarray:
    encoded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = linear if eye is None else np.clip(np.array(BLIND[eye]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    ratio = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    root = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("eye", [None, *BLIND])
@pytest.mark.parametrize("names", TOGETHER, ids="-".join)
def test_colours_of_one_chart_are_told_apart_by_every_eye(names: tuple[str, ...], eye: str | None) -> None:
    seen = [lab(theme.colour(name), eye) for name in names]
    for place, one in enumerate(seen):
        for other in seen[:place]:
            assert np.linalg.norm(one - other) >= APART


def test_the_matrices_keep_white_and_the_colour_space_its_corners() -> None:
    for matrix in BLIND.values():
        assert np.allclose(np.sum(matrix, axis=1), 1, atol=1e-5)
    assert lab("#ffffff", None) == pytest.approx([100, 0, 0], abs=0.01)
    assert lab("#ff0000", None) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)


def test_the_streams_of_a_pdf_are_read_one_by_one() -> None:
    """The fonts inside are no instructions, and are passed over."""
    pdf = bytes(vl_convert.svg_to_pdf(f'<svg xmlns="{SVG}" width="9" height="9"><rect width="4" height="4"/></svg>'))
    assert (
        sum(zlib.decompress(part).endswith(b"Q") for part in re.findall(rb"stream\n(.*?)\nendstream", pdf, re.DOTALL))
        == 1
    )
