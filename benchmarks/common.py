"""What the benchmarks share: the machine in words, clocks that wait for the device, tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch


def machine() -> str:
    """Where the numbers come from; they hold for nothing else."""
    parts = [f"{os.cpu_count()} cores {_processor()}", f"{torch.get_num_threads()} torch threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"Python {platform.python_version()}", f"torch {torch.__version__}"])


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def seconds(work: Callable[[], object], *, repeats: int = 3, warm: int = 1) -> float:
    """The median time of some calls after a warm-up, the device's work included."""
    times = []
    for number in range(warm + repeats):
        finish()
        begun = time.perf_counter()
        work()
        finish()
        if number >= warm:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def finish() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a markdown table."""
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
