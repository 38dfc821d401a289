"""One's own data: labelled samples of any kind, what they must be, and how they are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.tasks.datasets import DATA_SEED

if TYPE_CHECKING:
    from torch import Tensor

TRAIN, VAL, TEST = 0, 1, 2
PARTS = ("train", "val", "test")
HELD_OUT = 0.15  # of every class, for validation, and as much for the test
MOST_CLASSES = 1000
LEAST = 5  # samples of a class: three to train on, one to validate and one to test with


@dataclass(frozen=True)
class Own:
    """Labelled samples before anything is decoded or trained."""

    kind: str  # "images", "table" or "text"
    ids: list[str]  # what a person calls each sample: a path, or a row's number
    y: np.ndarray  # (samples,) int64
    class_names: tuple[str, ...]  # sorted
    split: np.ndarray  # (samples,) TRAIN, VAL or TEST
    files: list[Path] = field(default_factory=list)  # of images
    frame: Any = None  # of a table: its feature columns, cleaned, a row per sample
    texts: list[str] = field(default_factory=list)
    attribute: np.ndarray | None = None  # (samples,) int64: the group column, for scoring only
    attribute_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out or changed, in sentences
    reading: dict[str, Any] = field(default_factory=dict)  # of a table: header, and which column is seen

    @property
    def group(self) -> np.ndarray | None:
        """Class times attribute, (samples,) int64; None without a group column."""
        return None if self.attribute is None else self.y * len(self.attribute_names) + self.attribute

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(f"{name}, {value}" for name in self.class_names for value in self.attribute_names)

    def rows(self, part: int) -> np.ndarray:
        """Which samples are in this part, ascending."""
        return np.flatnonzero(self.split == part)

    def splits(self, x: Tensor | np.ndarray) -> dict[str, Any]:
        """The three Splits of a Task whose inputs are the rows of `x`, in the order of the samples."""
        import torch

        from evenhand.training.data import Split

        def one(part: int) -> Split:
            rows = self.rows(part)
            group = None if self.group is None else torch.from_numpy(self.group[rows])
            return Split(x, torch.from_numpy(self.y[rows]), group=group, rows=torch.from_numpy(rows))

        return {name: one(part) for part, name in enumerate(PARTS)}


def classes_of(labels: Sequence[str], what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each sample's class as a number, and the classes' names, sorted; refuses what cannot be learned.

    >>> y, names = classes_of(["cat", "dog"] * 5, "the folder")
    >>> y[:3].tolist(), names
    ([0, 1, 0], ('cat', 'dog'))
    """
    found, y, counts = np.unique(np.array(labels, dtype=str), return_inverse=True, return_counts=True)
    names: list[str] = found.tolist()
    if len(names) < 2:
        seen = f"one, {names[0]!r}" if len(names) else "none"
        raise ValueError(
            f"expected at least two classes, but {what} has {seen}; there is nothing to tell apart, so add "
            "samples of another class"
        )
    if len(names) > MOST_CLASSES:
        raise ValueError(
            f"expected at most {MOST_CLASSES:,} classes, but {what} has {len(names):,} "
            f"in {len(y):,} samples; is it an identifier or a quantity? Group its values into classes first"
        )
    if (counts < LEAST).any():
        rare = [f"{names[i]!r} ({counts[i]})" for i in np.flatnonzero(counts < LEAST)[:5]]
        raise ValueError(
            f"expected at least {LEAST} samples of every class, but {what} has fewer of "
            f"{int((counts < LEAST).sum())} of its {len(names)}: {', '.join(rare)}; "
            "add samples, merge rare classes or leave them out"
        )
    return y.reshape(-1).astype(np.int64), tuple(names)


def divided(y: np.ndarray) -> np.ndarray:
    """Every class's samples as 70% training, 15% validation and 15% test; the same on every call.

    >>> np.bincount(divided(np.repeat([0, 1], [100, 10]))).tolist()
    [76, 17, 17]
    """
    split = np.full(len(y), TRAIN, dtype=np.int64)
    rng = np.random.default_rng([DATA_SEED, 21])
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        count = max(round(HELD_OUT * len(members)), 1)
        split[members[:count]] = VAL
        split[members[count : 2 * count]] = TEST
    return split


def completed(y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """A given division into train, val and test, in which a part that is absent is taken from training."""
    split = given.copy()
    train = np.flatnonzero(given == TRAIN)
    fresh = divided(y[train])
    for part in (VAL, TEST):
        if not (given == part).any():
            split[train[fresh == part]] = part
    return split
