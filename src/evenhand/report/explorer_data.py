"""pack: the samples of an audit as a few compact blocks of text, which a browser decodes in one go."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.report import thumbnails
from evenhand.report.explorer_input import TRIAGE, Audit, Pictures, Rows, Samples, Texts

Indices = npt.NDArray[np.int64]

# What one page holds at most. With all of them reached it stays below 40 MB.
MOST_SAMPLES = 150_000
MOST_LOSSES = 8_000_000  # beyond, epochs are left out at equal distances
MOST_PICTURES = 4_000
MOST_PICTURE_BYTES = 9_000_000
MOST_TEXT_BYTES = 10_000_000
MOST_CELLS = 1_500_000  # of a table; beyond, its last columns are left out
MOST_COLUMNS = 40
ID_LENGTH, CELL_LENGTH = 160, 80  # characters
EXCERPT_LENGTHS = (400, 280, 200, 140, 100, 70, 50, 35)

FLOOR = 1e-3  # smaller losses are drawn like this one: the sample is learned
MISSING = 255  # the code of a loss that was not recorded


@dataclass(frozen=True)
class Packed:
    """What the page holds of the samples; the contents of the blocks need no escaping."""

    data: str  # JSON
    pictures: str  # JSON, apart because it is large and only looked up
    blocks: dict[str, str]  # base64 of typed arrays
    num_samples: int
    num_pictures: int
    num_columns: int
    num_epochs: int


def pack(audit: Audit) -> Packed:
    """All samples, or those worth looking at first where there are too many."""
    samples = audit.samples
    worth = worth_looking(samples)
    kept = np.sort(worth[:MOST_SAMPLES])
    epochs = _kept_epochs(len(kept), np.shape(samples.curves)[1])
    codes, high = quantised(np.asarray(samples.curves)[kept][:, epochs])
    shared, rests = front_coded([shortened(str(samples.ids[i]), ID_LENGTH) for i in kept])
    data: dict[str, Any] = {
        "title": audit.title,
        "classes": list(audit.class_names),
        "models": [audit.baseline_name, audit.balanced_name],
        "epochs": (epochs + 1).tolist(),
        "floor": FLOOR,
        "high": high,
        "ids": rests,
        "kind": "none",
    }
    class_type = "<u2" if len(audit.class_names) <= 1 << 16 else "<u4"
    blocks = {
        "curves": block(codes, "u1"),
        "shared": block(shared, "u1"),
        "positions": block(kept, "<u4"),
        "labels": block(np.asarray(samples.labels)[kept], class_type),
        "flags": block(_flags(samples)[kept], "u1"),
        "margin": block(np.nan_to_num(np.asarray(samples.margin, np.float32)[kept]), "<f4"),
    }
    for name in ("baseline", "balanced"):
        predicted = getattr(samples, f"predicted_{name}")
        if predicted is not None:
            blocks[name] = block(np.asarray(predicted)[kept], class_type)
    pictures: list[str] = []
    if isinstance(audit.media, Pictures):
        owners, pictures = _pictures(audit.media, worth)
        data |= {"kind": "pictures", "pictures": np.searchsorted(kept, owners).tolist()}
    elif isinstance(audit.media, Texts):
        data |= {"kind": "texts", "texts": excerpts([audit.media.get(int(i)) for i in kept])}
    elif isinstance(audit.media, Rows):
        columns = _columns(audit.media, kept, blocks)
        data |= {"kind": "rows" if columns else "none", "columns": columns}
    return Packed(
        inert(data),
        inert(pictures),
        blocks,
        len(kept),
        len(pictures),
        len(data.get("columns", ())),
        len(epochs),
    )


def worth_looking(samples: Samples) -> Indices:
    """All samples, those worth looking at first: both triage lists, the boundary and typical ones, in turns.

    Turns go round the classes too, so that any beginning of the answer is spread over all of them.
    """
    margin = np.nan_to_num(np.asarray(samples.margin, np.float64))
    triage = np.array([TRIAGE.index(each) for each in samples.triage])
    typical = (triage == 0) & (margin < -0.5)  # beyond the majority's centroid
    kind = np.where(triage == 2, 0, np.where(triage == 1, 1, np.where(typical, 3, 2)))
    eager = np.where(triage > 0, -margin, np.where(typical, np.abs(margin + 0.5), np.abs(margin)))
    queue = np.asarray(samples.labels, np.int64) * 4 + kind
    order = np.lexsort((np.arange(len(margin)), eager, queue))
    starts = np.flatnonzero(np.r_[True, np.diff(queue[order]) != 0])
    sizes = np.diff(np.r_[starts, len(order)])
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    first: Indices = order[np.lexsort((queue[order], rank))]
    return first


def quantised(losses: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], float]:
    """Losses as codes 0 to 254 on a logarithmic scale from FLOOR to the highest finite one, also returned.

    A step is about 4% of a loss, less than a pixel of the plot. Infinite losses become the highest, and
    those that were not recorded MISSING.

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
    """How many characters every id shares with the one before it, and the rest: paths repeat their folders.

    >>> shared, rests = front_coded(["cat/1.png", "cat/2.png", "dog/1.png"])
    >>> shared.tolist(), rests
    ([0, 4, 0], ['cat/1.png', '2.png', 'dog/1.png'])
    """
    shared = np.zeros(len(ids), np.uint8)
    for i, (before, own) in enumerate(pairwise(ids), 1):
        length, most = 0, min(len(before), len(own), 255)
        # Characters beyond U+FFFF count twice in a browser, so sharing ends before them.
        while length < most and before[length] == own[length] and own[length] <= "\uffff":
            length += 1
        shared[i] = length
    return shared, [own[length:] for own, length in zip(ids, shared.tolist(), strict=True)]


