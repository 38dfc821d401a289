"""Samples on pages: packed for exploration in the browser, or a few of each class in a gallery."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from evenhand.report.words import number

if TYPE_CHECKING:
    from evenhand.core.partition import Partition
    from evenhand.training.data import Split, Task

Indices = npt.NDArray[np.int64]
TRIAGE = ("", "minority", "mislabelled")  # neither, learned late, never learned or forgotten

# Limits of one page, which together keep it below 40 MB.
MOST_SAMPLES = 150_000
MOST_LOSSES = 8_000_000  # beyond this, epochs are subsampled
MOST_PICTURES = 4_000
MOST_PICTURE_BYTES = 9_000_000
MOST_TEXT_BYTES = 10_000_000
MOST_CELLS = 1_500_000  # of a table; beyond this, its last columns are omitted
MOST_COLUMNS = 40
ID_LENGTH, CELL_LENGTH = 160, 80  # characters
EXCERPT_LENGTHS = (400, 280, 200, 140, 100, 70, 50, 35)
FLOOR = 1e-3  # smaller losses are drawn at this value
MISSING = 255  # code of a loss that was not recorded

SMALL = 32  # pixels per side up to which images are stored as PNG, because every pixel matters
SIDE = 96  # photographs are reduced to this
# Limits of a gallery.
MOST_MINORITY, MOST_MAJORITY, MOST_ROWS, MOST_FEATURES = 24, 12, 8, 8


@dataclass(frozen=True, eq=False)
class Pictures:
    """Thumbnails: `get` returns a sample's PNG, JPEG or WebP file, (channels, height, width) array, or None.

    It is called only for samples whose pictures the page includes.
    """

    get: Callable[[int], bytes | npt.NDArray[Any] | None]


@dataclass(frozen=True, eq=False)
class Rows:
    """A table: one array of numbers or texts per column, the most informative columns first."""

    columns: Sequence[str]
    values: Sequence[Sequence[Any] | npt.NDArray[Any]]  # per column, one value per sample


@dataclass(frozen=True, eq=False)
class Texts:
    """`get` returns the text of a sample, whose beginning the page includes."""

    get: Callable[[int], str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """The data of n audited samples on a page; classes are positions among the class names."""

    ids: Sequence[str]  # n
    labels: npt.NDArray[Any]  # (n,) classes
    minority: npt.NDArray[Any]  # (n,) bool: in the smaller pseudo-group of its class
    margin: npt.NDArray[Any]  # (n,) as Partition.margin
    curves: npt.NDArray[Any]  # (n, epochs) losses; NaN if not recorded
    triage: Sequence[str]  # n of TRIAGE
    predicted_baseline: npt.NDArray[Any] | None = None  # (n,) classes
    predicted_balanced: npt.NDArray[Any] | None = None  # (n,) classes


# -- pictures ----------------------------------------------------------------------------------------------


def data_uris(images: Sequence[npt.NDArray[Any]]) -> list[str]:
    """Return images, (channels, height, width) uint8 or float, as `data:` URIs.

    Floats are intensities in [0, 1]. If any lies outside, all are scaled by their common range.
    """
    low, high = 0.0, 1.0
    floats = [image for image in images if image.dtype != np.uint8]
    if floats and (min(i.min() for i in floats) < -1e-3 or max(i.max() for i in floats) > 1 + 1e-3):
        low, high = float(min(i.min() for i in floats)), float(max(i.max() for i in floats))
    uris = []
    for image in images:
        if image.dtype != np.uint8:
            scaled = (image.astype(np.float64) - low) / max(high - low, 1e-12)
            image = np.rint(255 * np.nan_to_num(scaled).clip(0, 1)).astype(np.uint8)
        colour = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, axis=0)
        uris.append(f"data:image/{_encoded(np.ascontiguousarray(colour.transpose(1, 2, 0)))}")
    return uris


def _encoded(pixels: npt.NDArray[np.uint8]) -> str:
    """Return (height, width, 3) pixels as PNG if they are few, else as a reduced JPEG."""
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if max(image.size) > SMALL:
        image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
        image.save(buffer, "JPEG", quality=80)
        return f"jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    image.save(buffer, "PNG", optimize=True)
    return f"png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# -- all samples, for a browser ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """The samples as the page stores them. The blocks need no escaping."""

    data: str  # JSON
    pictures: str  # JSON; separate because it is large
    blocks: dict[str, str]  # base64 of typed arrays
    notes: list[str]  # on omitted content


def pack(samples: Samples, media: Pictures | Rows | Texts | None, facts: dict[str, Any]) -> Packed:
    """Pack all samples, or the most relevant ones if there are too many. `facts` are added to the JSON."""
    worth = worth_looking(samples)
    kept = np.sort(worth[:MOST_SAMPLES])
    total, num_epochs = np.shape(samples.curves)
    epochs = np.linspace(0, num_epochs - 1, min(num_epochs, max(2, MOST_LOSSES // len(kept))))
    epochs = epochs.round().astype(np.int64)
    codes, high = quantised(np.asarray(samples.curves)[kept][:, epochs])
    shared, rests = front_coded([shortened(str(samples.ids[i]), ID_LENGTH) for i in kept])
    data = {**facts, "epochs": (epochs + 1).tolist(), "high": high, "ids": rests, "kind": "rows"}
    class_type = "<u2" if len(facts["classes"]) <= 1 << 16 else "<u4"
    triage = np.array([TRIAGE.index(each) for each in samples.triage], np.uint8)
    flags = np.asarray(samples.minority, bool) + 2 * triage  # bit 0: minority; bits 1 and 2: triage
    blocks = {
        "curves": block(codes, "u1"),
        "shared": block(shared, "u1"),
        "positions": block(kept, "<u4"),
        "labels": block(np.asarray(samples.labels)[kept], class_type),
        "flags": block(flags[kept], "u1"),
        "margin": block(np.nan_to_num(np.asarray(samples.margin, np.float32)[kept]), "<f4"),
    }
    for name in ("baseline", "balanced"):
        predicted = getattr(samples, f"predicted_{name}")
        if predicted is not None:
            blocks[name] = block(np.asarray(predicted)[kept], class_type)
    notes: list[str] = []
    pictures: list[str] = []
    if len(kept) < total:
        notes.append(
            f"The page contains {len(kept):,} of {total:,} samples: both triage lists, the boundary between "
            "the pseudo-groups, and typical samples, balanced over classes."
        )
    if isinstance(media, Pictures):
        owners, pictures = _pictures(media, worth)
        data |= {"kind": "pictures", "pictures": np.searchsorted(kept, owners).tolist()}
        if len(pictures) < len(kept):
            notes.append(
                f"It contains pictures of {len(pictures):,} samples, first those of both triage lists and of "
                "the boundary, balanced over classes."
            )
    elif isinstance(media, Texts):
        data |= {"kind": "texts", "texts": excerpts([media.get(int(i)) for i in kept])}
    elif isinstance(media, Rows):
        columns = _columns(media, kept, blocks)
        data["columns"] = columns
        if len(columns) < len(media.columns):
            notes.append(f"It contains the first {len(columns)} of {len(media.columns)} columns.")
    if len(epochs) < num_epochs:
        notes.append(f"The plots show {len(epochs)} of {num_epochs} epochs, equally spaced.")
    return Packed(inert(data), inert(pictures), blocks, notes)


def worth_looking(samples: Samples) -> Indices:
    """Return all samples by relevance: both triage lists, the boundary and typical samples, interleaved.

    Classes are interleaved too, so any prefix of the order covers all of them.
    """
    margin = np.nan_to_num(np.asarray(samples.margin, np.float64))
    triage = np.array([TRIAGE.index(each) for each in samples.triage])
    typical = (triage == 0) & (margin < -0.5)  # beyond the majority's centroid
    kind = np.where(triage == 2, 0, np.where(triage == 1, 1, np.where(typical, 3, 2)))
    eager = np.where(triage > 0, -margin, np.where(typical, np.abs(margin + 0.5), np.abs(margin)))
    queue = np.asarray(samples.labels, np.int64) * 4 + kind
    order = np.lexsort((np.arange(len(margin)), eager, queue))
    starts = np.flatnonzero(np.r_[True, np.diff(queue[order]) != 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    first: Indices = order[np.lexsort((queue[order], rank))]
    return first


def quantised(losses: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], float]:
    """Return losses as codes 0 to 254 on a logarithmic scale, and the highest finite loss.

    The scale starts at FLOOR and ends at the highest finite loss.

    A step is about 4% of a loss, less than a pixel of the plot. Infinite losses become the highest code,
    unrecorded ones MISSING.

    >>> quantised(np.array([[0.0, 0.001, 1.0, np.inf, np.nan]]))[0].tolist()
    [[0, 0, 254, 254, 255]]
    """
    values = np.asarray(losses, np.float32)
    finite = values[np.isfinite(values)]
    high = max(float(finite.max()) if finite.size else 1.0, 10 * FLOOR)
    missing = np.isnan(values)
    bounded = np.where(missing, FLOOR, values).clip(FLOOR, high)
    codes = np.rint(254 * (np.log(bounded) - np.log(FLOOR)) / (np.log(high) - np.log(FLOOR)))
    return np.where(missing, MISSING, codes).astype(np.uint8), high


def front_coded(ids: Sequence[str]) -> tuple[npt.NDArray[np.uint8], list[str]]:
    """Return the number of characters that every id shares with the previous one, and the rest of the id.

    >>> shared, rests = front_coded(["cat/1.png", "cat/2.png", "dog/1.png"])
    >>> shared.tolist(), rests
    ([0, 4, 0], ['cat/1.png', '2.png', 'dog/1.png'])
    """
    shared = np.zeros(len(ids), np.uint8)
    for i, (before, own) in enumerate(pairwise(ids), 1):
        length, most = 0, min(len(before), len(own), 255)
        # Characters beyond U+FFFF count twice in a browser, so the shared part ends before them.
        while length < most and before[length] == own[length] and own[length] <= "\uffff":
            length += 1
        shared[i] = length
    return shared, [own[length:] for own, length in zip(ids, shared.tolist(), strict=True)]


def excerpts(texts: Sequence[str]) -> list[str]:
    """Return the beginning of every text, as long as the page's limit allows."""
    spaced = [" ".join(text[: 4 * EXCERPT_LENGTHS[0]].split()) for text in texts]
    for length in EXCERPT_LENGTHS:
        cut = [text if len(text) <= length else text[: length - 1] + "…" for text in spaced]
        if sum(len(text.encode(errors="replace")) for text in cut) <= MOST_TEXT_BYTES:
            break
    return cut


