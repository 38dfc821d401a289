"""Waterbirds: birds cut out of CUB on backgrounds of land or water; water goes with waterbirds."""

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
    epochs=300,
    batch_size=137,
    optimizer="sgd",
    momentum=0.9,
    lr=1e-3,
    weight_decay=1e-2,
)

SOURCE = datasets.Source(
    folder="waterbirds",
    needs=("metadata.csv|*/metadata.csv|*.tar.gz|*.tar",),
    size="0.5 GB",
    licence="none stated; made of CUB-200-2011 and Places, both for non-commercial research",
    url="https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz",
    layout="waterbirds/\n  metadata.csv\n  001.Black_footed_Albatross/*.jpg\n  …\n"
    "(or the archive itself: waterbirds/waterbird_complete95_forest2water2.tar.gz)",
)

PAPER = datasets.Paper(num_samples=4_795, num_classes=2, num_groups=4, worst_group_percent=1.17)

# The crop of the dataset's authors; the paper says no more than "random croppings".
AUGMENT = Warp(crop=(0.7, 1.0), ratio=(3 / 4, 4 / 3), flip=True)

CONFLICTING = frozenset({1, 2})  # landbirds on water, waterbirds on land
COLUMNS = {"img_filename": (), "y": ("0", "1"), "split": ("0", "1", "2"), "place": ("0", "1")}


def load(root: Path | None = None, *, size: int = 224) -> Task:
    """The published splits; validation and test are weighted by the training groups."""
    return photos.photo_task(
        "waterbirds",
        listing(root),
        size=size,
        class_names=["landbird", "waterbird"],
        attribute_names=["land", "water"],
        conflicting=CONFLICTING,
        recipe=RECIPE,
        augment=AUGMENT,
        weighted=True,
    )


def listing(root: Path | None) -> photos.Listing:
    """The rows of metadata.csv, whose label 1 is the waterbird and place 1 the water."""
    folder = datasets.find_folder("waterbirds", SOURCE, root, "metadata.csv")
    rows = datasets.read_rows(folder / "metadata.csv") or [[]]
    names, *columns = datasets.read_columns(folder / "metadata.csv", rows, COLUMNS, rows[0], 1)
    y, split, place = np.array(columns).astype(np.int64)
    return photos.Listing([folder / name for name in names], y, split, place)
