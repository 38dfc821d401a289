"""Small datasets in the layouts that the real ones are published in."""

from __future__ import annotations

import csv
import gzip
import os
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from evenhand.tasks import bar, pacs

# Where the real datasets are, for the tests that can use them; read before any test changes the environment.
REAL_ROOT = Path(os.environ.get("EVENHAND_DATA", Path(__file__).parents[3] / "shared" / "data"))

ATTRIBUTES = ["Attractive", "Blond_Hair", "Male", "Young"]


def picture(file: Path, seed: int, size: tuple[int, int] = (20, 16)) -> None:
    """An image of one random colour, so that a decoded pixel says which image it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    colour = tuple(np.random.default_rng(seed).integers(0, 256, 3).tolist())
    Image.new("RGB", size, colour).save(file, "JPEG", quality=95)


def idx_bytes(array: np.ndarray) -> bytes:
    """The bytes of an idx file that holds this uint8 array."""
    header = (0x00000800 + array.ndim).to_bytes(4, "big")
    return header + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def make_mnist(root: Path, num_train: int = 400, num_test: int = 200, zipped: bool = True) -> Path:
    rng = np.random.default_rng(0)
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", num_train), ("t10k", num_test)):
        arrays = {
            "images-idx3": rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            "labels-idx1": (np.arange(count) % 10).astype(np.uint8),
        }
        for kind, array in arrays.items():
            content = idx_bytes(array)
            name = f"{part}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return folder


def make_waterbirds(root: Path, counts: dict[int, tuple[int, int, int, int]] | None = None) -> Path:
    """`counts`: split -> images of (y, place) = 00, 01, 10, 11."""
    counts = counts or {0: (14, 2, 1, 3), 1: (3, 3, 2, 2), 2: (4, 4, 3, 3)}
    folder = root / "waterbirds"
    rows, number = [], 0
    for split, sizes in counts.items():
        for group, size in enumerate(sizes):
            for _ in range(size):
                name = f"{number % 3:03d}.Bird/Bird_{number:04d}.jpg"
                picture(folder / name, number)
                rows.append([number, name, group // 2, split, group % 2, "/f/forest.jpg"])
                number += 1
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
        writer.writerows(rows)
    return folder


def make_celeba(root: Path, kind: str = "txt") -> Path:
    """40 training, 10 validation and 10 test images; blond when i % 4 == 0, male when i % 3 == 0."""
    folder = root / "celeba"
    names = [f"{number:06d}.jpg" for number in range(1, 61)]
    for number, name in enumerate(names):
        picture(folder / "img_align_celeba" / name, number)
    values = [["1", "1" if i % 4 == 0 else "-1", "1" if i % 3 == 0 else "-1", "-1"] for i in range(60)]
    splits = [("0" if i < 40 else "1" if i < 50 else "2") for i in range(60)]
    if kind == "txt":
        lines = [" ".join([name, *row]) for name, row in zip(names, values, strict=True)]
        text = "\n".join([str(len(names)), " ".join(ATTRIBUTES) + " ", *lines]) + "\n"
        (folder / "list_attr_celeba.txt").write_text(text)
        lines = [f"{name} {split}" for name, split in zip(names, splits, strict=True)]
        (folder / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    else:
        lines = [",".join([name, *row]) for name, row in zip(names, values, strict=True)]
        (folder / "list_attr_celeba.csv").write_text(
            "\n".join([",".join(["image_id", *ATTRIBUTES]), *lines]) + "\n"
        )
        lines = [f"{name},{split}" for name, split in zip(names, splits, strict=True)]
        (folder / "list_eval_partition.csv").write_text("\n".join(["image_id,partition", *lines]) + "\n")
    return folder


def make_bar(root: Path) -> Path:
    """Ten training images and three test images of every action."""
    folder = root / "bar"
    for label, name in enumerate(bar.CLASSES):
        for number in range(13):
            part = "train" if number < 10 else "test"
            picture(folder / part / f"{name}_{number}.jpg", 100 * label + number)
    return folder


def make_pacs(root: Path, counts: tuple[int, int, int, int] = (6, 6, 5, 5)) -> Path:
    """`counts`: images of every object as photo, art_painting, cartoon and sketch."""
    folder = root / "pacs"
    for style, count in zip(pacs.STYLES, counts, strict=True):
        for label, name in enumerate(pacs.OBJECTS):
            for number in range(count):
                picture(folder / style / name / f"pic_{number:03d}.jpg", 100 * label + number)
    return folder


def make_cub(root: Path, splits: bool = False) -> Path:
    """Three kinds of birds with ten images each, six of them for training."""
    folder = root / "cub" / "CUB_200_2011"
    names = ["001.Auk", "002.Blue_Jay", "003.Crow"]
    images, labels, official, records = [], [], [], []
    for number in range(30):
        name = f"{names[number % 3]}/{names[number % 3][4:]}_{number:04d}.jpg"
        picture(folder / "images" / name, number)
        images.append(f"{number + 1} {name}")
        labels.append(f"{number + 1} {number % 3 + 1}")
        official.append(f"{number + 1} {int(number < 18)}")
        records.append(
            {"id": number + 1, "img_path": f"/home/author/CUB/images/{name}", "class_label": number % 3}
        )
    for file, lines in (
        ("images.txt", images),
        ("image_class_labels.txt", labels),
        ("train_test_split.txt", official),
        ("classes.txt", [f"{number} {name}" for number, name in enumerate(names, start=1)]),
    ):
        (folder / file).write_text("\n".join(lines) + "\n")
    if splits:
        for record in records:
            record["attribute_label"] = [np.int64(1), np.float32(0.5)]  # as in the published files
        for name, part in (("train", records[3:18]), ("val", records[:3]), ("test", records[18:29])):
            (folder.parent / "class_attr_data_10").mkdir(exist_ok=True)
            (folder.parent / "class_attr_data_10" / f"{name}.pkl").write_bytes(pickle.dumps(part))
    return folder


def make_reviews(root: Path, per_cell: int = 40) -> Path:
    """Four domains with `per_cell` training and ten test reviews of each sentiment."""
    import pandas

    rng, rows = np.random.default_rng(0), []
    for domain in ("books", "dvd", "electronics", "kitchen_housewares"):
        for positive in (0, 1):
            for number in range(per_cell + 10):
                words = [f"{domain}{each}" for each in rng.integers(0, 5, 4)]
                words += [f"{'good' if positive else 'bad'}{each}" for each in rng.integers(0, 5, 2)]
                split = "train" if number < per_cell else "test"
                rows.append((" ".join(rng.permutation(words)), positive, domain, split))
    folder = root / "reviews"
    folder.mkdir(parents=True)
    order = rng.permutation(len(rows))
    frame = pandas.DataFrame([rows[row] for row in order], columns=["text", "positive", "domain", "split"])
    frame.to_parquet(folder / "reviews.parquet")
    return folder
