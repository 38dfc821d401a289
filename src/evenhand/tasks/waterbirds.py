"""Waterbirds: birds cut out of CUB on backgrounds of land or water; water goes with waterbirds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.tasks import datasets, samples
from evenhand.tasks.samples import Samples, read_columns, read_rows
from evenhand.training.augment import Warp
from evenhand.training.data import Task

RECIPE = samples.PRETRAINED.replace(epochs=300, batch_size=137, weight_decay=1e-2)
HAS_GROUPS = True

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

COLUMNS = {"img_filename": (), "y": ("0", "1"), "split": ("0", "1", "2"), "place": ("0", "1")}


def load(root: Path | None = None, *, size: int = 224) -> Task:
    """Load the published splits; validation and test are weighted by the training groups."""
    settings = {"recipe": RECIPE, "augment": AUGMENT, "weighted": True}
    return samples.image_task("waterbirds", listing(root), size, **settings)


def listing(root: Path | None = None) -> Samples:
    """Return the rows of metadata.csv, whose label 1 is the waterbird and place 1 the water."""
    folder = datasets.find_folder("waterbirds", SOURCE, root, "metadata.csv")
    rows = read_rows(folder / "metadata.csv") or [[]]
    names, *columns = read_columns(folder / "metadata.csv", rows, COLUMNS, rows[0], 1)
    y, split, place = np.array(columns).astype(np.int64)
    return Samples(
        files=[folder / name for name in names],
        y=y,
        class_names=("landbird", "waterbird"),
        split=split,
        attribute=place,
        attribute_names=("land", "water"),
        conflicting=frozenset({1, 2}),  # landbirds on water, waterbirds on land
    )
