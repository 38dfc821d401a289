"""Seconds and memory of a partition as samples and epochs grow by decades, on the CPU.

    python benchmarks/scaling.py             up to 1,000,000 histories in memory, 4 GB from a file
    python benchmarks/scaling.py --smoke     small sizes, a minute
    python benchmarks/scaling.py --large 30  a history of 30 GB, larger than memory, from a file
    python benchmarks/scaling.py --billion   1,000,000,000 samples with one number each

Histories are made: losses that fall at a speed of each sample's own, 2% of them much later, with noise, in
ten classes. Files have the layout of a training's losses.npy, in --folder. Every measurement is a process
of its own. Memory is what it takes beyond its inputs; a file's pages that the kernel keeps do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import common
import numpy as np

from evenhand import partition
from evenhand.core import twomeans

CLASSES, LATE, CHUNK = 10, 0.02, 1 << 22


def made_labels(samples: int) -> np.ndarray:
    """The class of every sample, (samples,) int8."""
    return np.random.default_rng(1).integers(CLASSES, size=samples, dtype=np.int8)


def columns(samples: int, epochs: int) -> Iterable[np.ndarray]:
    """The losses of every epoch in turn, (samples,) float32."""
    random = np.random.default_rng(0)
    late = random.random(samples, dtype=np.float32) < LATE
    speed = random.standard_gamma(4.0, size=samples, dtype=np.float32)
    speed *= np.where(late, np.float32(0.012), np.float32(0.075))
    for epoch in range(epochs):
        column = np.empty(samples, np.float32)
        for part in (slice(start, start + CHUNK) for start in range(0, samples, CHUNK)):
            column[part] = np.float32(2.3) * np.exp(speed[part] * np.float32(-epoch))
            column[part] += np.float32(0.2) * random.random(len(column[part]), dtype=np.float32)
        yield column


def write(path: Path, samples: int, epochs: int) -> None:
    """A file of the layout that LossHistory writes, epoch after epoch, but without waiting for the disk."""
    with path.open("wb") as file:
        head = {"descr": "<f4", "fortran_order": True, "shape": (samples, epochs)}
        np.lib.format.write_array_header_1_0(file, head)
        for column in columns(samples, epochs):
            file.write(column.data)


def summaries(samples: int) -> np.ndarray:
    """One number per sample, (samples,) float32: those that are learned late are higher."""
    random, values = np.random.default_rng(0), np.empty(samples, np.float32)
    for part in (slice(start, start + CHUNK) for start in range(0, samples, CHUNK)):
        size = len(values[part])
        values[part] = np.float32(0.1) * random.standard_gamma(2.0, size=size, dtype=np.float32)
        values[part] += np.where(random.random(size, dtype=np.float32) < LATE, np.float32(2), np.float32(0))
    return values


def measure(kind: str, samples: int, epochs: int, file: str) -> dict[str, float]:
    """One measurement, in this process."""
    labels = made_labels(samples)
    if kind == "numbers":
        losses = summaries(samples)
    elif kind == "file":
        losses = np.load(file, mmap_mode="r")
        twomeans.STREAMED = 0  # read it in blocks, also where it would fit
    else:
        losses = np.stack(list(columns(samples, epochs)), axis=1)
    begun = time.perf_counter()
    with common.Peak() as peak:
        parts = partition(losses, labels)
    took = time.perf_counter() - begun
    return {
        "seconds": took,
        "peak": peak.anonymous,
        "whole": peak.whole,
        "resident": peak.resident,
        "share": float(parts.minority.mean()),
    }


def row(kind: str, samples: int, epochs: int, folder: Path, last: float | None) -> tuple[list[str], float]:
    """One line of a table, measured in a process of its own, and its seconds."""
    file = folder / f"{samples}x{epochs}.npy"
    try:
        if kind == "file":
            write(file, samples, epochs)
        command = [sys.executable, __file__, "--one", kind, str(samples), str(epochs), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        file.unlink(missing_ok=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout)
    numbers = samples * epochs
    cells = [
        f"{samples:,}",
        f"{epochs:,}",
        f"{found['seconds']:.2f}",
        "" if last is None else f"{found['seconds'] / last:.1f}",
        f"{1e9 * found['seconds'] / numbers:.1f}",
        f"{found['peak']:,.0f}",
        f"{found['whole']:,.0f}",
        f"{100 * found['share']:.1f}%",
    ]
    return cells, found["seconds"]


def tables(options: argparse.Namespace) -> Iterable[tuple[str, str, list[tuple[int, int]]]]:
    """What is measured: a title, the kind, and the sizes."""
    if options.large:
        yield "a file larger than memory", "file", [(int(options.large * 1e9 / 400), 100)]
    if options.billion:
        yield "one number per sample", "numbers", [(10**9, 1)]
    if options.large or options.billion:
        return
    small = options.smoke
    samples = [10**3, 10**4] if small else [10**4, 10**5, 10**6]
    yield "histories in memory, by samples", "memory", [(n, 50) for n in samples]
    epochs = [10, 100] if small else [10, 100, 1000]
    yield "histories in memory, by epochs", "memory", [(samples[-2], t) for t in epochs]
    samples = [10**4, 10**5] if small else [10**5, 10**6, 10**7]
    yield "streamed from a file, by samples", "file", [(n, 100) for n in samples]
    yield "streamed from a file, by epochs", "file", [(samples[-2], t) for t in epochs]
    samples = [10**5, 10**6] if small else [10**6, 10**7, 10**8]
    yield "one number per sample", "numbers", [(n, 1) for n in samples]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--billion", action="store_true")
    parser.add_argument("--large", type=float, metavar="GB", help="the size of the file")
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary one by default")
    parser.add_argument("--one", nargs=4, metavar=("KIND", "SAMPLES", "EPOCHS", "FILE"), help="used inside")
    options = parser.parse_args()
    if options.one:
        kind, samples, epochs, file = options.one
        print(json.dumps(measure(kind, int(samples), int(epochs), file)))
        return
    print(common.machine())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for title, kind, sizes in tables(options):
            print(f"\n{title}")
            last, rows = None, []
            for samples, epochs in sizes:
                cells, last = row(kind, samples, epochs, Path(folder), last)
                rows.append(cells)
            head = ["samples", "epochs", "seconds", "times the row above", "ns a number"]
            common.table([*head, "MiB beyond the inputs", "MiB in all", "minority"], rows)


if __name__ == "__main__":
    main()
