"""The trace of one TAB run: which files it passes through, and the calls from `Run.fit` to the first batch.

    python benchmarks/trace.py [METHOD] [--files]

Trains on `digits` for two epochs and prints how many of evenhand's files have a function that is called, per
folder; the calls from `Run.fit` to where the first batch is made; how many checkpoints are read back; and how
many networks are made. docs/architecture.md has the calls. When the engine's files were
merged (before: commit 97a3c4b), the calls to the first batch fell from 6 to 4, the checkpoints read back to
predict from 1 to 0, and the files with a function that is called from 38 to 30.
To trace another checkout: PYTHONPATH=checkout/src python benchmarks/trace.py
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import evenhand
from evenhand import execute, tasks

ROOT = Path(evenhand.__file__).resolve().parent


class Trace:
    """What a profiler sees of a run."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.calls: list[str] = []  # from Run.fit to the first batch
        self.num_loads = 0  # of checkpoints
        self.num_networks = 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is torch.load.__code__:
            self.num_loads += 1
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT) or code.co_name == "<module>":
            return
        self.files.add(path.relative_to(ROOT))
        self.num_networks += code.co_qualname == "make_model"
        if code.co_qualname == "Batches.__call__" and not self.calls:
            self.calls = _calls(frame)


def _calls(frame: FrameType | None) -> list[str]:
    """The functions of evenhand on the stack, from Run.fit on; nothing where Run.fit is not among them."""
    found: list[str] = []
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if path.is_relative_to(ROOT):
            found.insert(0, f"{path.relative_to(ROOT)}: {name}")
        if name == "Run.fit":
            return found
        frame = frame.f_back
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", nargs="?", default="tab")
    parser.add_argument("--files", action="store_true", help="name every file")
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    trace = Trace()
    with tempfile.TemporaryDirectory() as runs:
        sys.setprofile(trace)
        with contextlib.closing(contextlib.ExitStack()) as stack:
            stack.callback(sys.setprofile, None)
            execute(tasks.load("digits"), options.method, {"epochs": 2}, runs=runs, device="cpu")
    folders = Counter(str(path.parent) for path in trace.files)
    print(f"files: {len(trace.files)} (" + ", ".join(f"{n} in {f}" for f, n in sorted(folders.items())) + ")")
    if options.files:
        print(*(f"  {path}" for path in sorted(trace.files)), sep="\n")
    print(f"calls from Run.fit to the first batch: {len(trace.calls) - 1}")
    print(*(f"  {call}" for call in trace.calls), sep="\n")
    print(f"checkpoints read back: {trace.num_loads}, networks made: {trace.num_networks}")


if __name__ == "__main__":
    main()
