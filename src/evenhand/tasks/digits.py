"""Ten small digits in ten colors, from scikit-learn's bundled 8x8 images; needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evenhand.tasks import colour
from evenhand.tasks.samples import data_rng
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

# Checked every five epochs, as the paper's tasks are. With a check in every epoch, ERM stops after epoch 6,
# while it still relies on the color alone.
RECIPE = Recipe(batch_size=64, epochs=40)

# Two CPU cores finish this search in minutes, so that a bench can be shown; the paper's grids are larger.
GRIDS: dict[str, dict[str, list[Any]]] = {
    "erm": {"lr": [1e-3], "weight_decay": [0.0, 1e-2]},
    "gdro": {"lr": [1e-3], "weight_decay": [0.0, 1e-2]},
    "lff": {"q": [0.05, 0.5]},
    "jtt": {"identifier_epochs": [1, 5], "upweight": [5, "ratio"]},
    "masktune": {"threshold": [1.0, 2.0, 3.0]},
}

SOURCE = None  # nothing to fetch


def load(
    root: Path | None = None, *, p: float = 0.9, palette: str = "random42", mislabelled: float = 0.0
) -> Task:
    """Return 1,797 digits; a share p of each class carries the class's own color.

    `mislabelled`: the share of training and validation images with a wrong label.
    """
    settings = {"p": p, "mislabelled": mislabelled, "every_colour": True}
    return colour.ten_colours("digits", splits(), palette, recipe=RECIPE, **settings)


def splits() -> colour.Splits:
    """Split the digits into 60 % training, 15 % validation and 25 % test images, stratified by class."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # intensities come as 0..16
    grey = colour.Grey(images, bunch.target.astype(np.int64))
    rng = data_rng(0)
    chosen: list[list[np.ndarray]] = [[], [], []]
    for digit in range(10):
        members = rng.permutation(np.flatnonzero(grey.y == digit))
        ends = [round(0.60 * len(members)), round(0.75 * len(members))]
        for part, rows in zip(chosen, np.split(members, ends), strict=True):
            part.append(rows)
    train, val, test = (grey.take(np.sort(np.concatenate(part))) for part in chosen)
    return train, val, test
