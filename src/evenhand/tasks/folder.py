"""A folder of your own images: one folder for each class, or train, val and test folders of these."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from evenhand.tasks import data_root
from evenhand.tasks.samples import (
    IMAGE_SUFFIXES,
    TEST,
    TRAIN,
    VAL,
    Samples,
    completed_split,
    encode_classes,
    find_images,
    image_task,
    left_out,
    stratified_split,
)
from evenhand.training.augment import Warp
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="cnn", epochs=40, batch_size=64, check_every=1)
PART_NAMES = {"train": TRAIN, "training": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST}
FLIP = Warp(flip=True)


def load(root: Path | None = None, *, path: str = "", size: int = 32) -> Task:
    """Load the images under `path` as squares of `size` pixels; `path` is relative to the data folder."""
    place = located("folder", root, path)
    data = read_folder(place)
    for note in data.notes:
        warnings.warn(f"{place}: {note}", stacklevel=2)
    return task(data, size=size)


def listing(root: Path | None = None, *, path: str = "") -> Samples:
    """List the images under `path`, without opening any of them."""
    return read_folder(located("folder", root, path))


def located(name: str, root: Path | None, path: str) -> Path:
    """Return the path of the user's own data: `path` itself, or `path` below the data folder."""
    if not path and root is None:
        raise ValueError(f"the task {name} needs to know where your data are: {name}:path=…")
    return data_root(root) / path if path else Path(str(root))


def read_folder(folder: Path) -> Samples:
    """List the images of every class folder, found recursively and sorted by their paths."""
    if not folder.is_dir():
        raise ValueError(f"expected a folder of class folders with images, but there is no folder {folder}")
    folders = _subfolders(folder)
    named = {each.name.lower() for each in folders}
    parts: list[tuple[Path, int]] = [(folder, TRAIN)]
    divided = "train" in named and named <= PART_NAMES.keys() and len(named) > 1
    if divided:
        parts = [(each, PART_NAMES[each.name.lower()]) for each in folders]
    files, labels, split, others = [], [], [], Counter[str]()
    for place, part in parts:
        for kind in _subfolders(place):
            found, rest = find_images(kind)
            others += rest
            files += found
            labels += [kind.name] * len(found)
            split += [part] * len(found)
    if not files:
        raise ValueError(_nothing(folder))
    note = left_out(others)
    y, class_names = encode_classes(labels, f"the folder {folder}")
    given = np.array(split, dtype=np.int64)
    if divided:
        _check_trained(y, given, class_names, folder)
    return Samples(
        ids=[str(file.relative_to(folder)) for file in files],
        y=y,
        class_names=class_names,
        split=completed_split(y, given) if divided else stratified_split(y),
        files=files,
        notes=(note,) if note else (),
    )


def _check_trained(y: np.ndarray, given: np.ndarray, class_names: tuple[str, ...], folder: Path) -> None:
    """Check that every class has enough training samples, also after val or test is split off."""
    counts = np.bincount(y[given == TRAIN], minlength=len(class_names))
    taken = sum(not (given == part).any() for part in (VAL, TEST))
    needed = 3 + taken  # as samples.LEAST: three to train on
    rare = [f"{class_names[i]!r} ({counts[i]})" for i in np.flatnonzero(counts < needed)]
    if rare:
        raise ValueError(
            f"expected at least {needed} images of every class in the train folder of {folder}, but it has "
            f"fewer of {', '.join(rare[:5])}; add images to train, or remove the class from val and test"
        )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _nothing(folder: Path) -> str:
    loose, others = find_images(folder)
    expected = f"expected one folder for each class, with images in it ({', '.join(IMAGE_SUFFIXES)})"
    if loose:
        return (
            f"{expected}, but the {len(loose)} images of {folder} lie in no class folder; "
            "sort them into folders, or give a table with --image and --label"
        )
    note = f" ({left_out(others)})" if others else ""
    return f"{expected}, but {folder} holds no images{note}; put them there or name another folder"


def image_files(paths: list[str], table: Path, column: str) -> list[Path]:
    """Return the paths of the listed images: absolute, or relative to the table's folder."""
    files = [Path(path) if Path(path).is_absolute() else table.parent / path for path in paths]
    absent = [file for file in files if not file.is_file()]
    if absent:
        raise ValueError(
            f"expected an image for every row, but {len(absent):,} of {len(files):,} paths in the column "
            f"{column!r} lead nowhere, the first being {absent[0]}; paths start at the table's own folder"
        )
    return files


def task(data: Samples, *, size: int, name: str = "folder") -> Task:
    """Return decoded images as a Task for a small network."""
    return image_task(name, data, size, *data.class_names, recipe=RECIPE)
