"""PNG pictures made small enough to be stored in a notebook: a palette of 256 colours, and real compression.

vl-convert writes four bytes a pixel and compresses them in haste: 160 to 1,200 kB a chart where a fifth will do.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA, _PALETTE = (8, 6), (8, 3)
_SUB = 1
COLOURS = 256


def reduced(picture: bytes) -> bytes:
    """The same picture with at most 256 colours; as it came where it is not an opaque RGBA picture of vl-convert's kind.

    Colours that agree in their five leading bits are one, their mean; the 256 that most pixels have are kept and the others
    take the nearest. White, and a colour that fills an area, come out as they went in.
    """
    pixels = _pixels(picture)
    if pixels is None:
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
    return _written(index[bins].reshape(pixels.shape[:2]), palette.round().astype(np.uint8))


def size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def _pixels(picture: bytes) -> np.ndarray | None:
    """Height x width x RGBA, of a picture whose every line is filtered by its left neighbour (as vl-convert writes them)."""
    if tuple(picture[24:26]) != _RGBA or picture[28] != 0:
        return None
    width, height = size(picture)
    data = zlib.decompress(b"".join(body for kind, body in _chunks(picture) if kind == b"IDAT"))
    lines = np.frombuffer(data, dtype=np.uint8).reshape(height, 1 + 4 * width)
    if (lines[:, 0] != _SUB).any():
        return None
    pixels = np.cumsum(lines[:, 1:].reshape(height, width, 4), axis=1, dtype=np.uint8)
    return pixels if (pixels[..., 3] == 255).all() else None


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(_SIGNATURE)
    while place < len(picture):
        length = int.from_bytes(picture[place : place + 4])
        yield picture[place + 4 : place + 8], picture[place + 8 : place + 8 + length]
        place += 12 + length


def _written(index: np.ndarray, palette: np.ndarray) -> bytes:
    """A palette picture, one byte a pixel, its lines unfiltered."""
    height, width = index.shape
    lines = np.zeros((height, width + 1), dtype=np.uint8)
    lines[:, 1:] = index
    header = struct.pack(">II", width, height) + bytes((*_PALETTE, 0, 0, 0))
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
