"""Images: which files of a folder are images, how one is read, many decoded once into an array, and a Task.

The array is memory-mapped. Decoding is parallel and resumable, and has checksums.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from evenhand.tasks import cache_root
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples
from evenhand.training import log, store
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, whose weights the models start from
PRETRAINED = Recipe(model="resnet18", weights="pretrained", optimizer="sgd", lr=1e-3, momentum=0.9)
CHUNK = 256  # images between two notes of what is done
VERSION = 2  # of the decoding; a change makes new arrays
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# EXIF's orientation -> Pillow's Transpose that undoes it: ROTATE_270 for 6, and so on.
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


@dataclass(frozen=True)
class Decoded:
    """Pixels (images, 3, size, size) uint8, memory-mapped, and the checksum of them all."""

    pixels: np.ndarray
    digest: str
    folder: Path


def image_task(name: str, data: Samples, size: int, *identity: str, **settings: Any) -> Task:
    """The images as squares of `size` pixels, decoded into one array for all splits.

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
    found = decoded(name, data.files, size)
    return data.task(name, found.pixels, found.digest, *identity, mean=MEAN, std=STD, **settings)


def decoded(task: str, files: Sequence[Path], size: int) -> Decoded:
    """The images as RGB squares of `size` pixels, in the order of `files`; decoded on first use.

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
    """The chunks whose pixels no longer have their checksum; an empty list is a clean bill of health."""
    recorded = _chunks(images.folder)
    chunks = range(-(-len(images.pixels) // CHUNK))
    return [n for n in chunks if n >= len(recorded) or _digest(images.pixels, n) != recorded[n]]


def _joined(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode("utf-8", "replace")).hexdigest()


def _chunks(folder: Path) -> list[str]:
    """The checksums of the chunks that are done; none where the manifest is absent or damaged."""
    schema = {"digest": str, "chunks": [str]}
    try:
        content = store.read_checked(folder / "manifest.json", schema, "the checksums of images")
    except (store.Damaged, FileNotFoundError):
        return []
    chunks: list[str] = content["chunks"]
    return chunks if content["digest"] == _joined(chunks) else []


def _stamp(task: str, files: Sequence[Path], size: int) -> str:
    """A digest of which files, of what age and length, are decoded how."""
    stamp = hashlib.sha256(f"{VERSION} {size}\n".encode())
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
    """The array, if it is there and has its length."""
    try:
        array = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None
    return array if array.shape == (count, 3, size, size) and array.dtype == np.uint8 else None


def _digest(pixels: np.ndarray, number: int) -> str:
    chunk = np.ascontiguousarray(pixels[number * CHUNK : (number + 1) * CHUNK])
    return hashlib.sha256(chunk.data).hexdigest()


def _decode_all(task: str, files: Sequence[Path], size: int, folder: Path, recorded: list[str]) -> list[str]:
    """Fill `images.npy`, but for recorded chunks that still have their checksum; returns all checksums."""
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
            for row, image in enumerate(pool.map(lambda file: read(file, size), files[rows]), rows.start):
                pixels[row] = image
            pixels.flush()
            chunks[number : number + 1] = [_digest(pixels, number)]
            content = {"digest": _joined(chunks), "chunks": chunks, "images": len(files), "size": size}
            store.write_json(manifest, content)  # after its pixels: every listed chunk is on disk
    return chunks


def images_under(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Every image below a folder, sorted, and the endings of the other files; hidden files are left out."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    return images, Counter(ending for file in files if (ending := file.suffix.lower()) not in SUFFIXES)


def left_out(endings: Counter[str]) -> str:
    """A note on the files that are not read; empty where there are none.

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


def read(file: Path, size: int) -> np.ndarray:
    """One image as (3, size, size) uint8: RGB, upright, the whole picture resized, whatever its proportions.

    Transparency is ignored, as torchvision's loaders do, unless everything is drawn in one colour: such a
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
    """The transposition that puts a loaded image upright; None if it is upright or its EXIF is damaged.

    Pillow's `exif_transpose` also writes the EXIF data anew, and fails where any other tag is damaged.
    """
    with contextlib.suppress(Exception):
        return _UPRIGHT.get(image.getexif().get(0x0112))
    return None


def _rgb(image: Any) -> Any:
    """The image in 8-bit RGB."""
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
    return image.convert("RGB")  # the colours themselves, not those behind their transparency


def _eight_bits(image: Any) -> Any:
    """A grey image of 16 or 32 bits, scaled to 8."""
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
