"""Even-Odd: odd or even MNIST digits, whose color, red or green, agrees with the class for a share p."""

from __future__ import annotations

from pathlib import Path

from evenhand.tasks import colour, datasets
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="cnn", epochs=100, batch_size=2048, optimizer="adam", lr=1e-3, weight_decay=0.0)

GRIDS = colour.MNIST_GRIDS

SOURCE = colour.MNIST

PAPER = datasets.Paper(
    num_samples=48_000,
    num_classes=2,
    num_groups=4,
    worst_group_percent=0.41,
    shape=(3, 28, 28),
    note="at p = 0.99 exactly 1 % of each class conflicts, 0.49 % of all for the even digits, as the paper's "
    "formula N/2 (1-p) says; colours drawn one by one would give 0.49 ± 0.03 %",
)


def load(root: Path | None = None, *, p: float = 0.99) -> Task:
    """Return digits of which a share p is red if odd and green if even; the test colors are balanced."""
    return colour.odd_or_even("even_odd", colour.mnist_splits(root, "even_odd"), p=p, recipe=RECIPE)
