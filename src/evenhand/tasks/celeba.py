"""CelebA: is the hair of a face blond? Perceived gender is the shortcut, and blond men are rare.

`celeba:target=Big_Nose,attribute=Male` asks for another attribute, with another one as its shortcut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.tasks import data_root, datasets, samples
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples, data_rng, rare_cells, read_columns, read_rows
from evenhand.training.augment import Warp
from evenhand.training.data import Task

RECIPE = samples.PRETRAINED.replace(epochs=150, batch_size=436, weight_decay=1e-4)
HAS_GROUPS = True

SOURCE = datasets.Source(
    folder="celeba",
    needs=(
        "list_attr_celeba.txt|list_attr_celeba.csv",
        "list_eval_partition.txt|list_eval_partition.csv",
        "img_align_celeba|*/img_align_celeba|*.zip|*.tar",
    ),
    size="1.4 GB",
    licence="non-commercial research only",
    url="http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    layout="celeba/\n  list_attr_celeba.txt\n  list_eval_partition.txt\n  img_align_celeba/000001.jpg …\n"
    "(or the archive itself: celeba/img_align_celeba.zip; Kaggle's .csv lists will do too)",
)

PAPER = datasets.Paper(
    num_samples=24_416,
    num_classes=2,
    num_groups=4,
    worst_group_percent=0.83,
    note="blond men are 0.85 % of the full training set, so a random 15 % holds 0.85 ± 0.06 %",
)

FULL_SIZE = 202_599
NAMES = {"Blond_Hair": ("not blond", "blond"), "Male": ("female", "male")}
AUGMENT = Warp(flip=True)


def load(
    root: Path | None = None,
    *,
    fraction: float | None = None,
    size: int = 224,
    target: str = "Blond_Hair",
    attribute: str = "Male",
) -> Task:
    """Return a share of the published training and validation images, and all test images.

    fraction: 0.15 for the full set, as in the paper, and 1 for a folder whose lists are shorter already.
    target: The attribute that is the class, one of CelebA's 40.
    attribute: The attribute that is the shortcut.
    """
    data = listing(root, fraction=fraction, target=target, attribute=attribute)
    return samples.image_task("celeba", data, size, recipe=RECIPE, augment=AUGMENT)


def listing(
    root: Path | None = None,
    *,
    fraction: float | None = None,
    target: str = "Blond_Hair",
    attribute: str = "Male",
) -> Samples:
    """Return the images of the attribute list with the two attributes and the split."""
    if target == attribute:
        raise ValueError(f"target and attribute must be two of CelebA's attributes, got {target!r} twice")
    folder = datasets.find_folder("celeba", SOURCE, root, "img_align_celeba") / "img_align_celeba"
    if (folder / "img_align_celeba").is_dir():  # as Kaggle's archive unpacks
        folder = folder / "img_align_celeba"
    signs = ("-1", "1")
    file, names, *columns = _columns(root, "list_attr_celeba", {target: signs, attribute: signs})
    y, other = (np.array([text == "1" for text in column], dtype=np.int64) for column in columns)
    split_file, others, parts = _columns(root, "list_eval_partition", {"partition": ("0", "1", "2")})
    splits = dict(zip(others, parts, strict=True))
    for name in names:
        if name not in splits:
            raise ValueError(f"{file}: {name} is not in {split_file}; the lists are not of one dataset")
    every = Samples(
        files=[folder / name for name in names],
        y=y,
        class_names=_names(target),
        split=np.array([splits[name] for name in names], dtype=np.int64),
        attribute=other,
        attribute_names=_names(attribute),
    )
    if fraction is None:
        fraction = 0.15 if len(names) == FULL_SIZE else 1.0
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
    keep = [every.rows(TEST)]
    for part in (TRAIN, VAL):
        order = data_rng(part).permutation(every.rows(part))
        keep.append(order[: round(fraction * len(order))])
    chosen = every.take(np.sort(np.concatenate(keep)))
    paper = (target, attribute) == ("Blond_Hair", "Male")  # which counts blond men only
    return replace(chosen, conflicting=frozenset({3}) if paper else rare_cells(chosen))


def _names(attribute: str) -> tuple[str, str]:
    plain = attribute.replace("_", " ").lower()
    return NAMES.get(attribute, (f"not {plain}", plain))


def _columns(root: Path | None, name: str, wanted: dict[str, Sequence[str]]) -> tuple[Any, ...]:
    """Read the file, image names and wanted columns of a list, in its published form or as Kaggle's csv."""
    folder = data_root(root) / SOURCE.folder
    file = next((f for end in ("txt", "csv") if (f := folder / f"{name}.{end}").is_file()), None)
    if file is None:
        raise datasets.missing("celeba", folder / f"{name}.txt")
    rows = read_rows(file) or [[]]
    if file.suffix == ".csv":
        header, start = rows[0][1:], 1
    elif name == "list_eval_partition":
        header, start = ["partition"], 0
    else:  # the number of images, then the names of the attributes
        header, start = rows[1] if len(rows) > 1 else [], 2
        count = next(iter(rows[0]), "")
        if count != str(len(rows) - 2):
            raise ValueError(f"{file} must begin with its number of images, {len(rows) - 2}, got {count!r}")
    return file, *read_columns(file, rows, {"": (), **wanted}, ["", *header], start)
