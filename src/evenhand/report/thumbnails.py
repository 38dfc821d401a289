"""Thumbnails: samples as small pictures inside the page, or as rows of values where they are no images."""

from __future__ import annotations

import base64
import importlib.util
import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.training.data import Split, as_input

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)

SMALL = 32  # up to here PNG is small, and every pixel matters
SIDE = 96  # photographs are reduced to this


def sample(split: Split, index: int) -> npt.NDArray[Any]:
    """The stored input of one sample, before augmentation and normalisation."""
    item = split.x[int(split.rows[index])]
    array: npt.NDArray[Any] = item if isinstance(item, np.ndarray) else as_input(item).numpy()
    return array


def is_image(array: npt.NDArray[Any]) -> bool:
    """Whether a sample looks like (channels, height, width) of a grey or colour picture."""
    return array.ndim == 3 and array.shape[0] in (1, 3, 4) and min(array.shape[1:]) > 1


def data_uris(images: Sequence[npt.NDArray[Any]]) -> list[str]:
    """Every image, (channels, height, width) uint8 or float, as a `data:` address.

    Floats are taken as intensities in [0, 1]; if any lies outside, all are scaled by their common range.
    """
    low, high = 0.0, 1.0
    floats = [image for image in images if image.dtype != np.uint8]
    if floats and (min(i.min() for i in floats) < -1e-3 or max(i.max() for i in floats) > 1 + 1e-3):
        low, high = float(min(i.min() for i in floats)), float(max(i.max() for i in floats))
    uris = []
    for image in images:
        if image.dtype != np.uint8:
            scaled = (image.astype(np.float64) - low) / max(high - low, 1e-12)
            image = np.rint(255 * np.nan_to_num(scaled).clip(0, 1)).astype(np.uint8)
        colour = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, axis=0)
        uris.append(data_uri(np.ascontiguousarray(colour.transpose(1, 2, 0))))
    return uris


def data_uri(pixels: Pixels) -> str:
    """One picture as PNG, or as JPEG where it is large and pillow is there; PNG photographs stay smaller."""
    if max(pixels.shape[:2]) > SMALL:
        if importlib.util.find_spec("PIL") is not None:
            return f"data:image/jpeg;base64,{base64.b64encode(_jpeg(pixels)).decode()}"
        pixels = reduced(pixels, SMALL)
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def png(pixels: Pixels) -> bytes:
    """An 8-bit RGB PNG file, written by hand because pillow is optional."""
    height, width, _ = pixels.shape
    # Filter 1 stores differences to the left neighbour, which compress better than the values.
    left = np.pad(pixels, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    rows = np.concatenate([np.ones((height, 1), np.uint8), (pixels - left).reshape(height, -1)], axis=1)
    plain = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    body = min((zlib.compress(each.tobytes(), 9) for each in (plain, rows)), key=len)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def reduced(pixels: Pixels, side: int) -> Pixels:
    """The picture with its longer side at most `side`, each pixel the mean of the area it covers."""
    height, width, _ = pixels.shape
    scale = min(1.0, side / max(height, width))
    if scale == 1.0:
        return pixels
    rows, columns = (
        _means(size, max(1, round(size * scale)))  # (new, old) matrices of area shares
        for size in (height, width)
    )
    mixed = np.einsum("ih,hwc,jw->ijc", rows, pixels.astype(np.float64), columns, optimize=True)
    small: Pixels = np.rint(mixed).clip(0, 255).astype(np.uint8)
    return small


def _means(old: int, new: int) -> npt.NDArray[np.float64]:
    edges = np.linspace(0, old, new + 1)
    begin = np.maximum(edges[:-1, None], np.arange(old)[None])
    end = np.minimum(edges[1:, None], np.arange(1, old + 1)[None])
    share = (end - begin).clip(min=0)
    normalised: npt.NDArray[np.float64] = share / share.sum(1, keepdims=True)
    return normalised


def _jpeg(pixels: Pixels) -> bytes:
    """A JPEG file of the picture, its longer side at most SIDE."""
    from PIL import Image

    image, buffer = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