def excerpts(texts: Sequence[str]) -> list[str]:
    """The beginning of every text, as long as the page can hold for all of them."""
    spaced = [" ".join(text[: 4 * EXCERPT_LENGTHS[0]].split()) for text in texts]
    for length in EXCERPT_LENGTHS:
        cut = [text if len(text) <= length else text[: length - 1] + "…" for text in spaced]
        if sum(len(text.encode(errors="replace")) for text in cut) <= MOST_TEXT_BYTES:
            break
    return cut


def shortened(text: str, length: int) -> str:
    """A text without its middle when it is too long: of a path, both ends tell most.

    >>> shortened("a very long name", 9)
    'a v… name'
    """
    if len(text) <= length:
        return text
    begin = length // 3
    return f"{text[:begin]}…{text[begin + 1 - length :]}"


def inert(content: Any) -> str:
    """JSON that no HTML parser takes for markup and no script parser for the end of a line."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def block(values: npt.ArrayLike, dtype: str) -> str:
    """An array's bytes, little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values).astype(dtype)).tobytes()).decode()


def _flags(samples: Samples) -> npt.NDArray[np.uint8]:
    """Bit 0: minority; bits 1 and 2: position in TRIAGE."""
    triage = np.array([TRIAGE.index(each) for each in samples.triage], np.uint8)
    flags: npt.NDArray[np.uint8] = np.asarray(samples.minority, bool).astype(np.uint8) + 2 * triage
    return flags


def _kept_epochs(num_samples: int, num_epochs: int) -> Indices:
    most = max(2, MOST_LOSSES // num_samples)
    return np.linspace(0, num_epochs - 1, min(num_epochs, most)).round().astype(np.int64)


def _pictures(media: Pictures, worth: Indices) -> tuple[Indices, list[str]]:
    """Samples and their `data:` addresses without "data:image/", until one of the limits is reached."""
    owners, pictures, room = [], [], MOST_PICTURE_BYTES * 4 // 3
    for index in worth[:MOST_PICTURES].tolist():
        content = media.get(index)
        if content is None:
            continue
        address = _address(content, index)
        room -= len(address)
        if room < 0:
            break
        owners.append(index)
        pictures.append(address)
    return np.array(owners, np.int64), pictures


def _address(content: bytes | npt.NDArray[Any], index: int) -> str:
    if isinstance(content, np.ndarray):
        return thumbnails.data_uris([content])[0].removeprefix("data:image/")
    kinds = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}
    for begin, kind in kinds.items():
        if content.startswith(begin):
            return f"{kind};base64,{base64.b64encode(content).decode()}"
    raise ValueError(
        f"the picture of sample {index} must be a PNG, JPEG or WebP file, but it begins with {content[:8]!r}"
    )


def _columns(rows: Rows, kept: Indices, blocks: dict[str, str]) -> list[dict[str, Any]]:
    """Descriptions of the columns that the page can hold; their values, or codes of texts, go into blocks."""
    most = min(MOST_COLUMNS, max(4, MOST_CELLS // len(kept)))
    columns: list[dict[str, Any]] = []
    room = MOST_TEXT_BYTES
    for name, values in zip(rows.columns[:most], rows.values, strict=False):
        array = np.asarray(values)
        if array.dtype.kind in "US":  # a gap among texts would become the text "nan"
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
