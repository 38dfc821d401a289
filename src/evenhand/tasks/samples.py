"""Labeled samples: their classes, groups and splits before any is read, images decoded once, a Task.

The decoded images are a memory-mapped array. Decoding is parallel and resumable, and has checksums.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.tasks import cache_root
from evenhand.training import log, store
from evenhand.training.data import Split, Task, checksum, image_decoder, reweighted
from evenhand.training.recipe import Recipe

TRAIN, VAL, TEST = 0, 1, 2
DATA_SEED = 0
HELD_OUT = 0.15  # of every class, for validation, and as much for the test
MOST_CLASSES = 1000
LEAST = 5  # samples of a class: three to train on, one to validate and one to test with


def data_rng(stream: int) -> np.random.Generator:
    """Return a random generator for splits and colors, which never depend on the training seed."""
    return np.random.default_rng([DATA_SEED, stream])


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Labeled samples before anything is decoded or trained."""

    kind: str = "images"  # or "table" or "text"
    y: np.ndarray  # (samples,) int64
    class_names: tuple[str, ...]
    split: np.ndarray  # (samples,) TRAIN, VAL or TEST
    ids: list[str] = field(default_factory=list)  # what a person calls each sample: a path, or a row's number
    files: list[Path] = field(default_factory=list)  # of images
    frame: Any = None  # of a table: its feature columns, cleaned, a row per sample
    texts: list[str] = field(default_factory=list)
    attribute: np.ndarray | None = None  # (samples,) int64: for scoring only
    attribute_names: tuple[str, ...] = ()
    conflicting: frozenset[int] = frozenset()  # the groups that break the shortcut
    notes: tuple[str, ...] = ()  # what was left out or changed, in sentences
    reading: dict[str, Any] = field(default_factory=dict)  # of a table: header, and which column is seen

    @property
    def group(self) -> np.ndarray | None:
        """Return class times attribute, (samples,) int64, or None without attributes."""
        return None if self.attribute is None else self.y * len(self.attribute_names) + self.attribute

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(f"{name}, {value}" for name in self.class_names for value in self.attribute_names)

    def rows(self, part: int) -> np.ndarray:
        """Return the rows that are in this part, in ascending order."""
        return np.flatnonzero(self.split == part)

    def take(self, rows: np.ndarray) -> Samples:
        """Return the images or texts at these rows."""
        attribute = None if self.attribute is None else self.attribute[rows]
        files, texts, ids = (
            [each[row] for row in rows if each] for each in (self.files, self.texts, self.ids)
        )
        kept = replace(self, files=files, texts=texts, ids=ids, attribute=attribute)
        return replace(kept, y=self.y[rows], split=self.split[rows])

    def task(
        self,
        name: str,
        x: Tensor | np.ndarray,
        *identity: Tensor | np.ndarray | str,
        weighted: bool = False,
        **settings: Any,
    ) -> Task:
        """Return a Task whose inputs are the rows of `x`, in the order of the samples.

        identity: What the checksum depends on besides labels, splits and groups.
        weighted: Whether validation and test carry weights that restate them in the training groups'
            proportions.
        settings: Further fields of the Task.
        """
        y, group = torch.from_numpy(self.y), None if self.group is None else torch.from_numpy(self.group)
        rows = [torch.from_numpy(self.rows(part)) for part in (TRAIN, VAL, TEST)]
        train, *others = (Split(x, y[r], group=None if group is None else group[r], rows=r) for r in rows)
        val, test = (reweighted(split, train) if weighted else split for split in others)
        return Task(
            name=name,
            train=train,
            val=val,
            test=test,
            class_names=self.class_names,
            group_names=self.group_names,
            conflicting=self.conflicting,
            checksum=checksum(*identity, y, self.split, *([] if group is None else [group])),
            **settings,
        )


