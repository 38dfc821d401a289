"""Odd or even small digits in red and green, from scikit-learn's bundled 8x8 images; needs no download."""

from __future__ import annotations

from pathlib import Path

from evenhand.tasks import colour, digits
from evenhand.training.data import Task

RECIPE = digits.RECIPE

GRIDS = digits.GRIDS

SOURCE = None  # nothing to fetch


def load(root: Path | None = None, *, p: float = 0.97) -> Task:
    """Return 1,797 digits; a share p of the odd ones is red and of the even ones green."""
    return colour.odd_or_even("digits_even_odd", digits.splits(), p=p, recipe=RECIPE, every_colour=True)
