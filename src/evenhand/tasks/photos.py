"""What the photo tasks share: one decoded array for all splits, ImageNet's statistics, the same checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.tasks.images import decoded
from evenhand.training.augment import Warp
from evenhand.training.data import Split, Task, checksum, training_weights
from evenhand.training.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, whose weights the models start from
TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Listing:
    """What a dataset's lists say of each image, before any is opened."""

    files: list[Path]
    y: np.ndarray  # (images,) int64
    split: np.ndarray  # (images,) 0 train, 1 validation, 2 test
    attribute: np.ndarray | None = None  # (images,) int64

    def take(self, keep: np.ndarray) -> Listing:
        attribute = None if self.attribute is None else self.attribute[keep]
        return Listing([self.files[row] for row in keep], self.y[keep], self.split[keep], attribute)


def listed(module: Any, options: Mapping[str, str], root: Path | None) -> Listing:
    """What a photo task's lists say of the images it takes, none of which is opened."""
    found = module.listing(root)
    listing: Listing = found[0] if isinstance(found, tuple) else found  # cub also names its classes
    if hasattr(module, "_part"):  # celeba takes a share of its lists
        fraction = options.get("fraction")
        listing = module._part(listing, None if fraction is None else float(fraction))
    return listing


def photo_task(
    name: str,
    listing: Listing,
    *,
    size: int,
    class_names: Sequence[str],
    recipe: Recipe,
    augment: Warp,
    attribute_names: Sequence[str] = (),
    conflicting: frozenset[int] = frozenset(),
    weighted: bool = False,
) -> Task:
    """A task whose splits are rows of one decoded array.

    With `weighted`, validation and test carry weights that restate them in the training groups' proportions.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    _check_classes(name, listing, class_names)
    images = decoded(name, listing.files, size)
    group = None
    if listing.attribute is not None:
        group = torch.from_numpy(listing.y * len(attribute_names) + listing.attribute)
    y, num_groups = torch.from_numpy(listing.y), len(class_names) * len(attribute_names)

    def split(part: int) -> Split:
        rows = torch.from_numpy(np.flatnonzero(listing.split == part))
        weight = None
        if weighted and part != TRAIN:
            assert group is not None
            in_train = torch.from_numpy(listing.split == TRAIN)
            weight = training_weights(group[in_train], group[rows], num_groups)
        return Split(
            images.pixels, y[rows], group=None if group is None else group[rows], weight=weight, rows=rows
        )

    return Task(
        name=name,
        train=split(TRAIN),
        val=split(VAL),
        test=split(TEST),
        class_names=tuple(class_names),
        recipe=recipe,
        group_names=tuple(f"{label}, {attribute}" for label in class_names for attribute in attribute_names),
        conflicting=conflicting,
        mean=MEAN,
        std=STD,
        augment=augment,
        checksum=checksum(images.digest, y, listing.split, *([] if group is None else [group])),
    )


def _check_classes(task: str, listing: Listing, class_names: Sequence[str]) -> None:
    for part, name in ((TRAIN, "training"), (VAL, "validation"), (TEST, "test")):
        counts = np.bincount(listing.y[listing.split == part], minlength=len(class_names))
        if not counts.any():
            raise ValueError(f"the {name} split of {task} is empty; are all of the dataset's files in place?")
        # A class may be too rare for the smaller splits, but one that is never trained on is a mistake.
        if part == TRAIN and not counts.all():
            empty = ", ".join(class_names[label] for label in np.flatnonzero(counts == 0)[:5])
            raise ValueError(f"the training split of {task} has no image of {empty}; are all files in place?")


def class_number(text: str, allowed: Sequence[str], what: str, file: Path, line: int) -> int:
    """Which of the allowed values a field of a list holds."""
    if text not in allowed:
        raise ValueError(
            f"{file}, line {line}: {what} must be one of {', '.join(allowed)}, got {text!r}; fetch it again"
        )
    return list(allowed).index(text)
