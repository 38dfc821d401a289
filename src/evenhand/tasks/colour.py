"""Coloured digits: the colour of a digit is a shortcut to its class for a share p of the samples."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evenhand.tasks.samples import data_rng
from evenhand.training.data import Split, Task, checksum, training_weights
from evenhand.training.recipe import Recipe

RED_GREEN = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def palette(name: str) -> np.ndarray:
    """Ten colours, (10, 3) float64 in [0, 1]: `random42`, `random7` or `hues`.

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
    """Colours that agree with the class for exactly round(p * n) of each class's n samples.

    The rest of a class is spread evenly over the other colours. A larger p keeps a smaller one's aligned
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
    """Colours spread evenly within each class: the sizes of a class's groups differ by at most one."""
    colours = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        colours[members] = rng.permutation(num_colours)[np.arange(len(members)) % num_colours]
    return colours


def paint(images: np.ndarray, colours: np.ndarray, rgb: np.ndarray) -> np.ndarray:
    """Intensity times colour: (samples, height, width) uint8 -> (samples, 3, height, width) uint8."""
    table = np.rint(np.arange(256)[None, None, :] * rgb[:, :, None]).astype(np.uint8)  # (colours, 3, 256)
    painted = np.empty((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    for colour in range(len(rgb)):
        chosen = colours == colour
        for channel in range(3):
            painted[chosen, channel] = table[colour, channel][images[chosen]]
    return painted


@dataclass(frozen=True)
class Grey:
    """Uncoloured digits: images (samples, height, width) uint8 and labels (samples,) int64."""

    images: np.ndarray
    y: np.ndarray

    def take(self, indices: np.ndarray) -> Grey:
        return Grey(self.images[indices], self.y[indices])


def colour_task(
    name: str,
    splits: tuple[Grey, Grey, Grey],
    *,
    p: float,
    rgb: np.ndarray,
    class_names: Sequence[str],
    colour_names: Sequence[str],
    recipe: Recipe,
    every_colour: bool = False,
    mislabelled: float = 0.0,
) -> Task:
    """A task whose training and validation colours follow p, and whose test colours are balanced.

    With `every_colour` each test image appears once in every colour, so that no test group is tiny.
    A share `mislabelled` of the training and validation images has a wrong label.
    """
    if not 0 <= mislabelled < 1:
        raise ValueError(f"mislabelled must be at least 0 and below 1, got {mislabelled}")
    num_colours = len(rgb)
    train, val, test = splits
    streams = [data_rng(part) for part in (1, 2, 3)]
    if every_colour:
        test_colours = np.tile(np.arange(num_colours), len(test.y))
        test = test.take(np.repeat(np.arange(len(test.y)), num_colours))
    else:
        test_colours = balanced_colours(test.y, num_colours, streams[2])

    wrong = data_rng(4)

    def split(grey: Grey, colours: np.ndarray, share: float) -> Split:
        classes = len(class_names)
        other = (grey.y + wrong.integers(1, classes, len(grey.y))) % classes
        y = np.where(wrong.random(len(grey.y)) < share, other, grey.y)
        painted = torch.from_numpy(paint(grey.images, colours, rgb))
        return Split(painted, torch.from_numpy(y), group=torch.from_numpy(y * num_colours + colours))

    trained = split(train, correlated_colours(train.y, num_colours, p, streams[0]), mislabelled)
    validated = split(val, correlated_colours(val.y, num_colours, p, streams[1]), mislabelled)
    tested = split(test, test_colours, 0)
    assert trained.group is not None and tested.group is not None
    num_groups = len(class_names) * num_colours
    weight = training_weights(trained.group, tested.group, num_groups)
    parts = [part for each in (trained, validated, tested) for part in (each.x, each.y, each.group)]
    return Task(
        name=name,
        train=trained,
        val=validated,
        test=Split(tested.x, tested.y, group=tested.group, weight=weight),
        class_names=tuple(class_names),
        recipe=recipe,
        group_names=tuple(f"{label}, {colour}" for label in class_names for colour in colour_names),
        conflicting=frozenset(g for g in range(num_groups) if g // num_colours != g % num_colours),
        checksum=checksum(*parts),  # type: ignore[arg-type]  # all tensors: see split above
    )
