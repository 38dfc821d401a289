"""MNIST from its four idx files, gzipped or not, with every way in which they can be wrong explained."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from evenhand.tasks import data_root, datasets
from evenhand.tasks.colour import Grey
from evenhand.tasks.samples import data_rng

FOLDER = "mnist"
IMAGES, LABELS = 0x00000803, 0x00000801  # unsigned bytes in three dimensions and in one


# The sha256 of each file's content, unzipped: what decides whether the pixels are MNIST's, however they came.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

SOURCE = datasets.Source(
    folder=FOLDER,
    needs=tuple(f"{name}.gz|{name}" for name in FILES),
    size="12 MB",
    licence="CC BY-SA 3.0",
    url="http://yann.lecun.com/exdb/mnist/",
    layout="mnist/\n" + "\n".join(f"  {name}.gz" for name in FILES),
    sha256=FILES,
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)


def splits(root: Path | None, task: str) -> tuple[Grey, Grey, Grey]:
    """48,000 training, 12,000 validation and 10,000 test digits; the first two are divided at random."""
    folder = data_root(root) / FOLDER
    train = Grey(*_pair(folder, "train", task))
    test = Grey(*_pair(folder, "t10k", task))
    order = data_rng(0).permutation(len(train.y))
    end = len(order) * 4 // 5
    return train.take(np.sort(order[:end])), train.take(np.sort(order[end:])), test


def _pair(folder: Path, part: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    image_file, images = read(folder, f"{part}-images-idx3-ubyte", task)
    label_file, labels = read(folder, f"{part}-labels-idx1-ubyte", task)
    if len(images) != len(labels):
        raise ValueError(
            f"{image_file} holds {len(images)} images but {label_file} {len(labels)} labels; "
            "they are not of one dataset: fetch both again"
        )
    if len(labels) and labels.max() > 9:
        raise ValueError(
            f"{label_file} must hold the digits 0 to 9, got a label {labels.max()}; fetch it again"
        )
    return images, labels.astype(np.int64)


def read(folder: Path, name: str, task: str = "mnist") -> tuple[Path, np.ndarray]:
    """The file that was read, and its array: (images, rows, columns) or (labels,) uint8."""
    file = datasets.find_file(task, folder, name)
    return file, parse(datasets.content(file), file, IMAGES if "images" in name else LABELS)


def parse(data: bytes, file: Path, magic: int) -> np.ndarray:
    """The array in the bytes of an idx file: a magic number, the sizes, then one byte per value."""
    num_sizes = magic & 0xFF
    start = 4 + 4 * num_sizes
    if len(data) < start:
        raise ValueError(f"{file} must begin with {start} bytes of header, got {len(data)}; fetch it again")
    found = int.from_bytes(data[:4], "big")
    if found != magic:
        raise ValueError(
            f"{file} must begin with the magic number {magic:#010x}, got {found:#010x}; fetch it again"
        )
    shape = tuple(int.from_bytes(data[4 * i : 4 * i + 4], "big") for i in range(1, num_sizes + 1))
    expected = math.prod(shape)  # of Python's integers, which do not overflow
    if len(data) - start != expected:
        word = "cut short" if len(data) - start < expected else "followed by something else"
        raise ValueError(
            f"{file} must hold {expected} values after its header {shape}, got {len(data) - start}: "
            f"it is {word}; fetch it again"
        )
    try:
        return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
    except ValueError as error:  # no values, but sizes that no array has
        raise ValueError(f"{file} has a header with impossible sizes, {shape}; fetch it again") from error


def written(array: np.ndarray) -> bytes:
    """The bytes of an idx file that holds this uint8 array.

    >>> parse(written(np.zeros((2, 3, 3), np.uint8)), Path("x"), IMAGES).shape
    (2, 3, 3)
    """
    header = (0x00000800 + array.ndim).to_bytes(4, "big")
    return header + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()