def shortened(text: str, length: int) -> str:
    """Return a text without its middle if it is too long, since both ends of a path are informative.

    >>> shortened("a very long name", 9)
    'a v… name'
    """
    if len(text) <= length:
        return text
    begin = length // 3
    return f"{text[:begin]}…{text[begin + 1 - length :]}"


def inert(content: Any) -> str:
    """Return JSON without characters that HTML or script parsers could interpret."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def block(values: npt.ArrayLike, dtype: str) -> str:
    """Return an array's bytes, little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values).astype(dtype)).tobytes()).decode()


def _pictures(media: Pictures, worth: Indices) -> tuple[Indices, list[str]]:
    """Return samples and their `data:` URIs without "data:image/", up to the limits."""
    owners, pictures, room = [], [], MOST_PICTURE_BYTES * 4 // 3
    kinds = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}
    for index in worth[:MOST_PICTURES].tolist():
        content = media.get(index)
        if content is None:
            continue
        if isinstance(content, np.ndarray):
            address = data_uris([content])[0].removeprefix("data:image/")
        elif kind := next((kind for begin, kind in kinds.items() if content.startswith(begin)), None):
            address = f"{kind};base64,{base64.b64encode(content).decode()}"
        else:
            raise ValueError(
                f"the picture of sample {index} must be a PNG, JPEG or WebP file, "
                f"but it begins with {content[:8]!r}"
            )
        room -= len(address)
        if room < 0:
            break
        owners.append(index)
        pictures.append(address)
    return np.array(owners, np.int64), pictures


