"""partition_files: read recorded losses from files, and write the partition and the balanced set to files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import evenhand
from evenhand.core.arrays import read_array
from evenhand.core.partition import Partition, partition, rebalance, sample_weights
from evenhand.training.store import check_folder, write_bytes, write_json

_ROWS = 1 << 16  # rows of a table that are written at once


def partition_files(losses: Path, labels: Path, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Split recorded losses, and write the files that the second training needs.

    - `losses`: an .npy file of (samples, epochs) losses. It is memory-mapped, so it may exceed the memory.
    - `labels`: an .npy file of (samples,) integers or strings.
    - `out`: the output folder: samples.csv, weights.csv, indices.npy, partition.npz and summary.json.
    - `seed`: determines which minority samples are repeated.

    Returns the content of summary.json. Raises ValueError for a missing or unreadable file, and for losses
    and labels that `evenhand.partition` rejects, before anything is written.
    """
    check_folder(out, "--out")
    histories, names = _read(losses, "losses"), _read(labels, "labels")
    if histories.ndim != 2:
        raise ValueError(
            f"losses must be shaped (samples, epochs), got {histories.shape}; "
            "one number per sample is written as (samples, 1)"
        )
    parts = partition(histories, names)
    balanced = rebalance(parts, seed=seed)
    summary = _summary(parts, histories.shape[1], len(balanced), seed)
    (out / "summary.json").unlink(missing_ok=True)  # left by an earlier call whose files are now replaced
    write_bytes(out / "samples.csv", _samples(parts, histories))
    write_bytes(out / "weights.csv", _weights(sample_weights(parts)))
    write_bytes(out / "indices.npy", _npy(balanced.indices))
    parts.save(out / "partition.npz")
    write_json(out / "summary.json", summary)  # last: its existence means that all other files exist
    return summary


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Encode a table as CSV. An apostrophe precedes text that a spreadsheet would evaluate as a formula.

    An empty header writes rows only.

    >>> csv_bytes(("id", "loss"), [("=1+1", -0.5)])
    b"id,loss\\r\\n'=1+1,-0.5\\r\\n"
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)  # with CR LF line ends it quotes both, so a CR cannot start a row
    if header:
        writer.writerow(header)
    writer.writerows([_harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _harmless(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.lstrip(" ")[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else text


def _read(path: Path, what: str) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"{what} must be an .npy file, but there is no file {path}")
    try:
        return read_array(path, f"{what} as an array", mode="r")
    except ValueError as error:
        raise ValueError(f"{error}; write numbers, or strings of dtype str, with numpy.save") from error


def _samples(parts: Partition, histories: np.ndarray) -> Iterator[bytes]:
    """Yield samples.csv in chunks, one row per sample, because the file may exceed the memory."""
    header = ("index", "label", "pseudo_group", "separation", "margin", "mean_loss", "last_loss")
    yield csv_bytes(header, [])
    for start in range(0, len(histories), _ROWS):
        rows = slice(start, start + _ROWS)
        position = np.searchsorted(parts.classes, parts.labels[rows])
        split = parts.sizes[position, 1] > 0
        group = np.where(parts.minority[rows], "minority", np.where(split, "majority", "whole"))
        mean = histories[rows].mean(axis=1, dtype=np.float64)
        last = histories[rows, -1].astype(np.float64)
        numbers = (parts.separation[position], parts.margin[rows], mean, last)
        short = ([float(f"{value:.6g}") for value in column.tolist()] for column in numbers)
        names = (range(start, start + len(mean)), parts.labels[rows].tolist(), group.tolist())
        yield csv_bytes((), zip(*names, *short, strict=True))


def _weights(weights: np.ndarray) -> Iterator[bytes]:
    yield csv_bytes(("index", "weight"), [])
    for start in range(0, len(weights), _ROWS):
        yield csv_bytes((), enumerate(weights[start : start + _ROWS].tolist(), start))


def _summary(parts: Partition, num_epochs: int, num_rows: int, seed: int) -> dict[str, Any]:
    """The content of summary.json, with one entry per class."""
    rows = zip(parts.classes.tolist(), parts.sizes.tolist(), parts.separation.tolist(), strict=True)
    classes = [
        {
            "label": label,
            "majority": majority,
            "minority": minority,
            "separation": round(separation, 6),
            "unsplit": parts.unsplit.get(label),
        }
        for label, (majority, minority), separation in rows
    ]
    return {
        "evenhand": evenhand.__version__,
        "samples": len(parts.labels),
        "epochs": num_epochs,
        "seed": seed,
        "balanced_rows": num_rows,
        "classes": classes,
    }


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
