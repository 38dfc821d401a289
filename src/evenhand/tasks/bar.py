"""BAR: photos of six actions, each in its typical place in training and in other places in the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.tasks import datasets, samples
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples, data_rng
from evenhand.training.augment import Warp
from evenhand.training.data import Task

RECIPE = samples.PRETRAINED.replace(epochs=200, batch_size=194, weight_decay=0.0)

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
    """Return the published training and test images. A random fifth of the training images is for validation.

    A random fifth of the training images is for validation.
    """
    return samples.image_task("bar", listing(root), size, recipe=RECIPE, augment=AUGMENT)


def listing(root: Path | None = None) -> Samples:
    """List the images of both folders, sorted by name so that the split depends on nothing else."""
    folder = datasets.find_folder("bar", SOURCE, root, "train")
    if not (folder / "test").is_dir():
        raise datasets.missing("bar", folder / "test")
    train, test = (
        sorted(file for file in (folder / part).glob("[!.]*") if file.suffix.lower() in SUFFIXES)
        for part in ("train", "test")
    )
    split = np.repeat([TRAIN, TEST], [len(train), len(test)])
    split[data_rng(0).permutation(len(train))[len(train) * 4 // 5 :]] = VAL
    files = [*train, *test]
    y = np.array([_label(file) for file in files], dtype=np.int64)
    return Samples(files=files, y=y, class_names=CLASSES, split=split)


def _label(file: Path) -> int:
    name = file.stem.rpartition("_")[0]
    if name not in CLASSES:
        raise ValueError(
            f"{file}: the name before the last underscore must be one of {', '.join(CLASSES)}, got {name!r}"
        )
    return CLASSES.index(name)
