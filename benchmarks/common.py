"""What the benchmarks share: the machine in words, clocks that wait for the device, memory, tables."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import threading
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


class Peak:
    """Memory that some work takes beyond what the process held before, in MiB.

    `anonymous` is the process's own memory, looked at every few milliseconds; `resident` is what the kernel
    has counted at most, pages of mapped files included.
    """

    def __enter__(self) -> Peak:
        self._done = threading.Event()
        self._before, self._most = _anonymous(), 0
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()
        self.anonymous = (max(self._most, _anonymous()) - self._before) / 2**20
        unit = 1 if platform.system() == "Darwin" else 1024
        self.resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
        self.whole = max(self._most, self._before) / 2**20

    def _look(self) -> None:
        while not self._done.wait(0.01):
            self._most = max(self._most, _anonymous())


def _anonymous() -> int:
    """Bytes of this process that are no file's; all of its resident memory where the kernel does not say."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
