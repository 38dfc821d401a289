"""Colored digits: MNIST from its idx files, and colors that are a shortcut for a share p of each class."""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.tasks import data_root, datasets
from evenhand.tasks.samples import data_rng
from evenhand.training.data import Split, Task, checksum, reweighted
from evenhand.training.recipe import Recipe

# The sha256 of each file's content, unzipped: what decides whether the pixels are MNIST's, however they came.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

MNIST = datasets.Source(
    folder="mnist",
    needs=tuple(f"{name}.gz|{name}" for name in FILES),
    size="12 MB",
    licence="CC BY-SA 3.0",
    url="http://yann.lecun.com/exdb/mnist/",
    layout="mnist/\n" + "\n".join(f"  {name}.gz" for name in FILES),
    sha256=FILES,
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)

MNIST_GRIDS = {
    "erm": {"lr": [1e-3], "weight_decay": [0.0, 1e-5, 1e-4, 1e-2, 1.0]},
    "gdro": {"lr": [1e-3], "weight_decay": [0.0, 1e-4, 1e-2, 1.0]},
}

RED_GREEN = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


@dataclass(frozen=True)
class Grey:
    """Uncolored digits: images (samples, height, width) uint8 and labels (samples,) int64."""

    images: np.ndarray
    y: np.ndarray

    def take(self, indices: np.ndarray) -> Grey:
        return Grey(self.images[indices], self.y[indices])


Splits = tuple[Grey, Grey, Grey]  # training, validation and test


def mnist_splits(root: Path | None, task: str) -> Splits:
    """Return 48,000 training, 12,000 validation and 10,000 test digits; the first two are split at random."""
    train, test = (_read_pair(data_root(root) / MNIST.folder, part, task) for part in ("train", "t10k"))
    order = data_rng(0).permutation(len(train.y))
    end = len(order) * 4 // 5
    return train.take(np.sort(order[:end])), train.take(np.sort(order[end:])), test


def _read_pair(folder: Path, part: str, task: str) -> Grey:
    image_file, images = read_idx(folder, f"{part}-images-idx3-ubyte", task)
    label_file, labels = read_idx(folder, f"{part}-labels-idx1-ubyte", task)
    if len(images) != len(labels):
        raise ValueError(
            f"{image_file} holds {len(images)} images but {label_file} {len(labels)} labels; "
            "they are not of one dataset: fetch both again"
        )
    if len(labels) and labels.max() > 9:
        raise ValueError(
            f"{label_file} must hold the digits 0 to 9, got a label {labels.max()}; fetch it again"
        )
    return Grey(images, labels.astype(np.int64))


def read_idx(folder: Path, name: str, task: str = "mnist") -> tuple[Path, np.ndarray]:
    """Return the file that was read, and its array: (images, rows, columns) or (labels,) uint8."""
    file = datasets.find_file(task, folder, name)
    return file, parse_idx(datasets.content(file), file, num_sizes=3 if "images" in name else 1)


def parse_idx(data: bytes, file: Path, num_sizes: int) -> np.ndarray:
    """Parse the bytes of an idx file: a magic number, the sizes, then one byte per value."""
    start, magic = 4 + 4 * num_sizes, 0x00000800 + num_sizes
    if len(data) < start:
        raise ValueError(f"{file} must begin with {start} bytes of header, got {len(data)}; fetch it again")
    found, *shape = np.frombuffer(data[:start], ">u4").tolist()
    if found != magic:
        raise ValueError(
            f"{file} must begin with the magic number {magic:#010x}, got {found:#010x}; fetch it again"
        )
    expected, count = math.prod(shape), len(data) - start
    if count != expected:
        word = "cut short" if count < expected else "followed by something else"
        raise ValueError(
            f"{file} must hold {expected} values after its header {tuple(shape)}, got {count}: "
            f"it is {word}; fetch it again"
        )
    try:
        return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
    except ValueError as error:  # no values, but sizes that no array has
        raise ValueError(
            f"{file} has a header with impossible sizes, {tuple(shape)}; fetch it again"
        ) from error


def palette(name: str) -> np.ndarray:
    """Return ten colors, (10, 3) float64 in [0, 1]: `random42`, `random7` or `hues`.

    >>> palette("hues")[0].tolist()
    [1.0, 0.0, 0.0]
    """
    if name == "hues":
        return np.array([colorsys.hsv_to_rgb(number / 10, 1.0, 1.0) for number in range(10)])
    seeds = {"random42": 42, "random7": 7}
    if name not in seeds:
        raise ValueError(f"unknown palette {name!r}; known palettes are {', '.join([*seeds, 'hues'])}")
    return np.random.default_rng(seeds[name]).random((10, 3))


