"""PACS: is an animal in the picture? Animals are mostly drawn, everything else is mostly natural."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from evenhand.tasks import datasets, samples
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples, data_rng
from evenhand.training.augment import Warp
from evenhand.training.data import Task, reweighted

RECIPE = samples.PRETRAINED.replace(
    model="mobilenet_v2", epochs=100, batch_size=128, weight_decay=1e-4, keep="best"
)

SOURCE = datasets.Source(
    folder="pacs",
    needs=("photo|*/photo|*.tar|*.zip",),
    size="0.2 GB",
    licence="none stated; research use",
    url="https://domaingeneralization.github.io",
    layout="pacs/\n  photo/dog/*.jpg … photo/person/*.jpg\n  art_painting/…\n  cartoon/…\n  sketch/…\n"
    "(or an archive of these folders)",
)

STYLES = {"photo": 0, "art_painting": 0, "cartoon": 1, "sketch": 1}  # 0: natural, 1: drawn
# A person is no animal here.
OBJECTS = {"dog": 1, "elephant": 1, "giraffe": 1, "horse": 1, "guitar": 0, "house": 0, "person": 0}
ALIGNED = {0: 1_100, 3: 2_400}  # training images of natural others and of drawn animals
TESTED = 400  # test images of every group
AUGMENT = Warp(flip=True)


def load(root: Path | None = None, *, p: float = 0.95, size: int = 128) -> Task:
    """Load images of which a share p has its class's style in training and validation. Test groups are even.

    Test groups are even.
    """
    task = samples.image_task("pacs", listing(root, p=p), size, recipe=RECIPE, augment=AUGMENT)
    return dataclasses.replace(task, test=reweighted(task.test, task.train))


def listing(root: Path | None = None, *, p: float = 0.95) -> Samples:
    """List the images drawn for each split. A larger p leaves out images of a smaller one and adds none."""
    if not 0.5 <= p < 1:
        raise ValueError(f"p must be at least 0.5 and below 1, got {p}")
    every = _every(root)
    assert every.group is not None
    split = np.full(len(every.y), -1)
    for group in range(4):
        aligned = ALIGNED[group if group in ALIGNED else group ^ 1]  # of the same class
        train = aligned if group in ALIGNED else round(aligned * (1 - p) / p)
        val = round(train / 4)
        members = data_rng(40 + group).permutation(np.flatnonzero(every.group == group))
        if TESTED + train + val > len(members):
            raise ValueError(
                f"pacs with p={p} needs {TESTED + train + val:,} images of '{every.group_names[group]}', "
                f"but there are {len(members):,}; all 9,991 images suffice for a p of 0.67 and more"
            )
        split[members[:TESTED]] = TEST
        split[members[TESTED : TESTED + train]] = TRAIN
        split[members[len(members) - val :]] = VAL
    return dataclasses.replace(every, split=split).take(np.flatnonzero(split >= 0))


def _every(root: Path | None) -> Samples:
    """List all images, sorted by style, object and name, so that a draw depends on nothing else."""
    folder = datasets.find_folder("pacs", SOURCE, root, "photo")
    files, y, attribute = [], [], []
    for style, drawn in STYLES.items():
        for name, animal in OBJECTS.items():
            if not (folder / style / name).is_dir():
                raise datasets.missing("pacs", folder / style / name)
            listed = (folder / style / name).glob("[!.]*")
            found = sorted(file for file in listed if file.suffix in samples.IMAGE_SUFFIXES)
            files += found
            y += [animal] * len(found)
            attribute += [drawn] * len(found)
    return Samples(
        files=files,
        y=np.array(y, dtype=np.int64),
        class_names=("other", "animal"),
        split=np.zeros(len(y), dtype=np.int64),
        attribute=np.array(attribute, dtype=np.int64),
        attribute_names=("natural", "drawn"),
        conflicting=frozenset({1, 2}),  # drawn others, natural animals
    )
