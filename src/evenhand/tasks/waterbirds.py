"""Waterbirds: birds cut out of CUB on backgrounds of land or water; water goes with waterbirds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.tasks import archives, photos, source
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

SOURCE = source.Source(
    folder="waterbirds",
    needs=("metadata.csv|*/metadata.csv|*.tar.gz|*.tar",),
    size="0.5 GB",
    licence="none stated; made of CUB-200-2011 and Places, both for non-commercial research",
    url="https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz",
    layout="waterbirds/\n  metadata.csv\n  001.Black_footed_Albatross/*.jpg\n  …\n"
    "(or the archive itself: waterbirds/waterbird_complete95_forest2water2.tar.gz)",
)

PAPER = source.Paper(num_samples=4_795, num_classes=2, num_groups=4, worst_group_percent=1.17)

# The crop of the dataset's authors; the paper says no more than "random croppings".
AUGMENT = Warp(crop=(0.7, 1.0), ratio=(3 / 4, 4 / 3), flip=True)

CONFLICTING = frozenset({1, 2})  # landbirds on water, waterbirds on land
COLUMNS = ("img_filename", "y", "split", "place")


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
    folder = archives.folder_with("waterbirds", SOURCE, root, "metadata.csv")
    file = folder / "metadata.csv"
    files, numbers = [], []
    header, *rows = source.fields(file, source.text(file).splitlines()) or [[]]
    lacking = [column for column in COLUMNS if column not in header]
    if lacking:
        raise ValueError(
            f"{file} must have the columns {', '.join(COLUMNS)}, but has no {', '.join(lacking)}; "
            "fetch it again"
        )
    allowed = {"y": ("0", "1"), "split": ("0", "1", "2"), "place": ("0", "1")}
    for line, values in enumerate(rows, start=2):
        if len(values) != len(header):
            raise ValueError(
                f"{file}, line {line}: expected {len(header)} fields, got {len(values)}; fetch it again"
            )
        row = dict(zip(header, values, strict=True))
        files.append(folder / row["img_filename"])
        numbers.append([photos.class_number(row[key], allowed[key], key, file, line) for key in allowed])
    y, split, place = np.array(numbers, dtype=np.int64).reshape(-1, 3).T
    return photos.Listing(files, y, split, place)
