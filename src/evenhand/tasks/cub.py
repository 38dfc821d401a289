"""CUB-200-2011: two hundred kinds of birds, a control task without a known shortcut."""

from __future__ import annotations

import pickletools
from pathlib import Path

import numpy as np

from evenhand.tasks import data_root, datasets, samples
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples, data_rng, read_columns, read_rows
from evenhand.training.augment import Warp
from evenhand.training.data import Task

RECIPE = samples.PRETRAINED.replace(epochs=300, batch_size=128, lr=1e-2, weight_decay=1e-4)

GRIDS = {
    "erm": {"lr": [1e-2, 1e-3, 1e-4], "weight_decay": [0.0, 1e-4, 1e-2, 1.0]},
    "jtt": {"identifier_epochs": [10, 25, 50], "upweight": [10, 25]},
}

SOURCE = datasets.Source(
    folder="cub",
    needs=("images.txt|*/images.txt|*.tgz|*.tar.gz",),
    size="1.2 GB",
    licence="non-commercial research and education only",
    url="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    layout="cub/\n  CUB_200_2011/\n    images.txt, image_class_labels.txt, train_test_split.txt\n"
    "    classes.txt\n    images/001.Black_footed_Albatross/*.jpg …\n  train.pkl, val.pkl, test.pkl\n"
    "(the .pkl files are the splits of Concept Bottleneck Models, and optional;\n"
    "instead of the folder, its archive will do: cub/CUB_200_2011.tgz)",
)

PAPER = datasets.Paper(
    num_samples=4_796,
    num_classes=200,
    note="the paper's table says 224 pixels, its text 299; 224 here, and size=299 is an option",
)

# As in Concept Bottleneck Models, whose crop the paper takes over; the color jitter there is not mentioned.
AUGMENT = Warp(crop=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=True)

LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def load(root: Path | None = None, *, size: int = 224) -> Task:
    """Load CUB with the splits of Concept Bottleneck Models, or else a random fifth for validation."""
    return samples.image_task("cub", listing(root), size, recipe=RECIPE, augment=AUGMENT)


def listing(root: Path | None = None) -> Samples:
    """List the images of CUB's own lists with their classes and split."""
    folder = datasets.find_folder("cub", SOURCE, root, "images.txt")
    paths, labels, official, classes = (_pairs(folder / name) for name in LISTS)
    positions = {key: number for number, key in enumerate(classes)}
    for key in paths:
        if labels.get(key) not in positions:
            raise ValueError(
                f"{folder / LISTS[1]}: image {key} must have one of the {len(classes)} classes in "
                f"classes.txt, got {labels.get(key)!r}"
            )
    names = list(paths.values())
    split = _published_split(root, names)
    if split is None:
        split = _random_split(folder / LISTS[2], [official.get(key) for key in paths])
    every = Samples(
        files=[folder / "images" / name for name in names],
        y=np.array([positions[labels[key]] for key in paths], dtype=np.int64),
        class_names=tuple(name.partition(".")[2] or name for name in classes.values()),
        split=split,
    )
    return every.take(np.flatnonzero(split >= 0))


def _pairs(file: Path) -> dict[str, str]:
    """Read a list with one `key value` pair on each line."""
    if not file.is_file():
        raise datasets.missing("cub", file)
    header = ["number", "value"]
    columns = read_columns(file, read_rows(file, 1), dict.fromkeys(header, ()), header, 0)
    return dict(zip(*columns, strict=True))


def _random_split(file: Path, official: list[str | None]) -> np.ndarray:
    """Return the published test split, with a random fifth of the other images for validation."""
    for text in official:
        if text not in ("0", "1"):
            raise ValueError(f"{file} must say 0 (test) or 1 (training) for every image, got {text!r}")
    split = np.array([TRAIN if text == "1" else TEST for text in official], dtype=np.int64)
    train = np.flatnonzero(split == TRAIN)
    order = data_rng(0).permutation(train)
    split[order[: len(train) // 5]] = VAL
    return split


def _published_split(root: Path | None, names: list[str]) -> np.ndarray | None:
    """Return the split in train.pkl, val.pkl and test.pkl, if they exist; -1 marks images in none of them."""
    base = data_root(root) / SOURCE.folder
    folder = next(
        (file.parent for file in (*base.glob("train.pkl"), *sorted(base.glob("*/train.pkl")))), None
    )
    if folder is None:
        return None
    rows = {name: row for row, name in enumerate(names)}
    split = np.full(len(names), -1, dtype=np.int64)
    for part, name in ((TRAIN, "train.pkl"), (VAL, "val.pkl"), (TEST, "test.pkl")):
        if not (folder / name).is_file():
            raise datasets.missing("cub", folder / name)
        for path in _image_paths(folder / name):
            image = "/".join(path.replace("\\", "/").split("/")[-2:])  # the files keep their author's folders
            if image not in rows:
                raise ValueError(f"{folder / name} names {path}, which is not in images.txt")
            split[rows[image]] = part
    return split


def _image_paths(file: Path) -> list[str]:
    """Read the image paths in a split file. The pickle is read as a list of tokens and never run."""
    try:
        tokens = [argument for _, argument, _ in pickletools.genops(file.read_bytes())]
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(
            f"{file} must be a list of records with img_path ({error}); fetch it again"
        ) from error
    paths = [token for token in tokens if isinstance(token, str) and token.lower().endswith((".jpg", ".png"))]
    if not paths:
        raise ValueError(f"{file} must be a list of records with img_path, got no path; fetch it again")
    return paths
