"""Losses that somebody has recorded, as files: what to repeat, and why, as files again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import evenhand
from evenhand.core.arrays import read_array
from evenhand.core.partition import Partition, partition
from evenhand.core.rebalance import rebalance, sample_weights
from evenhand.training.store import write_bytes, write_json


def partition_files(losses: Path, labels: Path, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Split recorded losses and write everything that a second training needs into the folder `out`.

    `losses` is an .npy file, (samples, epochs), which is memory-mapped; `labels` one of (samples,) whole
    numbers or strings. Nothing is written before all of it is known. Gives what summary.json holds.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}; name another place")
    histories, names = _read(losses, "losses"), _read(labels, "labels")
    if histories.ndim != 2:
        raise ValueError(
            f"losses must be shaped (samples, epochs), got {histories.shape}; "
            "one number per sample is written as (samples, 1)"
        )
    parts = partition(histories, names)
    balanced = rebalance(parts, seed=seed)
    summary = _summary(parts, histories.shape[1], len(balanced), seed)
    texts = {
        "samples.csv": _samples(parts, histories),
        "weights.csv": csv_bytes(("index", "weight"), enumerate(sample_weights(parts).tolist())),
        "indices.npy": _npy(balanced.indices),
    }
    (out / "summary.json").unlink(missing_ok=True)  # of an earlier call, whose files are replaced now
    for name, content in texts.items():
        write_bytes(out / name, content)
    parts.save(out / "partition.npz")
    write_json(out / "summary.json", summary)  # last: its existence means that the others are there
    return summary


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A table as CSV in which no text is a formula to a spreadsheet.

    >>> csv_bytes(("id", "loss"), [("=1+1", -0.5)])
    b"id,loss\\r\\n'=1+1,-0.5\\r\\n"
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)  # its line ends are CR LF, so it quotes both; else a CR could begin a row
    writer.writerow(header)
    writer.writerows([_harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _harmless(text: str) -> str:
    """The text with an apostrophe before what a spreadsheet would take for a formula."""
    return f"'{text}" if text.lstrip(" ")[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else text


def _read(path: Path, what: str) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"{what} must be an .npy file, but there is no file {path}")
    try:
        return read_array(path, f"{what} as an array")
    except ValueError as error:
        raise ValueError(f"{error}; write numbers, or strings of dtype str, with numpy.save") from error


def _samples(parts: Partition, histories: np.ndarray) -> bytes:
    position = np.searchsorted(parts.classes, parts.labels)
    split = parts.sizes[position, 1] > 0
    group = np.where(parts.minority, "minority", np.where(split, "majority", "whole"))
    mean = np.empty(len(histories))
    for start in range(0, len(histories), 1 << 16):  # by parts, since the file may be larger than memory
        mean[start : start + (1 << 16)] = histories[start : start + (1 << 16)].mean(axis=1, dtype=np.float64)
    header = ("index", "label", "pseudo_group", "separation", "margin", "mean_loss", "last_loss")
    numbers = (parts.separation[position], parts.margin, mean, histories[:, -1].astype(np.float64))
    short = ([float(f"{value:.6g}") for value in column.tolist()] for column in numbers)
    return csv_bytes(
        header, zip(range(len(mean)), parts.labels.tolist(), group.tolist(), *short, strict=True)
    )


def _summary(parts: Partition, num_epochs: int, num_rows: int, seed: int) -> dict[str, Any]:
    """Everything in a few numbers, one entry per class."""
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
