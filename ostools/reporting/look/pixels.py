"""PNG pictures made small enough to be stored in a notebook: a palette of 256 colours, and real compression.

vl-convert writes four bytes a pixel and compresses them in haste: 160 to 1,200 kB a chart where a fifth will do.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

COLOURS = 256


def reduced(picture: bytes) -> bytes:
    """The same picture with at most 256 colours; as it came where it is not an opaque RGBA picture.

    Colours that agree in their five leading bits are one, their mean; the 256 that most pixels have are kept and the others
    take the nearest. White, and a colour that fills an area, come out as they went in: Pillow's own palettes move them.
    """
    with Image.open(BytesIO(picture)) as image:
        pixels = np.asarray(image)
        if image.mode != "RGBA" or (pixels[..., 3] != 255).any():
            return picture
    red, green, blue = (pixels[..., channel].astype(np.intp) >> 3 for channel in range(3))
    bins = (red << 10 | green << 5 | blue).ravel()
    counts = np.bincount(bins)
    used = np.flatnonzero(counts)
    colours = np.stack(
        [np.bincount(bins, weights=pixels[..., channel].ravel())[used] / counts[used] for channel in range(3)], axis=1
    )
    palette = colours[np.argsort(-counts[used], kind="stable")[:COLOURS]]
    nearest = ((colours[:, None] - palette) ** 2).sum(-1).argmin(1)
    index = np.zeros(len(counts), dtype=np.uint8)
    index[used] = nearest
    written = Image.fromarray(index[bins].reshape(pixels.shape[:2]), mode="P")
    written.putpalette(palette.round().astype(np.uint8).tobytes())
    file = BytesIO()
    written.save(file, format="PNG", compress_level=9)
    return file.getvalue()


def size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    with Image.open(BytesIO(picture)) as image:
        return image.size