def read_rows(file: Path, most: int = -1) -> list[list[str]]:
    """Split every line into fields: at commas in a .csv, else at white space, at most `most` times."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        if file.suffix == ".csv":
            return list(csv.reader(lines))
        return [line.strip().split(None, most) for line in lines]
    except (UnicodeDecodeError, csv.Error) as error:
        kind = "a table with commas" if isinstance(error, csv.Error) else "text in UTF-8"
        raise ValueError(f"{file} must be {kind}, but {error}; fetch it again") from error


def read_columns(
    file: Path, rows: list[list[str]], columns: Mapping[str, Sequence[str]], header: list[str], start: int
) -> list[list[str]]:
    """Read these columns from row `start` on; raises ValueError if a line does not fit.

    `columns` maps names in the header to the allowed values. An empty sequence allows any value.
    """
    lacking = [name for name in columns if name not in header]
    if lacking:
        raise ValueError(
            f"{file} must have the columns {', '.join(filter(None, columns))}, "
            f"but has no {', '.join(lacking)}; it has {', '.join(filter(None, header))}"
        )
    places = {header.index(name): (name, allowed) for name, allowed in columns.items()}
    for line, row in enumerate(rows[start:], start=start + 1):
        if len(row) != len(header):
            raise ValueError(
                f"{file}, line {line}: expected {len(header)} fields, got {len(row)}; fetch it again"
            )
        for place, (name, allowed) in places.items():
            if allowed and row[place] not in allowed:
                raise ValueError(
                    f"{file}, line {line}: {name} must be one of {', '.join(allowed)}, got {row[place]!r}; "
                    "fetch it again"
                )
    return [[row[place] for row in rows[start:]] for place in places]


def encode(labels: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct labels, and the index of each sample's label, (samples,) int64.

    >>> encode(["dog", "cat", "dog"])
    (array(['cat', 'dog'], dtype='<U3'), array([1, 0, 1]))
    """
    found, position = np.unique(np.asarray(labels), return_inverse=True)
    return found, position.reshape(-1).astype(np.int64)


