"""A picture's text as outlines: an SVG that asks for no font, and looks alike wherever it is opened.

vl-convert writes an SVG whose text names fonts that the reader may not have. The outlines come from vl-convert too: text
that is a clipping path of a PDF it lays out as a path, with the fonts that it found. So every script and every kind of font
has them. What a text said stays beside its outline as an `aria-label`.
Cost: one more drawing of the text alone, some tens of milliseconds.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

import vl_convert

from ostools.ground.errors import InputError

SVG = "http://www.w3.org/2000/svg"
_TEXT = f"{{{SVG}}}text"
_OF_FONTS = ("font", "font-family", "font-size", "font-weight", "font-style", "font-variant")
_OF_PLACE = ("text-anchor", "x", "y", "dx", "dy")
_FAR = 100_000
"""Half the side of the square that text is cut out of, in pixels: wider than any chart."""
_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_CLIPPED = re.compile(
    r"^(?P<path>(?:(?:-?[\d.]+ )*[mlch]\n)+)W\*?\nn\n(?:q\n)*(?:/\w+ (?:cs|gs)\n)*(?P<colour>[\d.]+ [\d.]+ [\d.]+) scn",
    re.MULTILINE,
)
_STEPS = {"m": "m", "l": "l", "c": "c", "h": "z"}
_NOWHERE = "0 0 m\n"
"""With this a PDF's clipping path begins; it draws nothing."""


def outlined(svg: str) -> str:
    """The same picture with every text an outline. Raises `InputError` for a character that no font here has an outline of."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    texts = [element for element in root.iter(_TEXT) if "".join(element.itertext()).strip()]
    for element, path in zip(texts, _outlines(texts), strict=True):
        _replace(element, path)
    for parent in list(root.iter()):
        for element in [child for child in parent if child.tag == _TEXT]:
            parent.remove(element)  # blank ones
    return ElementTree.tostring(root, encoding="unicode")


def _replace(element: Any, path: str) -> None:
    """Turn a text into its outline, in the same place with the same paint."""
    said = " ".join("".join(part.itertext()) for part in element) or element.text
    element.tag = f"{{{SVG}}}path"
    for name in (*_OF_FONTS, *_OF_PLACE):
        element.attrib.pop(name, None)
    for child in list(element):
        element.remove(child)
    element.text = None
    element.attrib |= {"d": path, "aria-label": str(said)}


def _outlines(texts: Sequence[Any]) -> list[str]:
    """The path of each text, about its own origin."""
    if not texts:
        return []
    alone = [_character(element, one) for element in texts for one in dict.fromkeys("".join(element.itertext()))]
    visible = list({_key(one): one for one in alone if unicodedata.category(one.text)[0] in "LNPS"}.values())
    found = _drawn([*texts, *visible])
    for place, one in enumerate(visible, start=len(texts)):
        if place not in found:
            raise InputError(
                f"{one.text!r} has no outline in any font here: expected a chart for .svg without it; save it as .png"
            )
    return [found[place] for place in range(len(texts))]


def _character(element: Any, character: str) -> Any:
    """One character of a text, in the same font."""
    fonts = {name: value for name, value in element.attrib.items() if name in _OF_FONTS}
    alone = ElementTree.Element(_TEXT, fonts)
    alone.text = character
    return alone


def _key(element: Any) -> tuple[str, ...]:
    return (element.text, *(f"{name}={value}" for name, value in sorted(element.attrib.items())))


def _drawn(texts: Sequence[Any]) -> dict[int, str]:
    """By the place of a text its path, where it has one: each cuts a square of its own colour, by which it is known again."""
    root = ElementTree.Element(f"{{{SVG}}}svg", {"width": "100", "height": "100"})
    for place, element in enumerate(texts):
        clip = ElementTree.SubElement(root, f"{{{SVG}}}clipPath", {"id": f"t{place}"})
        words = ElementTree.SubElement(
            clip, _TEXT, {k: v for k, v in element.attrib.items() if k in (*_OF_FONTS, *_OF_PLACE)}
        )
        words.text = element.text
        words.extend(element)
        side = {"x": f"{-_FAR}", "y": f"{-_FAR}", "width": f"{2 * _FAR}", "height": f"{2 * _FAR}"}
        paint = {"fill": f"#{place:06x}", "clip-path": f"url(#t{place})"}
        ElementTree.SubElement(root, f"{{{SVG}}}rect", side | paint)
    pdf = bytes(vl_convert.svg_to_pdf(ElementTree.tostring(root, encoding="unicode")))
    found: dict[int, str] = {}
    for page in _pages(pdf):
        for match in _CLIPPED.finditer(page):
            channels = [round(float(value) * 255) for value in match["colour"].split()]
            found[channels[0] << 16 | channels[1] << 8 | channels[2]] = _as_svg(match["path"])
    return found


def _pages(pdf: bytes) -> Iterator[str]:
    """The drawing instructions of a PDF, which are text; fonts and colour profiles are passed over."""
    for stream in _STREAM.findall(pdf):
        try:
            page = zlib.decompress(stream).decode("ascii")
        except (zlib.error, UnicodeDecodeError):
            continue
        yield page


def _as_svg(path: str) -> str:
    """A PDF's path as an SVG's, in hundredths of a pixel; each step from the end of the last one, which is shorter to write."""
    steps: list[str] = []
    x = y = first_x = first_y = 0
    for line in path.removeprefix(_NOWHERE).splitlines():
        *numbers, step = line.split()
        points = [round(100 * float(number)) for number in numbers]
        steps.append(_STEPS[step] + _joined(point - (y if place % 2 else x) for place, point in enumerate(points)))
        if step == "h":
            x, y = first_x, first_y
        else:
            x, y = points[-2:]
        if step == "m":
            first_x, first_y = x, y
    return "".join(steps)


def _joined(hundredths: Iterable[int]) -> str:
    """Numbers as short as SVG takes them: a minus sign parts them too."""
    words = [f"{number / 100:.2f}".rstrip("0").rstrip(".") for number in hundredths]
    return "".join(word if not place or word.startswith("-") else f" {word}" for place, word in enumerate(words))
