"""BAR: photos of six actions, each in its typical place in training and in other places in the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.tasks import datasets, photos
from evenhand.training.augment import Warp
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(
    model="resnet18",
    weights="pretrained",
    epochs=200,
    batch_size=194,
    optimizer="sgd",
    momentum=0.9,
    lr=1e-3,
    weight_decay=0.0,
)

SOURCE = datasets.Source(
    folder="bar",
    needs=("train|*/train|*.tar|*.zip", "test|*/test|*.tar|*.zip"),
    size="0.6 GB",
    licence="none stated; images from imSitu, Stanford 40 Actions and the web",
    url="https://github.com/alinlab/BAR",
    layout="bar/\n  train/climbing_0.jpg … pole vaulting_278.jpg …\n  test/climbing_326.jpg …\n"
    "(the class is the file name before its last underscore; a .tar of these folders will do)",
)

PAPER = datasets.Paper(
    num_samples=1_552,
    num_classes=6,
    num_groups=12,
    note="the paper counts each action in its typical and in another place, 12 groups, but no list says "
    "which image is which: worst-class accuracy stands in",
)

CLASSES = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")
SUFFIXES = (".jpg", ".jpeg", ".png")

# The paper says "random scalings" and no more: enlarged about the middle by up to a quarter.
AUGMENT = Warp(scale=(1.0, 1.25), flip=True)


def load(root: Path | None = None, *, size: int = 224) -> Task:
    """The published training and test images; a random fifth of the former is for validation."""
    return photos.photo_task(
        "bar", listing(root), size=size, class_names=CLASSES, recipe=RECIPE, augment=AUGMENT
    )


def listing(root: Path | None) -> photos.Listing:
    """The images of both folders, sorted by name so that the split depends on nothing else."""
    folder = datasets.find_folder("bar", SOURCE, root, "train")
    if not (folder / "test").is_dir():
        raise datasets.missing("bar", folder / "test")
    files, y, split = [], [], []
    for part, name in ((photos.TRAIN, "train"), (photos.TEST, "test")):
        for file in sorted((folder / name).iterdir()):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith("."):
                files.append(file)
                y.append(_label(file))
                split.append(part)
    parts = np.array(split, dtype=np.int64)
    train = np.flatnonzero(parts == photos.TRAIN)
    order = np.random.default_rng([datasets.DATA_SEED, 0]).permutation(train)
    parts[order[len(train) * 4 // 5 :]] = photos.VAL
    return photos.Listing(files, np.array(y, dtype=np.int64), parts)


def _label(file: Path) -> int:
    name = file.stem.rpartition("_")[0]
    if name not in CLASSES:
        raise ValueError(
            f"{file}: the name before the last underscore must be one of {', '.join(CLASSES)}, got {name!r}"
        )
    return CLASSES.index(name)