def correlated_colours(y: np.ndarray, num_colours: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """Return colors that agree with the class for exactly round(p * n) of each class's n samples.

    The rest of a class is spread evenly over the other colors. A larger p keeps a smaller one's aligned
    samples, so that a sweep over p changes nothing else.

    >>> colours = correlated_colours(np.array([0] * 10 + [1] * 10), 2, 0.9, np.random.default_rng(0))
    >>> int((colours[:10] == 0).sum()), int((colours[10:] == 1).sum())
    (9, 9)
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be a share between 0 and 1, got {p}")
    colours = y.astype(np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        others = rng.permutation(np.delete(np.arange(num_colours), label))
        conflicting = members[round(p * len(members)) :][::-1]
        colours[conflicting] = others[np.arange(len(conflicting)) % len(others)]
    return colours


def balanced_colours(y: np.ndarray, num_colours: int, rng: np.random.Generator) -> np.ndarray:
    """Return colors spread evenly within each class: its group sizes differ by at most one."""
    colours = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        colours[members] = rng.permutation(num_colours)[np.arange(len(members)) % num_colours]
    return colours


def paint(images: np.ndarray, colours: np.ndarray, rgb: np.ndarray) -> np.ndarray:
    """Multiply intensity by color: (samples, height, width) uint8 -> (samples, 3, height, width) uint8."""
    table = np.rint(np.arange(256)[None, None, :] * rgb[:, :, None]).astype(np.uint8)  # (colors, 3, 256)
    painted = np.empty((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    for colour in range(len(rgb)):
        chosen = colours == colour
        for channel in range(3):
            painted[chosen, channel] = table[colour, channel][images[chosen]]
    return painted


def ten_colours(name: str, splits: Splits, palette_name: str, **settings: Any) -> Task:
    """Return the task of ten digits in ten colors; `settings` are those of `colour_task`."""
    numbers = [str(number) for number in range(10)]
    rgb, colours = palette(palette_name), [f"colour {number}" for number in numbers]
    return colour_task(name, splits, rgb, numbers, colours, **settings)


def odd_or_even(name: str, splits: Splits, **settings: Any) -> Task:
    """Return the task of odd and even digits. Red is aligned with odd digits, green with even ones."""
    train, val, test = (Grey(part.images, 1 - part.y % 2) for part in splits)
    names = ["odd", "even"], ["red", "green"]
    return colour_task(name, (train, val, test), RED_GREEN, *names, **settings)


def colour_task(
    name: str,
    splits: Splits,
    rgb: np.ndarray,
    class_names: list[str],
    colour_names: list[str],
    *,
    p: float,
    recipe: Recipe,
    every_colour: bool = False,
    mislabelled: float = 0.0,
) -> Task:
    """Return a task whose training and validation colors follow p, and whose test colors are balanced.

    With `every_colour` each test image appears once in every color, so that no test group is tiny.
    A share `mislabelled` of the training and validation images has a wrong label.
    """
    if not 0 <= mislabelled < 1:
        raise ValueError(f"mislabelled must be at least 0 and below 1, got {mislabelled}")
    num_classes, num_colours = len(class_names), len(rgb)
    num_groups = num_classes * num_colours
    train, val, test = splits
    train_colours = correlated_colours(train.y, num_colours, p, data_rng(1))
    val_colours = correlated_colours(val.y, num_colours, p, data_rng(2))
    if every_colour:
        test_colours = np.tile(np.arange(num_colours), len(test.y))
        test = test.take(np.repeat(np.arange(len(test.y)), num_colours))
    else:
        test_colours = balanced_colours(test.y, num_colours, data_rng(3))
    wrong = data_rng(4)

    def split(grey: Grey, colours: np.ndarray, share: float) -> Split:
        other = (grey.y + wrong.integers(1, num_classes, len(grey.y))) % num_classes
        y = np.where(wrong.random(len(grey.y)) < share, other, grey.y)
        painted = torch.from_numpy(paint(grey.images, colours, rgb))
        return Split(painted, torch.from_numpy(y), group=torch.from_numpy(y * num_colours + colours))

    trained = split(train, train_colours, mislabelled)
    validated = split(val, val_colours, mislabelled)
    tested = split(test, test_colours, 0)
    parts = [part for each in (trained, validated, tested) for part in (each.x, each.y, each.group)]
    return Task(
        name=name,
        train=trained,
        val=validated,
        test=reweighted(tested, trained),
        class_names=tuple(class_names),
        recipe=recipe,
        group_names=tuple(f"{label}, {colour}" for label in class_names for colour in colour_names),
        conflicting=frozenset(g for g in range(num_groups) if g // num_colours != g % num_colours),
        checksum=checksum(*parts),  # type: ignore[arg-type]  # all tensors: see split above
    )
