"""PNG pictures made small enough to be stored in a notebook: a palette of 256 colours, and real compression.

vl-convert writes four bytes a pixel and compresses them in haste: 160 to 1,200 kB a chart where a fifth will do.
"""

from __future__ import annotations

from io import BytesIO

from PIL import Image


def reduced(picture: bytes) -> bytes:
    """The same picture with at most 256 colours, white among them; as it came where it is not an opaque RGBA picture."""
    with Image.open(BytesIO(picture)) as image:
        if image.mode != "RGBA" or image.getchannel("A").getextrema() != (255, 255):
            return picture
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    file = BytesIO()
    palette.save(file, format="PNG", compress_level=9)
    return file.getvalue()


def size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    with Image.open(BytesIO(picture)) as image:
        return image.size
