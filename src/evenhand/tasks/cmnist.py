"""cMNIST: ten MNIST digits in ten colors; a share p of each digit carries the digit's own color."""

from __future__ import annotations

from pathlib import Path

from evenhand.tasks import colour, datasets
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="cnn", epochs=100, batch_size=2048, optimizer="adam", lr=1e-3, weight_decay=1e-4)

GRIDS = colour.MNIST_GRIDS

SOURCE = colour.MNIST

PAPER = datasets.Paper(
    num_samples=48_000,
    num_classes=10,
    num_groups=100,
    worst_group_percent=0.01,
    shape=(3, 28, 28),
    note="conflicting samples are spread evenly over the nine other colours, N/10 (1-p)/9 = 0.02 % each; "
    "colours drawn one by one would leave the smallest of the 90 groups near 0.01 %",
)


def load(root: Path | None = None, *, p: float = 0.98, palette: str = "random42") -> Task:
    """Return digits of which a share p has the digit's own color and the rest one of the nine others."""
    return colour.ten_colours("cmnist", colour.mnist_splits(root, "cmnist"), palette, p=p, recipe=RECIPE)