def _columns(rows: Rows, kept: Indices, blocks: dict[str, str]) -> list[dict[str, Any]]:
    """Return descriptions of the columns that fit on the page, and add their values or codes to `blocks`."""
    most = min(MOST_COLUMNS, max(4, MOST_CELLS // len(kept)))
    columns: list[dict[str, Any]] = []
    room = MOST_TEXT_BYTES
    for name, values in zip(rows.columns[:most], rows.values, strict=False):
        array = np.asarray(values)
        if array.dtype.kind in "US":  # a missing value among texts would become the text "nan"
            array = np.asarray(values, dtype=object)
        array = array[kept]
        column = {"name": shortened(str(name), CELL_LENGTH), "block": f"column{len(columns)}"}
        if array.dtype.kind in "fiub" and not (array.dtype.kind in "iu" and np.abs(array).max() >= 1 << 24):
            blocks[column["block"]] = block(array, "<f4")
            columns.append(column)
            continue
        cells = [shortened(_cell(each), CELL_LENGTH) for each in array.tolist()]
        texts = sorted(set(cells))
        room -= sum(len(text.encode(errors="replace")) for text in texts)
        if room < 0:
            break
        code = {text: position for position, text in enumerate(texts)}
        bytes_each = 1 if len(texts) <= 1 << 8 else 2 if len(texts) <= 1 << 16 else 4
        blocks[column["block"]] = block([code[cell] for cell in cells], f"<u{bytes_each}")
        columns.append({**column, "texts": texts})
    return columns


def _cell(value: Any) -> str:
    missing = value is None or (isinstance(value, float) and np.isnan(value))
    return "" if missing else str(value)


# -- a gallery of one class --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """One sample of a gallery."""

    index: int  # in the training split
    row: int  # its number in the user's dataset, of which the training split may be a part
    uri: str  # of its thumbnail, or empty
    values: tuple[str, ...]  # of its shown features, or empty
    group: str  # its true group within the class, or empty
    conflicting: bool


@dataclass(frozen=True)
class Gallery:
    """Some samples of a class; `columns` is not empty if they are rows of a table."""

    minority: tuple[Shown, ...] = ()
    majority: tuple[Shown, ...] = ()
    columns: tuple[str, ...] = ()
    pixelated: bool = False  # small pictures keep their pixels when enlarged
    note: str = ""  # why nothing is shown, or empty


def gallery(
    task: Task, parts: Partition, majority: Indices, minority: Indices, class_name: str, budget: int
) -> Gallery:
    """Return the clearest samples of a minority, and majority samples from typical to borderline.

    `budget` is the size in bytes of the thumbnails.
    """
    first = _stored(task.train, int(minority[0]))
    pictures = first.ndim == 3 and first.shape[0] in (1, 3, 4) and min(first.shape[1:]) > 1
    if not pictures and first.ndim != 1:
        return Gallery(note=f"Samples of the shape {tuple(first.shape)} cannot be shown.")
    most = (MOST_MINORITY, MOST_MAJORITY) if pictures else (MOST_ROWS, MOST_ROWS)
    clearest = minority[np.argsort(-parts.margin[minority], kind="stable")][: most[0]]
    typical = majority[np.argsort(parts.margin[majority], kind="stable")]
    spread = np.linspace(0, len(typical) - 1, min(most[1], len(typical))).round().astype(np.int64)
    chosen = [clearest.tolist(), typical[spread].tolist()]
    if not pictures:
        columns = _telling_columns(task, majority, minority)
        shown = [
            tuple(
                _shown(task, i, class_name, "", [number(float(v)) for v in _stored(task.train, i)[columns]])
                for i in part
            )
            for part in chosen
        ]
        return Gallery(shown[0], shown[1], tuple(f"feature {column}" for column in columns.tolist()))
    uris = iter(data_uris([_stored(task.train, i) for part in chosen for i in part]))
    shown = []
    for part, share in zip(chosen, (2 / 3, 1 / 3), strict=True):
        own = [next(uris) for _ in part]
        fitting = int((np.cumsum([len(uri) for uri in own]) <= share * budget).sum())
        both = list(zip(part, own, strict=True))[:fitting]
        shown.append(tuple(_shown(task, index, class_name, uri, ()) for index, uri in both))
    return Gallery(shown[0], shown[1], pixelated=max(first.shape[1:]) <= SMALL)


def short(group: str, class_name: str) -> str:
    """Return a group's name within its class.

    >>> short("odd, green", "odd"), short("blond men", "blond"), short("oddly", "odd")
    ('green', 'blond men', 'oddly')
    """
    rest = group.removeprefix(class_name)
    return rest.lstrip(" ,:;/|") or group if rest != group and rest[:1] in ",:;/|" else group


def _stored(split: Split, index: int) -> npt.NDArray[Any]:
    """Return the stored input of one sample, before augmentation and normalization."""
    from evenhand.training.data import as_input

    item = split.x[int(split.rows[index])]
    array: npt.NDArray[Any] = item if isinstance(item, np.ndarray) else as_input(item).numpy()
    return array


def _shown(task: Task, index: int, class_name: str, uri: str, values: Sequence[str]) -> Shown:
    group, conflicting = "", False
    if task.train.group is not None and task.group_names:
        own = int(task.train.group[index])
        group, conflicting = short(task.group_names[own], class_name), own in task.conflicting
    row = index if task.train_rows is None else int(task.train_rows[index])
    return Shown(index, row, uri, tuple(values), group, conflicting)


def _telling_columns(task: Task, majority: Indices, minority: Indices) -> Indices:
    """Return the features whose means differ most relative to their deviations, in their original order."""
    means, deviations = [], []
    for members in (majority, minority):
        some = members[np.linspace(0, len(members) - 1, min(500, len(members))).astype(np.int64)]
        values = np.stack([_stored(task.train, int(i)) for i in some]).astype(np.float64)
        means.append(values.mean(0))
        deviations.append(values.std(0))
    difference = np.nan_to_num(np.abs(means[0] - means[1]) / np.maximum(sum(deviations), 1e-12))
    best: Indices = np.sort(np.argsort(-difference, kind="stable")[:MOST_FEATURES])
    return best
