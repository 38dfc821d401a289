"""CelebA: is the hair of a face blond? Perceived gender is the shortcut, and blond men are rare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from evenhand.tasks import archives, photos, source
from evenhand.training.augment import Warp
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(
    model="resnet18",
    weights="pretrained",
    epochs=150,
    batch_size=436,
    optimizer="sgd",
    momentum=0.9,
    lr=1e-3,
    weight_decay=1e-4,
)

SOURCE = source.Source(
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

PAPER = source.Paper(
    num_samples=24_416,
    num_classes=2,
    num_groups=4,
    worst_group_percent=0.83,
    note="blond men are 0.85 % of the full training set, so a random 15 % holds 0.85 ± 0.06 %",
)

FULL_SIZE = 202_599
CONFLICTING = frozenset({3})  # blond men only
AUGMENT = Warp(flip=True)


def load(root: Path | None = None, *, fraction: float | None = None, size: int = 224) -> Task:
    """A share of the published training and validation images, and all test images.

    `fraction` is 0.15 for the full set, as in the paper, and 1 for a folder whose lists are shorter already.
    """
    return photos.photo_task(
        "celeba",
        _part(listing(root), fraction),
        size=size,
        class_names=["not blond", "blond"],
        attribute_names=["female", "male"],
        conflicting=CONFLICTING,
        recipe=RECIPE,
        augment=AUGMENT,
    )


def listing(root: Path | None) -> photos.Listing:
    """Every image of the attribute list with its hair colour, gender and split."""
    folder = archives.folder_with("celeba", SOURCE, root, "img_align_celeba") / "img_align_celeba"
    if (folder / "img_align_celeba").is_dir():  # as Kaggle's archive unpacks
        folder = folder / "img_align_celeba"
    lists = source.data_root(root) / SOURCE.folder
    split_file, split_rows = _table(lists, "list_eval_partition", ["partition"])
    splits = {name: (line, text) for line, name, (text,) in split_rows}
    file, rows = _table(lists, "list_attr_celeba", ["Blond_Hair", "Male"])
    files, numbers = [], []
    for line, name, (blond, male) in rows:
        if name not in splits:
            raise ValueError(
                f"{file}, line {line}: {name} is not in {split_file}; the lists are not of one dataset"
            )
        at, part = splits[name]
        files.append(folder / name)
        numbers.append(
            [
                photos.class_number(blond, ("-1", "1"), "Blond_Hair", file, line),
                photos.class_number(part, ("0", "1", "2"), "the partition", split_file, at),
                photos.class_number(male, ("-1", "1"), "Male", file, line),
            ]
        )
    y, split, attribute = np.array(numbers, dtype=np.int64).reshape(-1, 3).T
    return photos.Listing(files, y, split, attribute)


def _table(folder: Path, name: str, columns: list[str]) -> tuple[Path, Iterator[tuple[int, str, list[str]]]]:
    """A list in its published form or as Kaggle's csv: line number, image name and the wanted columns."""
    file = next(
        (folder / f"{name}{end}" for end in (".txt", ".csv") if (folder / f"{name}{end}").is_file()), None
    )
    if file is None:
        raise source.missing("celeba", folder / f"{name}.txt")
    lines = source.text(file).splitlines()
    rows = source.fields(file, lines) if file.suffix == ".csv" else [line.split() for line in lines]
    start = 1
    if file.suffix == ".csv":
        header = rows[0] if rows else []
    elif name == "list_attr_celeba":  # the number of images, then the names of the attributes
        header, start = ["", *(rows[1] if len(rows) > 1 else [])], 2
        count = rows[0][0] if rows and rows[0] else ""
        if count != str(len(rows) - 2):
            raise ValueError(f"{file} must begin with its number of images, {len(rows) - 2}, got {count!r}")
    else:
        header, start = ["", "partition"], 0
    if not set(columns) <= set(header):
        raise ValueError(f"{file} must have the columns {', '.join(columns)}, got {' '.join(header[:6])} …")
    return file, _rows(file, rows[start:], start + 1, header, [header.index(column) for column in columns])


def _rows(
    file: Path, rows: list[list[str]], first_line: int, header: list[str], wanted: list[int]
) -> Iterator[tuple[int, str, list[str]]]:
    for line, row in enumerate(rows, start=first_line):
        if len(row) != len(header):
            raise ValueError(
                f"{file}, line {line}: expected {len(header)} fields, got {len(row)}; fetch it again"
            )
        yield line, row[0], [row[index] for index in wanted]


def _part(full: photos.Listing, fraction: float | None) -> photos.Listing:
    """A random share of the training and of the validation images; the test images all stay."""
    if fraction is None:
        fraction = 0.15 if len(full.files) == FULL_SIZE else 1.0
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
    keep = [np.flatnonzero(full.split == photos.TEST)]
    for part in (photos.TRAIN, photos.VAL):
        members = np.flatnonzero(full.split == part)
        order = np.random.default_rng([source.DATA_SEED, part]).permutation(members)
        keep.append(order[: round(fraction * len(members))])
    return full.take(np.sort(np.concatenate(keep)))
