"""Odd or even small digits in red and green, from scikit-learn's bundled 8x8 images; needs no download."""

from __future__ import annotations

from pathlib import Path

from evenhand.tasks import colour, digits
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(batch_size=64, epochs=40, check_every=1)

GRIDS = digits.GRIDS

SOURCE = None  # nothing to fetch


def load(root: Path | None = None, *, p: float = 0.97) -> Task:
    """1,797 digits; a share p of the odd ones is red and of the even ones green."""
    train, val, test = (colour.Grey(part.images, 1 - part.y % 2) for part in digits.splits())
    return colour.colour_task(
        "digits_even_odd",
        (train, val, test),
        p=p,
        rgb=colour.RED_GREEN,
        class_names=["odd", "even"],
        colour_names=["red", "green"],
        recipe=RECIPE,
        every_colour=True,
    )