def encode_classes(labels: Sequence[str], what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each sample's class index and the sorted class names; raises for classes too small to learn.

    >>> y, names = encode_classes(["cat", "dog"] * 5, "the folder")
    >>> y[:3].tolist(), names
    ([0, 1, 0], ('cat', 'dog'))
    """
    found, y = encode(np.array(labels, dtype=str))
    names, counts = found.tolist(), np.bincount(y, minlength=len(found))
    if len(names) < 2:
        seen = f"one, {names[0]!r}" if names else "none"
        raise ValueError(
            f"expected at least two classes, but {what} has {seen}; there is nothing to tell apart, so add "
            "samples of another class"
        )
    if len(names) > MOST_CLASSES:
        raise ValueError(
            f"expected at most {MOST_CLASSES:,} classes, but {what} has {len(names):,} "
            f"in {len(y):,} samples; is it an identifier or a quantity? Group its values into classes first"
        )
    if (counts < LEAST).any():
        rare = [f"{names[i]!r} ({counts[i]})" for i in np.flatnonzero(counts < LEAST)[:5]]
        raise ValueError(
            f"expected at least {LEAST} samples of every class, but {what} has fewer of "
            f"{int((counts < LEAST).sum())} of its {len(names)}: {', '.join(rare)}; "
            "add samples, merge rare classes or leave them out"
        )
    return y, tuple(names)


def stratified_split(y: np.ndarray) -> np.ndarray:
    """Split every class into 70% training, 15% validation and 15% test; the same on every call.

    >>> np.bincount(stratified_split(np.repeat([0, 1], [100, 10]))).tolist()
    [76, 17, 17]
    """
    split, rng = np.full(len(y), TRAIN, dtype=np.int64), data_rng(21)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        count = max(round(HELD_OUT * len(members)), 1)
        split[members[:count]] = VAL
        split[members[count : 2 * count]] = TEST
    return split


def completed_split(y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Complete a given division: an absent train, val or test part is taken from training."""
    split, train = given.copy(), np.flatnonzero(given == TRAIN)
    fresh = stratified_split(y[train])
    for part in (VAL, TEST):
        if not (given == part).any():
            split[train[fresh == part]] = part
    return split


def rare_cells(data: Samples) -> frozenset[int]:
    """Return the groups with under half of the training samples that independent attributes would give.

    There is at least one: the group that falls shortest.
    """
    assert data.attribute is not None
    cells, train = np.zeros((len(data.class_names), len(data.attribute_names))), data.rows(TRAIN)
    np.add.at(cells, (data.y[train], data.attribute[train]), 1)
    expected = np.outer(cells.sum(1), cells.sum(0)) / max(cells.sum(), 1)
    ratio = (cells / np.maximum(expected, 1e-9)).ravel()
    return frozenset({int(ratio.argmin()), *np.flatnonzero(ratio < 0.5).tolist()})


# -- images ----------------------------------------------------------------------------------------------

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, whose weights the models start from
PRETRAINED = Recipe(model="resnet18", weights="pretrained", optimizer="sgd", lr=1e-3, momentum=0.9)
CHUNK = 256  # images between two notes of what is done
DECODING_VERSION = 2  # of the decoding; a change makes new arrays
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# EXIF's orientation -> Pillow's Transpose that undoes it: ROTATE_270 for 6, and so on.
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


@dataclass(frozen=True)
class Decoded:
    """Pixels (images, 3, size, size) uint8, memory-mapped, and the checksum of them all."""

    pixels: np.ndarray
    digest: str
    folder: Path


def image_task(name: str, data: Samples, size: int, *identity: str, **settings: Any) -> Task:
    """Decode the images as squares of `size` pixels into one array for all splits, and return the task.

    identity: What the checksum depends on besides pixels, labels, splits and groups.
    settings: Of the Task, as `Samples.task` takes them.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    for part, part_name in ((TRAIN, "training"), (VAL, "validation"), (TEST, "test")):
        counts = np.bincount(data.y[data.rows(part)], minlength=len(data.class_names))
        if not counts.any():
            raise ValueError(
                f"the {part_name} split of {name} is empty; are all of the dataset's files in place?"
            )
        # A class may be too rare for the smaller splits, but one that is never trained on is a mistake.
        if part == TRAIN and not counts.all():
            empty = ", ".join(data.class_names[label] for label in np.flatnonzero(counts == 0)[:5])
            raise ValueError(f"the training split of {name} has no image of {empty}; are all files in place?")
    found = decode_images(name, data.files, size)
    return data.task(name, found.pixels, found.digest, *identity, mean=MEAN, std=STD, **settings)


def decode_images(task: str, files: Sequence[Path], size: int) -> Decoded:
    """Return the images as RGB squares of `size` pixels, in the order of `files`; decoded on first use.

    The manifest lists the checksums of the chunks that are done, so an interrupted decoding continues.
    """
    folder = cache_root() / "images" / f"{task}-{size}-{_stamp(task, files, size)}"
    with store.claim(folder):
        pixels, chunks = _open(folder, len(files), size), _chunks(folder)
        if pixels is None or len(chunks) != -(-len(files) // CHUNK):
            chunks = _decode_all(task, files, size, folder, chunks if pixels is not None else [])
            pixels = _open(folder, len(files), size)
            assert pixels is not None
        else:
            log.detail("reused the decoded images in %s", folder)
    return Decoded(pixels, _joined(chunks), folder)


def damaged_chunks(images: Decoded) -> list[int]:
    """Return the chunks whose pixels no longer match their checksum; an empty list means no damage."""
    recorded = _chunks(images.folder)
    chunks = range(-(-len(images.pixels) // CHUNK))
    return [n for n in chunks if n >= len(recorded) or _digest(images.pixels, n) != recorded[n]]


def _joined(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode("utf-8", "replace")).hexdigest()


def _chunks(folder: Path) -> list[str]:
    """Return the checksums of the finished chunks, or none if the manifest is absent or damaged."""
    schema = {"digest": str, "chunks": [str]}
    try:
        content = store.read_checked(folder / "manifest.json", schema, "the checksums of images")
    except (store.Damaged, FileNotFoundError):
        return []
    chunks: list[str] = content["chunks"]
    return chunks if content["digest"] == _joined(chunks) else []


def _stamp(task: str, files: Sequence[Path], size: int) -> str:
    """Return the digest of the files, with their ages and lengths, and of how they are decoded."""
    stamp = hashlib.sha256(f"{DECODING_VERSION} {size} {image_decoder()}\n".encode())
    absent = []
    for file in files:
        try:
            state = file.stat()
        except FileNotFoundError:
            absent.append(file)
            continue
        stamp.update(f"{file.parent.name}/{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    if absent:
        raise ValueError(
            f"{task} needs {len(files)} images, but {len(absent)} are missing, the first being {absent[0]}; "
            f"`evenhand data fetch {task}` says where to get them"
        )
    return stamp.hexdigest()[:12]


def _open(folder: Path, count: int, size: int) -> np.ndarray | None:
    """Open the array, if it exists and has the right length."""
    try:
        array = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None
    return array if array.shape == (count, 3, size, size) and array.dtype == np.uint8 else None


def _digest(pixels: np.ndarray, number: int) -> str:
    chunk = np.ascontiguousarray(pixels[number * CHUNK : (number + 1) * CHUNK])
    return hashlib.sha256(chunk.data).hexdigest()


def _decode_all(task: str, files: Sequence[Path], size: int, folder: Path, recorded: list[str]) -> list[str]:
    """Fill `images.npy`, except for recorded chunks with a valid checksum; returns all checksums."""
    array, manifest = folder / "images.npy", folder / "manifest.json"
    if not recorded:
        manifest.unlink(missing_ok=True)  # first: it may belong to another array
        array.unlink(missing_ok=True)
        shape = (len(files), 3, size, size)
        np.lib.format.open_memmap(array, mode="w+", dtype=np.uint8, shape=shape).flush()
    pixels, chunks = np.lib.format.open_memmap(array, mode="r+"), recorded.copy()
    todo = [
        number
        for number in range(-(-len(files) // CHUNK))
        if number >= len(recorded) or _digest(pixels, number) != recorded[number]
    ]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Threads suffice: pillow releases the interpreter lock while it decodes and resizes.
    with ThreadPoolExecutor(workers) as pool, _progress() as bar:
        for number in bar.track(todo, description=f"decoding {task}"):
            rows = slice(number * CHUNK, (number + 1) * CHUNK)
            images = pool.map(lambda file: read_image(file, size), files[rows])
            for row, image in enumerate(images, rows.start):
                pixels[row] = image
            pixels.flush()
            chunks[number : number + 1] = [_digest(pixels, number)]
            content = {"digest": _joined(chunks), "chunks": chunks, "images": len(files), "size": size}
            store.write_json(manifest, content)  # after its pixels: every listed chunk is on disk
    return chunks


def find_images(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the sorted images below a folder, and the endings of the other files; skips hidden files."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    return images, Counter(ending for file in files if (ending := file.suffix.lower()) not in IMAGE_SUFFIXES)


def left_out(endings: Counter[str]) -> str:
    """Return a note on the files that are not read, or an empty string if there are none.

    >>> left_out(Counter({".svg": 1, ".heic": 40}))
    '41 files were left out because of their endings: 40 .heic, 1 .svg; convert images to PNG or JPEG'
    """
    if not endings:
        return ""
    count, shown = endings.total(), endings.most_common()
    kinds = [f"{number:,} {ending or 'without one'}" for ending, number in shown[:5]]
    kinds += [f"{count - sum(number for _, number in shown[:5]):,} others"] if len(shown) > 5 else []
    files, their = ("file was", "its ending") if count == 1 else ("files were", "their endings")
    return f"{count:,} {files} left out because of {their}: {', '.join(kinds)}; convert images to PNG or JPEG"


def read_image(file: Path, size: int) -> np.ndarray:
    """Read an image as (3, size, size) uint8: upright RGB, resized without keeping its proportions.

    Transparency is ignored, as torchvision's loaders do, unless everything is drawn in one color: such a
    picture is put on a white or black ground. 16-bit images are scaled to 8 bits by their full range. 32-bit
    images have no fixed white: floats within 0 to 1 are scaled by 255, all others by their own range.
    """
    try:
        with Image.open(file) as image:
            image.load()
            turn = _orientation(image)
            rgb = _rgb(image)
            upright = rgb if turn is None else rgb.transpose(turn)
            squared = upright.resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # pillow raises many kinds for damaged files
        raise ValueError(
            f"{file} cannot be decoded ({error}); it is damaged or not an image: fetch it again, "
            "then run this again, which goes on where it stopped"
        ) from error
    return np.asarray(squared).transpose(2, 0, 1)


def _orientation(image: Any) -> int | None:
    """Return the transposition that puts an image upright; None if it is upright or its EXIF is damaged.

    Pillow's `exif_transpose` also writes the EXIF data anew, and fails where any other tag is damaged.
    """
    with contextlib.suppress(Exception):
        return _UPRIGHT.get(image.getexif().get(0x0112))
    return None


def _rgb(image: Any) -> Any:
    """Convert the image to 8-bit RGB."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if image.mode in ("LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    if image.mode == "RGBA":
        *colours, (clear, opaque) = image.getextrema()
        if clear < opaque and all(low == high for low, high in colours):
            light = sum(low for low, _ in colours) > 382
            ground = Image.new("RGB", image.size, "black" if light else "white")
            ground.paste(image, mask=image.getchannel("A"))
            return ground
    return image.convert("RGB")  # the colors themselves, not those behind their transparency


def _eight_bits(image: Any) -> Any:
    """Scale a gray image of 16 or 32 bits to 8 bits."""
    values = np.asarray(image).astype(np.float64)
    low, high = 0.0, 65535.0
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):  # of other files, "I" has 16 bits
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if image.mode == "F" and low >= 0 and high <= 1:
            low, high = 0.0, 1.0
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    scaled = (values - low) / max(high - low, np.finfo(np.float64).tiny)
    return Image.fromarray(np.rint(255 * scaled).astype(np.uint8))


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
